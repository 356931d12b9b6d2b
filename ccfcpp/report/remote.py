"""Runs whose images are with clients on other machines: what is known of them here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ccfcpp.core.config import MethodConfig, RunConfig
from ccfcpp.deployment.link.packet import Link
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.deployment.server.enrolment import Enrolment
from ccfcpp.deployment.server.experiment import DeployedExperiment, sum_of
from ccfcpp.engine.client import Member
from ccfcpp.runs.experiment import Snapshot


@dataclass(frozen=True, eq=False)
class Told:
    """What clients have told of their images: how many of each class are in which cluster.

    Attributes:
        tables: By the client's number, int64 of shape (classes, clusters or predicted classes).
        spec: What the clients were told.
    """

    tables: Mapping[int, Tensor]
    spec: RunSpec

    @staticmethod
    def read(counts: Mapping[str, Tensor], spec: RunSpec) -> "Told":
        """From the arrays of ``counts.npz``; nothing where there are none."""
        if not counts:
            return Told({}, spec)
        numbers = counts["client"].tolist()
        return Told(dict(zip(numbers, counts["table"], strict=True)), spec)

    def holdings(self, members: Sequence[Member]) -> Tensor | None:
        """Images by client and class, int64 of shape (clients, classes); 0 for who did not tell.

        None where nobody told, and in classification, where clients count test images.
        """
        if not self.tables or self.spec.command == "classify":
            return None
        held = torch.zeros(len(members), len(self.spec.classes), dtype=torch.int64)
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
        spec = self.spec
        return Snapshot(
            images=torch.empty(0, *spec.image_shape, dtype=torch.uint8),
            representations=None,
            found=found.repeat_interleave(times),
            classes=classes.repeat_interleave(times),
            class_names=spec.classes,
            centroids=torch.empty(spec.clusters, 0) if spec.clusters else None,
        )


def unconnected(enrolment: Enrolment, config: RunConfig) -> DeployedExperiment:
    """The experiment of a deployed run, to ask for its setting alone: it reaches no client."""
    assert isinstance(config, MethodConfig)
    return enrolment.experiment(config, cast(Link, None))
