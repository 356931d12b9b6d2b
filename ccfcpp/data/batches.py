"""The order in which clients visit their samples."""

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
    """One epoch of several clients side by side, each in a random order of its own.

    A last batch of a single sample is left out: BatchNorm cannot be trained on it. The next epoch
    shuffles anew, so no sample is left out for good, save where a client holds but one.

    Args:
        sizes: Number of samples of each client, in descending order.
        batch_size: Samples in a batch; a client's last one may be shorter.
        generators: Source of each client's order.
        device: Where the batches go, all in one transfer.

    Yields:
        A batch of each client that is not done, which are the first ones.

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
    """Length of each of a client's batches; 0 where there is none, or only one sample is left."""
    left = size - torch.arange(0, largest, batch_size)
    lengths = left.clamp(min=0, max=batch_size)
    return torch.where(lengths > 1, lengths, 0)


class MeanLosses:
    """The mean loss of each client of a cohort over its batches.

    Args:
        clients: How many clients there are.
        device: Where losses are added up, so that no step has to wait for them.

    Attributes:
        steps: Batches of each client so far.
    """

    def __init__(self, clients: int, device: torch.device) -> None:
        self.steps = [0] * clients
        self._totals = torch.zeros(clients, device=device)

    def add(self, losses: Tensor) -> None:
        """Count a batch in.

        Args:
            losses: Those of the clients that are not done, which are the first; of shape (active,).
        """
        active = len(losses)
        self._totals[:active] += losses.detach()
        self.steps[:active] = [count + 1 for count in self.steps[:active]]

    def means(self) -> list[float | None]:
        """Of each client; None for one that had no batch."""
        totals = zip(self._totals.tolist(), self.steps, strict=True)
        return [total / count if count else None for total, count in totals]


def forward_batch(size: int, most: int = 1024, usual_size: int = 28 * 28) -> int:
    """How many images go through a network at a time where nothing is trained.

    Args:
        size: Pixels (or values) of an image.
        most: Images of the usual size. Larger ones go in smaller batches, so that memory does not
            grow with their size.
        usual_size: Pixels (or values) of those.
    """
    return min(most, max(1, most * usual_size // size))
