"""Types of the server's message, of the clients' updates and of the server's state.

A method that needs more fields extends these types.
"""

from dataclasses import dataclass

from torch import Tensor

from ccfcpp.models.state import ModelState


@dataclass(frozen=True)
class Broadcast:
    """The server's message: the global model without the parameters that clients keep."""

    model: ModelState


@dataclass(frozen=True)
class ServerState:
    """The server's state: the global model without the parameters that clients keep."""

    model: ModelState


@dataclass(frozen=True)
class LocalUpdate:
    """Update of a client after local training.

    Attributes:
        model: The local model, without the parameters that the client keeps.
        samples: Number of the client's samples, its weight in the average.
        steps: Number of the client's optimizer steps.
        loss: Mean training loss; None if the client could not train.
        terms: Mean of the decorrelation term without its weight in each local epoch, of shape
            (epochs,); None if it is not logged, or the client could not train.
    """

    model: ModelState
    samples: int
    steps: int
    loss: float | None = None
    terms: Tensor | None = None
