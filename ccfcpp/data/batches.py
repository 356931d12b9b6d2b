"""Batches of clients, and their mean losses."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CohortBatch:
    """One batch of each client that has one left.

    Attributes:
        index: int64 of shape (clients, batch) into the samples of the whole cohort, one client's
            after the other's. A short batch is padded with a sample of the same client.
        mask: 1 for each sample that counts, float32 of shape (clients, batch); None where all do.
    """

    index: Tensor
    mask: Tensor | None

    def __len__(self) -> int:
        return len(self.index)


def cohort_batches(
    sizes: Sequence[int],
    batch_size: int,
    generators: Sequence[torch.Generator],
    device: torch.device,
) -> Iterator[CohortBatch]:
    """Yield the batches of one epoch of several clients, each in its own random order.

    A last batch of a single sample is left out, since BatchNorm cannot be trained on it. The next
    epoch shuffles anew, so no sample is left out for good unless a client holds only one.

    Args:
        sizes: Number of samples of each client, in descending order.
        batch_size: Samples in a batch; a client's last one may be shorter.
        generators: Source of each client's order.
        device: Where the batches go, all in one transfer.

    Yields:
        A batch of each client that has one left; these are the first clients.

    Raises:
        ValueError: The sizes do not descend.
    """
    if list(sizes) != sorted(sizes, reverse=True):
        raise ValueError(f"sizes must be in descending order, got {list(sizes)}")
    lengths = torch.stack([_batch_lengths(size, batch_size, sizes[0]) for size in sizes])
    order = torch.empty(len(sizes), lengths.shape[1] * batch_size, dtype=torch.int64)
    start = 0
    for row, size, generator in zip(order, sizes, generators, strict=True):
        row[:size] = torch.randperm(size, generator=generator) + start
        row[size:] = start
        start += size
    on_device = order.to(device)
    places = torch.arange(batch_size)
    masks = (places < lengths.unsqueeze(2)).float().to(device)
    for step, here in enumerate(lengths.unbind(dim=1)):
        clients, longest = int((here > 0).sum()), int(here[0])
        if clients == 0:
            return
        padded = bool((here[:clients] < longest).any())
        yield CohortBatch(
            on_device[:clients, step * batch_size : step * batch_size + longest],
            masks[:clients, step, :longest] if padded else None,
        )


def _batch_lengths(size: int, batch_size: int, largest: int) -> Tensor:
    """Return the lengths of a client's batches; 0 where none or only one sample is left."""
    left = size - torch.arange(0, largest, batch_size)
    lengths = left.clamp(min=0, max=batch_size)
    return torch.where(lengths > 1, lengths, 0)


class MeanLosses:
    """Mean loss of each client of a cohort over its batches; ``steps`` counts the batches."""

    def __init__(self, clients: int, device: torch.device) -> None:
        self.steps = [0] * clients
        # On the device, so that no step has to wait for its loss.
        self._totals = torch.zeros(clients, device=device)

    def add(self, losses: Tensor) -> None:
        """Add the losses of a batch, of shape (active,), of the first clients."""
        active = len(losses)
        self._totals[:active] += losses.detach()
        self.steps[:active] = [count + 1 for count in self.steps[:active]]

    def means(self) -> list[float | None]:
        """Return the mean loss of each client; None for one that had no batch."""
        totals = zip(self._totals.tolist(), self.steps, strict=True)
        return [total / count if count else None for total, count in totals]
