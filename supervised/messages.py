"""What goes down to the clients, what comes up, and what the server keeps.

A method that has more to say declares types of its own, which extend these.
"""

from dataclasses import dataclass

from torch import Tensor

from ccfcpp.models.state import ModelState


@dataclass(frozen=True)
class Broadcast:
    """What goes down to a client.

    Attributes:
        model: The global model, without the entries that stay at the clients.
    """

    model: ModelState


@dataclass(frozen=True)
class ServerState:
    """What the server knows.

    Attributes:
        model: The global model, without the entries that stay at the clients.
    """

    model: ModelState


@dataclass(frozen=True)
class LocalUpdate:
    """What comes up after local training.

    Attributes:
        model: The local model, without the entries that stay at the client.
        samples: Number of the client's samples, its weight in the average.
        steps: Number of its optimizer steps.
        loss: Mean training loss; None where the client could not train.
        terms: Mean of the decorrelation term without its weight in each local epoch, of shape
            (epochs,); None where it is not asked for, or the client could not train.
    """

    model: ModelState
    samples: int
    steps: int
    loss: float | None = None
    terms: Tensor | None = None
