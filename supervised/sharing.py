"""Which entries of a model travel, and with what a client predicts."""

from collections.abc import Callable

import torch
from torch import nn

from ccfcpp.engine.client import Memory, memory_of
from ccfcpp.models.state import ModelState, placed
from supervised.networks import fresh_normalisations

HELD = "held"
"""The part of a client's memory that holds entries of models."""


class Sharing:
    """All entries of a model travel, and all clients predict with the global one.

    Args:
        make_model: Builds a network.
        device: Where models live.
    """

    def __init__(self, make_model: Callable[[], nn.Module], device: torch.device) -> None:
        self.device = device

    def shared(self, model: ModelState) -> ModelState:
        """The entries of a model that travel."""
        return model

    def personal(self, model: ModelState, memory: Memory) -> ModelState:
        """The model of a client, from the global one and what the client remembers."""
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
        """All but the normalisations."""
        return {name: entry for name, entry in model.items() if name not in self.fresh}

    def personal(self, model: ModelState, memory: Memory) -> ModelState:
        """The global layers with the client's own normalisations, new ones at first."""
        return model | (held(memory, self.device) or self.fresh)


def hold(model: ModelState) -> Memory:
    """Entries of a model as a memory."""
    return {f"{HELD}/{name}": entry for name, entry in model.items()}


def held(memory: Memory, device: torch.device) -> ModelState:
    """The entries of models that a client remembers; none where there are none."""
    return placed(memory_of(memory, HELD), device)
