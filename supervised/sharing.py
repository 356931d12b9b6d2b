"""Rules for the entries of a model that clients send, and for the model of a client."""

from collections.abc import Callable

import torch
from torch import nn

from ccfcpp.engine.client import Memory, memory_of
from ccfcpp.models.state import ModelState, placed
from supervised.networks import fresh_normalisations

HELD = "held"
"""Prefix of the entries of models in a client's memory."""


class Sharing:
    """Clients send all entries of a model, and predict with the global model."""

    def __init__(self, make_model: Callable[[], nn.Module], device: torch.device) -> None:
        self.device = device

    def shared(self, model: ModelState) -> ModelState:
        """Select the entries of a model that are sent."""
        return model

    def personal(self, model: ModelState, memory: Memory) -> ModelState:
        """Combine the global model and a client's memory to the client's own model."""
        return model


class PersonalNormalisation(Sharing):
    """FedBN (Li et al. 2021): batch normalisation, with its statistics, stays at the client.

    Clients start from PyTorch's fresh normalisations.
    """

    def __init__(self, make_model: Callable[[], nn.Module], device: torch.device) -> None:
        super().__init__(make_model, device)
        with torch.device("meta"):
            model = make_model()
        self.fresh = placed(fresh_normalisations(model), device)

    def shared(self, model: ModelState) -> ModelState:
        """Select all entries except the normalisations."""
        return {name: entry for name, entry in model.items() if name not in self.fresh}

    def personal(self, model: ModelState, memory: Memory) -> ModelState:
        """Combine the global layers with the client's normalisations, at first fresh ones."""
        return model | (held(memory, self.device) or self.fresh)


def hold(model: ModelState) -> Memory:
    """Make a memory from entries of a model."""
    return {f"{HELD}/{name}": entry for name, entry in model.items()}


def held(memory: Memory, device: torch.device) -> ModelState:
    """Return the entries of models in a memory; empty where there are none."""
    return placed(memory_of(memory, HELD), device)
