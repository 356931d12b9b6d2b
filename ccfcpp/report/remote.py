"""Runs whose images are with clients on other machines, as far as they are known here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ccfcpp.core.config import MethodConfig
from ccfcpp.deployment.charter import Charter
from ccfcpp.deployment.experiment import DeployedExperiment, make_experiment, sum_of
from ccfcpp.deployment.gathering import Gathering
from ccfcpp.deployment.transport import Deployed, Link
from ccfcpp.engine.client import Member
from ccfcpp.runs.experiment import Snapshot


@dataclass(frozen=True, eq=False)
class Told:
    """Numbers that clients have reported: their images by class and cluster.

    Attributes:
        tables: Table of each client by its number, int64 of shape (classes, clusters or predicted
            classes).
        charter: Terms of the run, as sent to the clients.
    """

    tables: Mapping[int, Tensor]
    charter: Charter

    @staticmethod
    def read(counts: Mapping[str, Tensor], charter: Charter) -> "Told":
        """Read the arrays of ``counts.npz``; there are no tables where these are empty."""
        if not counts:
            return Told({}, charter)
        numbers = counts["client"].tolist()
        return Told(dict(zip(numbers, counts["table"], strict=True)), charter)

    def holdings(self, members: Sequence[Member]) -> Tensor | None:
        """Images by client and class, int64 of shape (clients, classes).

        A client that has reported nothing has zeros. None where no client has reported anything,
        and in classification, where clients count test images.
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
        """Class and cluster of each image, restored from the counts; there are no images."""
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


def unconnected(gathering: Gathering, config: MethodConfig) -> DeployedExperiment:
    """Make the experiment of a deployed run without clients: it serves to read its setting."""
    nobody = cast(Link, None)
    charter = gathering.charter
    return make_experiment(
        config,
        charter,
        gathering.members,
        lambda exchanges, device: Deployed(nobody, charter, gathering.run, exchanges, device),
    )
