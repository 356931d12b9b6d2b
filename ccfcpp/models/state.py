"""A model as tensors by name."""

from collections.abc import Mapping

import torch
from torch import Tensor

ModelState = dict[str, Tensor]
"""A model's parameters and buffers by name, as ``Module.state_dict`` gives them."""


def placed(state: Mapping[str, Tensor], device: torch.device) -> ModelState:
    """Copy a model's entries to a device; counters stay on the CPU, where they are counted."""
    return {
        name: entry.to(device if entry.is_floating_point() else "cpu")
        for name, entry in state.items()
    }
