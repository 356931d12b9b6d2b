"""Ways to add up clients' vectors, and vectors of what adds up."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from ccfcpp.engine.exchange import AbsentClientError, RefusedUpdateError


class Summation(ABC):
    """One sum over clients.

    Attributes:
        lost: At which stage something of a client was lost that has no part in the sum, by its
            number.
        bytes_up: What clients have sent for it.
        bytes_down: What they have received for it, without the message of the exchange.
    """

    def __init__(self) -> None:
        self.lost: dict[int, str] = {}
        self.bytes_up = 0
        self.bytes_down = 0

    @abstractmethod
    def begin(self) -> None:
        """What has to be done before there are vectors.

        Raises:
            RefusedUpdateError: There will be no sum.
        """

    @abstractmethod
    def add(self, client: int, vector: Tensor) -> None:
        """Count a client's float64 vector in.

        Raises:
            RefusedUpdateError: It cannot be used, or did not arrive.
        """

    @abstractmethod
    def total(self) -> Tensor:
        """The sum, float64.

        Raises:
            RefusedUpdateError: There is none.
        """

    def reason(self, client: int) -> RefusedUpdateError | None:
        """Why a client has no part in the sum; None where it was not lost."""
        if client not in self.lost:
            return None
        return AbsentClientError(f"its {self.lost[client]} did not arrive")


class OpenSum(Summation):
    """The server sees every vector."""

    def __init__(self) -> None:
        super().__init__()
        self._total: Tensor | None = None

    def begin(self) -> None:
        """Nothing."""

    def add(self, client: int, vector: Tensor) -> None:
        """In the order of the clients, in float64."""
        self.bytes_up += vector.nbytes
        self._total = vector.clone() if self._total is None else self._total.add_(vector)

    def total(self) -> Tensor:
        """All of them."""
        if self._total is None:
            raise RefusedUpdateError("there is nothing to add up")
        return self._total


def flattened(parts: Mapping[str, Tensor]) -> Tensor:
    """All numbers of some tensors as one vector, in the order of their names."""
    return torch.cat([parts[name].flatten() for name in sorted(parts)])


def unflattened(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that a vector was made of, from others of the same names and shapes."""
    names = sorted(like)
    pieces = torch.split(vector, [like[name].numel() for name in names])
    return {name: piece.view(like[name].shape) for name, piece in zip(names, pieces, strict=True)}
