"""The number of models that are trained side by side."""

from typing import Literal

import torch

_HOST_BYTES = 1 << 29
_DEVICE_SHARE = 0.5
"""Memory for a cohort's training: a fixed part of the host's, or a share of an accelerator's."""


def cohort_size(
    wanted: Literal["auto"] | int, together: int, bytes_of_one: int, device: torch.device
) -> int:
    """Return how many of the ``together`` clients of a round are trained side by side.

    ``auto`` stands for as many as memory serves, where one takes ``bytes_of_one``.
    """
    if wanted != "auto":
        return min(wanted, together)
    room = _HOST_BYTES
    if device.type == "cuda":
        # What PyTorch keeps for itself, from an earlier run, is free as well.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        room = int(_DEVICE_SHARE * (torch.cuda.mem_get_info(device)[0] + kept))
    return max(1, min(together, room // bytes_of_one))
