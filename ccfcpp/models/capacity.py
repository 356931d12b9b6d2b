"""The number of models that are trained side by side."""

import gc
from dataclasses import dataclass
from typing import Literal

import torch

_DEVICE_SHARE = 0.5
"""Share of an accelerator's memory that a cohort's training may take."""


@dataclass(frozen=True)
class Cohort:
    """How clients are trained side by side.

    Attributes:
        lanes: In how many threads, of a processor.
        together: How many in each, on streams of an accelerator.
    """

    lanes: int
    together: int

    @property
    def clients(self) -> int:
        """How many in all."""
        return self.lanes * self.together


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
    if device.type != "cuda":
        return Cohort(lanes_of(wanted, together, device), 1)
    if wanted != "auto":
        return Cohort(1, min(wanted, together))
    gc.collect()  # Trainers of an earlier run refer to themselves.
    # What PyTorch keeps for itself, from an earlier run, is free as well.
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    room = int(_DEVICE_SHARE * (torch.cuda.mem_get_info(device)[0] + kept))
    return Cohort(1, max(1, min(together, room // bytes_of_one)))
