"""Runs whose images are with clients on other machines, as far as they are known here."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.deployment.server.experiment import sum_of
from ccfcpp.engine.client import Member
from ccfcpp.runs.experiment import Snapshot

Tables = Mapping[int, Tensor]
"""What clients have reported, by their numbers: images by class and cluster, int64 of shape
(classes, clusters or predicted classes)."""


def tables_in(counts: Mapping[str, Tensor]) -> Tables:
    """Read the arrays of ``counts.npz``; there are no tables where these are empty."""
    if not counts:
        return {}
    return dict(zip(counts["client"].tolist(), counts["table"], strict=True))


def holdings(tables: Tables, spec: RunSpec, members: Sequence[Member]) -> Tensor | None:
    """Images by client and class, int64 of shape (clients, classes).

    A client that has reported nothing has zeros. None where no client has reported anything,
    and in classification, where clients count test images.
    """
    if not tables or spec.command == "classify":
        return None
    held = torch.zeros(len(members), len(spec.classes), dtype=torch.int64)
    for row, member in enumerate(members):
        if member.id in tables:
            held[row] = tables[member.id].sum(dim=1)
    return held


def snapshot(tables: Tables, spec: RunSpec) -> Snapshot | None:
    """Class and cluster of each image, restored from the counts; there are no images."""
    table = sum_of(tables)
    if table is None:
        return None
    classes, found = table.nonzero(as_tuple=True)
    times = table[classes, found]
    return Snapshot(
        images=torch.empty(0, *spec.image_shape, dtype=torch.uint8),
        representations=None,
        found=found.repeat_interleave(times),
        classes=classes.repeat_interleave(times),
        class_names=spec.classes,
        centroids=torch.empty(spec.clusters, 0) if spec.clusters else None,
    )
