"""Model states: tensors by name, and initial weights without the global random generator."""

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)

ModelState = dict[str, Tensor]
"""A model's parameters and buffers by name, as ``Module.state_dict`` gives them."""


def to_device(state: Mapping[str, Tensor], device: torch.device) -> ModelState:
    """Copy a model's tensors to a device; integer counters go to the CPU, which updates them."""
    return {
        name: entry.to(device if entry.is_floating_point() else "cpu")
        for name, entry in state.items()
    }


def build(make: Callable[[], M], generator: torch.Generator) -> M:
    """Make a network on the CPU, with initial weights drawn from ``generator`` alone.

    Args:
        make: Returns a new network of convolutions, linear layers and normalisations.
        generator: A CPU generator.

    Returns:
        The network with PyTorch's default initialisation.
    """
    with torch.device("meta"):
        model = make()
    # As ``to_empty`` does, which imports a second's worth of symbolic algebra on the way.
    empty = {n: torch.empty(t.shape, dtype=t.dtype) for n, t in model.state_dict().items()}
    model.load_state_dict(empty, assign=True)
    for module in model.modules():
        _initialise(module, generator)
    return model


def random_state(
    make: Callable[[], nn.Module], generator: torch.Generator, device: torch.device
) -> ModelState:
    """Return the initial weights and buffers of a network from ``build``, on a device."""
    return to_device(build(make, generator).state_dict(), device)


def _initialise(module: nn.Module, generator: torch.Generator) -> None:
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
        nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5), generator=generator)
        if module.bias is not None:
            # What PyTorch takes for the fan-in: of a transposed convolution these are the outputs.
            bound = 1 / math.sqrt(module.weight[0].numel())
            nn.init.uniform_(module.bias, -bound, bound, generator=generator)
    elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm):
        module.reset_parameters()
    elif next(module.parameters(recurse=False), None) is not None:
        raise TypeError(f"no initialisation is known for {type(module).__name__}")
    elif callable(reset := getattr(module, "reset_parameters", None)):  # It has buffers alone.
        reset()
