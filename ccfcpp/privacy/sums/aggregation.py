"""Combination of several clients' updates into one, from the sums of their parts.

A server that needs only sums and means need not see any client's update. Which tensors add up
follows from the declared meaning of an update's parts.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.engine.exchange import AnyExchange, RefusedUpdateError
from ccfcpp.engine.payload import pack, unpack
from ccfcpp.engine.update_format import (
    Addends,
    Count,
    Mean,
    Opaque,
    Part,
    Spec,
    Sum,
    UpdateFormat,
    Votes,
    find_part,
    sibling_name,
)

_NONE = torch.zeros((), dtype=torch.float64)

_PRESENT = " present"
"""Suffix for the name of an optional mean: the total weight of the clients that have it."""


def require_sums(asked: KeyValue, system: str, exchange: AnyExchange) -> None:
    """Raise ``UsageError`` if the server needs single clients' values, and not only sums.

    ``asked`` is the setting that permits sums only, and ``system`` the system's name, for messages.
    """
    parts: Mapping[str, Part] = exchange.parts or {"update": Opaque()}
    for name, part in parts.items():
        if isinstance(part, Votes | Opaque) or (isinstance(part, Mean) and part.separate):
            raise UsageError(
                asked,
                f": in {system}'s exchange {exchange.name!r} the server needs each client's part "
                f"{name!r}, and not the sum; docs/trust.md lists what has sums",
            )


class Addition:
    """Conversion between an exchange's updates and the tensors that are summed over clients.

    Args:
        exchange: An exchange without parts that the server needs from each client.
        message: The message of the exchange.
        alike: Whether all clients have the same weight in a mean, as sums with noise need it.
            Numbers of images that divide no sum, and means that only the report needs, are then
            left out. Otherwise a client's weight is the part that the exchange names.
    """

    def __init__(self, exchange: AnyExchange, message: object, alike: bool = False) -> None:
        self.exchange = exchange
        self.message = pack(message)
        self.alike = alike
        # Masks are removed on the CPU; the sums are moved to the device of the model.
        devices = {tensor.device for tensor in self.message.values()} - {_NONE.device}
        self.device = next(iter(devices), _NONE.device)

    def parts(self, update: object) -> Addends:
        """Return the tensors of an update that are summed over clients, float64 by name.

        They are its sums, its counts, and its weighted changes of means. Integer entries of a mean
        are counters (``num_batches_tracked``): they are left out, and keep the message's value.
        """
        tensors = pack(update)
        addends: Addends = {}
        optional = {n for n, part in self.exchange.parts.items() if _is_optional(part)}
        for name in [*tensors, *sorted(optional - tensors.keys())]:
            part = find_part(self.exchange.parts, name)
            value = tensors.get(name, _NONE).to(self.device)
            if not self._is_sent(name, part, value.dtype):
                continue
            if not isinstance(part, Mean):
                addends[name] = value.double()
                continue
            weight = 1.0 if self.alike else float(tensors[part.weight])
            addends[name] = weight * (value.double() - self._base(name))
            if part.optional and not self.alike:
                present = weight if name in tensors else 0.0
                addends[name + _PRESENT] = _NONE.to(self.device) + present
        return addends

    def zeros(self, update_format: UpdateFormat) -> Addends:
        """Return zeros with the names and shapes of ``parts``, given the update's format."""
        addends: Addends = {}
        for name, spec in update_format.items():
            part = find_part(self.exchange.parts, name)
            if self._is_sent(name, part, spec.dtype):
                addends[name] = spec.zeros().double()
                if _is_optional(part) and not self.alike:
                    addends[name + _PRESENT] = torch.zeros((), dtype=torch.float64)
        return addends

    def whole(
        self, update_format: UpdateFormat, totals: Mapping[str, Tensor], contributors: float
    ) -> object:
        """Make one update that stands for those of all clients, from the sums of their parts.

        Args:
            update_format: Names, shapes and dtypes of an update's tensors.
            totals: float64 tensors by the names that ``parts`` returns.
            contributors: The divisor of a mean, if all clients have the same weight.

        Raises:
            RefusedUpdateError: The weights of a mean are not positive.
        """
        tensors = {}
        totals = {name: total.to(self.device) for name, total in totals.items()}
        for name, spec in update_format.items():
            part = find_part(self.exchange.parts, name)
            if isinstance(part, Mean):
                tensor = self._mean(name, part, spec, totals, contributors)
            else:
                tensor = self._sum(name, spec, totals, contributors)
            if tensor is not None:
                tensors[name] = tensor
        return unpack(self.exchange.update, tensors)

    def _mean(
        self, name: str, part: Mean, spec: Spec, totals: Mapping[str, Tensor], contributors: float
    ) -> Tensor | None:
        """Return the mean of a part over the clients that have it; None if no client sends it."""
        if not spec.dtype.is_floating_point:
            return self.message.get(name, spec.zeros(self.device))
        if name not in totals:
            return None
        divisor = contributors
        if not self.alike:
            divisor = float(totals[name + _PRESENT if part.optional else part.weight])
        if divisor <= 0 and not part.optional:
            raise RefusedUpdateError(
                f"the clients' weights in the mean of {name!r} are not positive"
            )
        if divisor <= 0:
            return None
        mean = totals[name] / divisor
        return (self._base(name) + mean).to(spec.dtype)

    def _sum(
        self, name: str, spec: Spec, totals: Mapping[str, Tensor], contributors: float
    ) -> Tensor:
        means = [part for part in self.exchange.parts.values() if isinstance(part, Mean)]
        # The server divides by a weight, which must not be 0.
        least = 1 if any(part.weight == name for part in means) else 0
        if name not in totals:
            if find_part(self.exchange.parts, name) == Count(public=True):
                return spec.zeros() + contributors
            return spec.zeros() + least * max(1, round(contributors))
        total = totals[name]
        if not spec.dtype.is_floating_point:
            return total.round().clamp(min=least).to(spec.dtype)
        # A sum with noise keeps all its digits.
        return total if self.alike else total.to(spec.dtype)

    def _is_sent(self, name: str, part: Part, dtype: torch.dtype) -> bool:
        if isinstance(part, Mean) and not dtype.is_floating_point:
            return False
        if not self.alike:
            return True
        if isinstance(part, Count):
            return not part.public and (self.exchange.is_sum or name in self._divisors)
        return not (isinstance(part, Mean) and part.report)

    @property
    def _divisors(self) -> set[str]:
        """Names of the counts by which sums are divided."""
        parts = self.exchange.parts.items()
        return {
            sibling_name(n, part.count) for n, part in parts if isinstance(part, Sum) and part.count
        }

    def _base(self, name: str) -> Tensor:
        """Return what a mean's changes start from: the message's tensor of this name, else 0."""
        return self.message.get(name, _NONE).to(self.device).double()


def _is_optional(part: Part) -> bool:
    return isinstance(part, Mean) and part.optional
