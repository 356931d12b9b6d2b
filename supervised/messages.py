"""Types of the server's message and state, and of the clients' updates.

A method that needs more fields derives from these types.
"""

from dataclasses import dataclass

from torch import Tensor

from ccfcpp.models.state import ModelState


@dataclass(frozen=True)
class Broadcast:
    """Server's message: the global model, without the layers that clients keep (FedBN)."""

    model: ModelState


@dataclass(frozen=True)
class ServerState:
    """Server's state: the global model, without the layers that clients keep (FedBN)."""

    model: ModelState


@dataclass(frozen=True)
class LocalUpdate:
    """Update of a client after local training.

    Attributes:
        model: The local model, without the parameters that the client keeps.
        samples: Number of the client's samples, its weight in the average.
        steps: Number of optimizer steps.
        loss: Mean training loss; None if there was no step.
        terms: Mean of the decorrelation term, without its weight, in each local epoch: float64 of
            shape (epochs,); None if it is not logged, or there was no step.
    """

    model: ModelState
    samples: int
    steps: int
    loss: float | None = None
    terms: Tensor | None = None
