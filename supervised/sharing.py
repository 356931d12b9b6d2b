"""Rules for which parameters clients send, and which model a client predicts with."""

from collections.abc import Callable

import torch
from torch import nn

from ccfcpp.engine.client import Memory, select_memory
from ccfcpp.models.state import ModelState, to_device
from supervised.networks import fresh_normalisations

HELD = "held"
"""Prefix of the names of kept parameters in a client's local state (``memory``)."""


class Sharing:
    """Rule: clients send all parameters and buffers, and predict with the global model."""

    def __init__(self, make_model: Callable[[], nn.Module], device: torch.device) -> None:
        self.device = device

    def shared(self, model: ModelState) -> ModelState:
        """Select the parameters and buffers that a client sends."""
        return model

    def personal(self, model: ModelState, memory: Memory) -> ModelState:
        """Return the model that a client predicts with; ``memory`` is the client's local state."""
        return model


class PersonalNormalisation(Sharing):
    """Rule of FedBN (Li et al. 2021): clients keep their batch normalisation layers.

    In its first round, a client has PyTorch's initial values for these layers.
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
        """Return the global model with the client's own batch normalisation layers."""
        return model | (from_memory(memory, self.device) or self.fresh)


def to_memory(model: ModelState) -> Memory:
    """Make the local state (``memory``) in which a client keeps a model, or part of one."""
    return {f"{HELD}/{name}": entry for name, entry in model.items()}


def from_memory(memory: Memory, device: torch.device) -> ModelState:
    """Return the parameters and buffers kept in a client's local state; empty if there are none."""
    return to_device(select_memory(memory, HELD), device)
