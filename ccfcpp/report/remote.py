"""Runs whose images are with clients on other machines, as far as they are known here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ccfcpp.core.config import MethodConfig
from ccfcpp.deployment.link.packet import Link
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.deployment.server.enrolment import Enrolment
from ccfcpp.deployment.server.experiment import DeployedExperiment, sum_of
from ccfcpp.engine.client import Member
from ccfcpp.runs.experiment import Snapshot


@dataclass(frozen=True, eq=False)
class Told:
    """Numbers that clients have reported: their images by class and cluster.

    Attributes:
        tables: Table of each client by its number, int64 of shape (classes, clusters or predicted
            classes).
        spec: Description of the run, as sent to the clients.
    """

    tables: Mapping[int, Tensor]
    spec: RunSpec

    @staticmethod
    def read(counts: Mapping[str, Tensor], spec: RunSpec) -> "Told":
        """Read the arrays of ``counts.npz``; there are no tables where these are empty."""
        numbers = counts["client"].tolist() if counts else []
        return Told(dict(zip(numbers, counts.get("table", ()), strict=True)), spec)

    def holdings(self, members: Sequence[Member]) -> Tensor | None:
        """Images by client and class, int64 of shape (clients, classes).

        A client that has reported nothing has zeros. None where no client has reported anything,
        and in classification, where clients count test images.
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
        """Class and cluster of each image, restored from the counts; there are no images."""
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


def unconnected(enrolment: Enrolment, config: MethodConfig) -> DeployedExperiment:
    """Make the experiment of a deployed run without clients: it serves to read its setting."""
    return enrolment.experiment(config, cast(Link, None))
