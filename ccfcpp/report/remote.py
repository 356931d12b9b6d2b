"""Runs whose images are with clients on other machines: what is known of them here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ccfcpp.core.config import MethodConfig, RunConfig
from ccfcpp.deployment.link.run_spec import Charter
from ccfcpp.deployment.server.enrolment import Gathering
from ccfcpp.deployment.server.experiment import DeployedExperiment, make_experiment, sum_of
from ccfcpp.deployment.server.transport import Deployed, Link
from ccfcpp.engine.client import Member
from ccfcpp.runs.experiment import Snapshot


@dataclass(frozen=True, eq=False)
class Told:
    """What clients have told of their images: how many of each class are in which cluster.

    Attributes:
        tables: By the client's number, int64 of shape (classes, clusters or predicted classes).
        charter: What the clients were told.
    """

    tables: Mapping[int, Tensor]
    charter: Charter

    @staticmethod
    def read(counts: Mapping[str, Tensor], charter: Charter) -> "Told":
        """From the arrays of ``counts.npz``; nothing where there are none."""
        if not counts:
            return Told({}, charter)
        numbers = counts["client"].tolist()
        return Told(dict(zip(numbers, counts["table"], strict=True)), charter)

    def holdings(self, members: Sequence[Member]) -> Tensor | None:
        """Images by client and class, int64 of shape (clients, classes); 0 for who did not tell.

        None where nobody told, and in classification, where clients count test images.
        """
        if not self.tables or self.charter.command == "classify":
            return None
        held = torch.zeros(len(members), len(self.charter.classes), dtype=torch.int64)
        for row, member in enumerate(members):
            if member.id in self.tables:
                held[row] = self.tables[member.id].sum(dim=1)
        return held

    @property
    def snapshot(self) -> Snapshot | None:
        """The numbers as class and cluster of each image, without the images."""
        table = sum_of(self.tables)
        if table is None:
            return None
        classes, found = table.nonzero(as_tuple=True)
        times = table[classes, found]
        charter = self.charter
        return Snapshot(
            images=torch.empty(0, *charter.image_shape, dtype=torch.uint8),
            representations=None,
            found=found.repeat_interleave(times),
            classes=classes.repeat_interleave(times),
            class_names=charter.classes,
            centroids=torch.empty(charter.clusters, 0) if charter.clusters else None,
        )


def unconnected(gathering: Gathering, config: RunConfig) -> DeployedExperiment:
    """The experiment of a deployed run, to ask for its setting alone: it reaches no client."""
    assert isinstance(config, MethodConfig)
    nobody = cast(Link, None)
    charter = gathering.charter
    return make_experiment(
        config,
        charter,
        gathering.members,
        lambda exchanges, device: Deployed(nobody, charter, gathering.run, exchanges, device),
    )
