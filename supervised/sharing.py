"""Rules for which parameters clients send, and for the model with which a client predicts."""

from collections.abc import Callable

import torch
from torch import nn

from ccfcpp.engine.client import Memory, select_memory
from ccfcpp.models.state import ModelState, to_device
from supervised.networks import fresh_normalisations

HELD = "held"
"""Prefix of the names of parameters in a client's local state."""


class Sharing:
    """Rule by which clients send all parameters and buffers and predict with the global model."""

    def __init__(self, make_model: Callable[[], nn.Module], device: torch.device) -> None:
        self.device = device

    def shared(self, model: ModelState) -> ModelState:
        """Select the parameters and buffers that a client sends."""
        return model

    def personal(self, model: ModelState, memory: Memory) -> ModelState:
        """Return the client's own model: the global model with the client's local parameters."""
        return model


class PersonalNormalisation(Sharing):
    """Rule of FedBN (Li et al. 2021): clients keep their batch normalisation layers.

    Clients start from PyTorch's fresh normalisations.
    """

    def __init__(self, make_model: Callable[[], nn.Module], device: torch.device) -> None:
        super().__init__(make_model, device)
        with torch.device("meta"):
            model = make_model()
        self.fresh = to_device(fresh_normalisations(model), device)

    def shared(self, model: ModelState) -> ModelState:
        """Select all parameters and buffers except those of batch normalisation."""
        return {name: entry for name, entry in model.items() if name not in self.fresh}

    def personal(self, model: ModelState, memory: Memory) -> ModelState:
        """Combine the global layers with the client's normalisations, at first fresh ones."""
        return model | (from_memory(memory, self.device) or self.fresh)


def to_memory(model: ModelState) -> Memory:
    """Make a client's local state from parameters and buffers of a model."""
    return {f"{HELD}/{name}": entry for name, entry in model.items()}


def from_memory(memory: Memory, device: torch.device) -> ModelState:
    """Return the parameters and buffers in a client's local state; empty if there are none."""
    return to_device(select_memory(memory, HELD), device)
