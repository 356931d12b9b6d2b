"""The order in which a client visits its samples."""

from collections.abc import Iterator

import torch
from torch import Tensor


def shuffled_batches(samples: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """One epoch in random order.

    A last batch of a single sample is left out: BatchNorm cannot be trained on it. The next epoch
    shuffles anew, so no sample is left out for good, save where a client holds but one.

    Args:
        samples: Number of samples.
        batch_size: Samples in a batch; the last one may be shorter.
        generator: Source of the order.

    Yields:
        int64 indices on the CPU, shape (at most ``batch_size``,).
    """
    for batch in torch.split(torch.randperm(samples, generator=generator), batch_size):
        if len(batch) > 1:
            yield batch
