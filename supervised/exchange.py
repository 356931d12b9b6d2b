"""What goes down to the clients, what comes up, and what the server keeps."""

from dataclasses import dataclass

from torch import Tensor

from ccfcpp.models.stack.layout import ModelState


@dataclass(frozen=True)
class Broadcast:
    """What goes down to a client.

    Attributes:
        model: The global model, without the entries that stay at the clients.
        control: SCAFFOLD's server control variate c, of shape (size of a model,).
    """

    model: ModelState
    control: Tensor | None = None


@dataclass(frozen=True)
class ServerState:
    """What the server knows.

    Attributes:
        model: The global model, without the entries that stay at the clients.
        control: SCAFFOLD's server control variate c, of shape (size of a model,).
        momentum: First moments of a server optimizer, by parameter.
        second_moment: Second moments of a server optimizer, by parameter.
    """

    model: ModelState
    control: Tensor | None = None
    momentum: ModelState | None = None
    second_moment: ModelState | None = None


@dataclass(frozen=True)
class LocalUpdate:
    """What comes up after local training.

    Attributes:
        model: The local model, without the entries that stay at the client.
        samples: Number of the client's samples, its weight in the average.
        steps: Number of its optimizer steps.
        loss: Mean training loss; None where the client could not train.
        control_change: SCAFFOLD: how much the client's control variate has changed, of shape (size
            of a model,).
    """

    model: ModelState
    samples: int
    steps: int
    loss: float | None = None
    control_change: Tensor | None = None
