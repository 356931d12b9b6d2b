"""The number of models that are trained side by side."""

from dataclasses import dataclass
from typing import Literal

import torch

_LANE_BYTES = 1 << 26
_DEVICE_SHARE = 0.5
"""Memory for a cohort's training: on a processor so much for each thread that activations come from
caches (ten clients of MNIST in one stack take 1.3 times as long as one by one); else a share of an
accelerator's."""


@dataclass(frozen=True)
class Cohort:
    """How clients are trained side by side.

    Attributes:
        lanes: In how many threads.
        stacked: How many in each, as one network.
    """

    lanes: int
    stacked: int

    @property
    def clients(self) -> int:
        """How many in all."""
        return self.lanes * self.stacked


def lanes_of(wanted: Literal["auto"] | int, together: int, device: torch.device) -> int:
    """In how many threads the ``together`` clients of a round work; see ``cohort_of``."""
    most = together if wanted == "auto" else min(wanted, together)
    return min(torch.get_num_threads(), most) if device.type == "cpu" else 1


def cohort_of(
    wanted: Literal["auto"] | int, together: int, bytes_of_one: int, device: torch.device
) -> Cohort:
    """How many of the ``together`` clients of a round are trained side by side.

    ``auto`` stands for as many as memory serves, where one takes ``bytes_of_one``.
    """
    lanes = lanes_of(wanted, together, device)
    share = -(-(together if wanted == "auto" else min(wanted, together)) // lanes)
    if wanted != "auto":
        return Cohort(lanes, share)
    room = _LANE_BYTES
    if device.type == "cuda":
        # What PyTorch keeps for itself, from an earlier run, is free as well.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        room = int(_DEVICE_SHARE * (torch.cuda.mem_get_info(device)[0] + kept))
    return Cohort(lanes, max(1, min(share, room // bytes_of_one)))
