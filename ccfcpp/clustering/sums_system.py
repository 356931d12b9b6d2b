"""Clustering systems made of three functions: the initial state, a client's sums, the next state.

In each round the server sends the state, each client computes sums from it and its own samples, and
the server computes the next state from their total. Since clients send only sums, such a system
supports secure sums, differential privacy, defences, absent clients, resumption and clients on
other machines without further code.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any, Generic, TypeVar, get_type_hints

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.kmeans.centroids import (
    FARTHEST,
    AnyInitState,
    InitState,
    SumOfClients,
    required_centroids,
)
from ccfcpp.clustering.kmeans.initialisation import SumCells
from ccfcpp.clustering.kmeans.server import assign_points
from ccfcpp.clustering.methods import System
from ccfcpp.clustering.systems.shallow.config import PixelsConfig
from ccfcpp.clustering.systems.shallow.pixels import InitBySums, PixelRule
from ccfcpp.core.config import Positive, Section
from ccfcpp.core.data_kinds import DataKind
from ccfcpp.core.errors import UsageError
from ccfcpp.core.permissions import Kind
from ccfcpp.core.randomness import Randomness
from ccfcpp.core.registry import one_line_errors
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    AnyServerWork,
    ClientSide,
    Exchange,
    Images,
    Metrics,
    RefusedUpdateError,
    ServerWork,
)
from ccfcpp.engine.payload import check_counts, find_non_finite, pack, sum_updates, unpack
from ccfcpp.engine.update_format import Count, Part, Sum, UpdateFormat, find_unknown_part, format_of
from ccfcpp.models.state import to_device

Sums = TypeVar("Sums")
T = TypeVar("T")
_ROUNDING = 1e-3
"""Largest relative rounding error of a sum, in float32 too."""


class SumsConfig(Section):
    """Settings of a ``SumsSystem`` (section ``sums``); a system may add its own in a subclass."""

    rounds: Positive = 100
    """Largest number of rounds. If the library computes the initial centroids, it does so in the
    first round."""


@dataclass(frozen=True)
class SumsSystem(System, Generic[AnyInitState, Sums]):
    """A clustering system made of three functions: ``init``, ``local`` and ``update``.

    Points are floats of shape (samples, d): vectors as they are, or images as the section
    ``pixels`` scales them. ``init`` and ``local`` must be annotated with the dataclass that they
    return. The number of rounds is in the section whose class derives from ``SumsConfig``, or in a
    section ``sums`` if there is none.

    Attributes:
        init: Returns the initial state, a dataclass that derives from ``InitState``. If it has no
            centroids, the library computes them by k-means++ (``kmeans.initialisation``).
        local: Returns the sums over some points, given the state and the points: a dataclass of
            tensors, each a sum over points. The library adds them up in float64.
        update: Returns the next state, given the state and the sums over all clients.
        assign: Returns the cluster of each point, int64 of shape (samples,). None: the cluster with
            the highest probability, or with the nearest centroid without ``probabilities``.
        probabilities: Returns the probability of each cluster, of shape (samples, k); optional.
        has_converged: Returns whether further rounds would not change a state; optional.
        parts: What the fields of the sums are, by name: ``Count()``, a number of points, or
            ``Sum(count="n")``, a sum whose rows are over the points counted in field ``n``; all
            others are a ``Sum()``.
        largest: Upper bound on one point's contribution to a field, by the field's name, if it is
            known; it limits the noise that differential privacy needs.
        exchange: The exchange of a round, made from the functions.

    Raises:
        UsageError: The functions do not fit each other, or an annotation is missing.
    """

    init: Callable[[Problem, Randomness], AnyInitState]
    local: Callable[[AnyInitState, Tensor], Sums]
    update: Callable[[AnyInitState, Sums], AnyInitState]
    _: KW_ONLY
    assign: Callable[[AnyInitState, Tensor], Tensor] | None = None
    probabilities: Callable[[AnyInitState, Tensor], Tensor] | None = None
    has_converged: Callable[[AnyInitState], bool] | None = None
    parts: Mapping[str, Part] = field(default_factory=dict)
    largest: Mapping[str, float] = field(default_factory=dict)
    sends: str = "sums over samples"
    kinds: tuple[Kind, ...] = ("pixels", "sums")
    takes: tuple[DataKind, ...] = ("images", "vectors")
    exchange: Exchange[AnyInitState, Sums] = field(init=False)
    make: Callable[[Problem], ClusteringAlgorithm[Any]] = field(init=False)
    rounds: str = field(init=False)
    soft: bool = field(init=False)

    def __post_init__(self) -> None:
        """Set the attributes that depend on the functions and the sections."""
        sections: dict[str, type[Section]] = {"pixels": PixelsConfig, **self.sections}
        of_rounds = [name for name, kind in sections.items() if issubclass(kind, SumsConfig)]
        if not of_rounds:
            sections["sums"] = SumsConfig
        own = [] if self.by_nearest else ["pixels.assignment"]
        derived = {
            "exchange": self._exchange(),
            "make": partial(SumsClustering, self),
            "sections": sections,
            "rounds": f"{[*of_rounds, 'sums'][0]}.rounds",
            "ignores": tuple(dict.fromkeys([*self.ignores, *own])),
            "soft": self.probabilities is not None,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen

    @property
    def by_nearest(self) -> bool:
        """Whether each point is assigned to the nearest centroid."""
        return self.assign is None and self.probabilities is None

    def _exchange(self) -> Exchange[AnyInitState, Sums]:
        state, sums = self._returned_class("init"), self._returned_class("local")
        if InitState not in state.__mro__:
            raise UsageError(
                f"{self.title}: {state.__name__}, which init() returns, has no centroids: derive "
                "it from ccfcpp.plugin.InitState"
            )
        hints, parts = get_type_hints(sums), {**self.parts, **dict.fromkeys(self.largest, Sum())}
        if other := [name for name, kind in hints.items() if kind is not Tensor]:
            raise UsageError(
                f"{self.title}: field {other[0]!r} of {sums.__name__}, which local() returns, is "
                "no Tensor: make it one"
            )
        if unknown := find_unknown_part(parts, hints):
            raise UsageError(
                f"{self.title}: {sums.__name__}, which local() returns, has no field {unknown!r}, "
                f"which parts or largest name: it has {', '.join(hints)}"
            )
        declared = {**dict.fromkeys(hints, Sum()), **self.parts}
        exchange = Exchange("sums", state, sums, declared, images=Images(largest=self.largest))
        if not exchange.is_sum:
            raise UsageError(f"{self.title}: parts may be Sum() and Count() alone")
        return exchange

    def _returned_class(self, name: str) -> type[Any]:
        """Return the dataclass that the function ``name``, such as ``init``, says it returns."""
        with self.report_errors(name):
            kind = get_type_hints(getattr(self, name)).get("return")
        if not (isinstance(kind, type) and is_dataclass(kind)):
            raise UsageError(
                f"{self.title}: {name}() must say which dataclass it returns, as in -> State"
            )
        return kind

    def report_errors(self, name: str) -> AbstractContextManager[None]:
        """Return a context that turns an error in the named function into a ``UsageError``."""
        return one_line_errors(f"{self.title}: {name}()", self.init.__module__)

    def sums(self, state: AnyInitState, points: Tensor) -> dict[str, Tensor]:
        """Call ``local`` on points (samples, d); return its sums by field name, in float64."""
        with self.report_errors("local"):
            sums = _check_type(self.local(state, points), self.exchange.update)
            return {name: part.double() for name, part in pack(sums).items()}


def _check_type(value: T, expected: type[T]) -> T:
    """Return the value; raise ``TypeError`` if its type is not the expected one."""
    if type(value) is not expected:
        raise TypeError(f"it returns a {type(value).__name__}, and says {expected.__name__}")
    return value


@dataclass(frozen=True)
class SumsClientWork(SumOfClients[AnyInitState, Sums]):
    """Client side of a ``SumsSystem``'s exchange: sums over a client's points, block by block."""

    system: SumsSystem[AnyInitState, Sums]
    rule: PixelRule

    def of_client(self, message: AnyInitState, client: Client, randomness: Randomness) -> Sums:
        """Return the sums over a client's points; sums over too few points are 0."""
        width = required_centroids(message.centroids).numel()
        total: dict[str, Tensor] = {}
        for points in self.rule.blocks(client.images, width):
            for name, part in self._sum_block(message, points).items():
                total[name] = total[name] + part if name in total else part
        if spoilt := find_non_finite(total):
            raise UsageError(
                f"{self.system.title}: local() gives NaN or Inf in {spoilt!r} for {client.name}"
            )
        return unpack(self.exchange.update, self._drop_small_sums(total, len(client)))

    def _sum_block(self, state: AnyInitState, points: Tensor) -> dict[str, Tensor]:
        bounding = self.context.bounding
        if bounding is None:
            return self.system.sums(state, points)
        by_point = [self.system.sums(state, point) for point in torch.split(points, 1)]
        total = {}
        for name, like in by_point[0].items():
            rows = torch.stack([sums[name].flatten() for sums in by_point])
            total[name] = bounding.rows(self.exchange, name, rows).sum(dim=0).view_as(like)
        return total

    def _drop_small_sums(self, total: dict[str, Tensor], samples: int) -> dict[str, Tensor]:
        """Return the sums, but 0 for those over fewer than ``context.least`` points.

        The number of points is a row's count if it has one, or else ``samples``.
        """
        least, kept = self.context.least, {}
        for name, tensor in total.items():
            part = self.exchange.parts[name]
            count = name if isinstance(part, Count) else getattr(part, "count", None)
            points = tensor.new_tensor(samples) if count is None else total[count]
            enough = (points >= least).view(*points.shape, *[1] * (tensor.ndim - points.ndim))
            kept[name] = tensor * enough
        return kept


def _nearest(state: InitState, points: Tensor) -> Tensor:
    return assign_points(points, required_centroids(state.centroids))


class SumsClustering(
    InitBySums[AnyInitState],
    ServerWork[AnyInitState, AnyInitState, Sums],
    Generic[AnyInitState, Sums],
):
    """Algorithm of a ``SumsSystem``, which is also the server side of its exchange."""

    def __init__(self, system: SumsSystem[AnyInitState, Sums], problem: Problem) -> None:
        super().__init__(problem)
        self.system, self.exchange = system, system.exchange
        self.state_type = self.exchange.message
        self.rounds = problem.config.section(SumsConfig).rounds
        self.by_angle = self.by_angle and system.by_nearest

    def initial_state(self, randomness: Randomness) -> AnyInitState:
        """Return the initial state, by the system's ``init``."""
        return self._make_state("init", lambda: self.system.init(self.problem, randomness))

    def _make_state(self, name: str, make: Callable[[], AnyInitState]) -> AnyInitState:
        """Call ``make``, check its state and move it to the run's device; errors give ``name``."""
        with self.system.report_errors(name):
            packed = pack(_check_type(make(), self.state_type))
            if name == "update" and (spoilt := find_non_finite(packed)):
                raise ValueError(f"{spoilt} holds NaN or Inf")
            return unpack(self.state_type, to_device(packed, self.problem.device))

    def steps(self, number: int) -> Sequence[AnyServerWork]:
        """Return the exchange of a round."""
        return [self]

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the clients' work: sums for the initialisation and for the rounds."""
        own = SumsClientWork(self.exchange, context, self.system, self.rule)
        return ClientSide.of(SumCells(context, self.rule.points), own)

    def has_converged(self, state: AnyInitState) -> bool:
        """Return whether no round would change the state; False if clients may be absent."""
        ends = self.system.has_converged
        if ends is None or state.centroids is None or self.problem.config.availability.varies:
            return False
        with self.system.report_errors("has_converged"):
            return ends(state)

    def broadcast(self, state: AnyInitState) -> AnyInitState:
        """Return the message to clients: the state."""
        required_centroids(state.centroids)
        return state

    def update_format(self, message: AnyInitState) -> UpdateFormat:
        """Return an update's shapes and dtypes, from sums over two random points.

        Raises:
            UsageError: ``local`` of both points is not the sum of ``local`` of each.
        """
        shape, device = (2, self.rule.dimensions), self.problem.device
        points = torch.rand(shape, generator=Randomness(0).generator("points"))
        points = points.to(device, self.rule.dtype)
        both, *single = (
            self.system.sums(message, part) for part in (points, points[:1], points[1:])
        )
        for name, part in both.items():
            each = torch.stack([sums[name] for sums in single])
            if bool((each.sum() - part.sum()).abs() > _ROUNDING * each.abs().sum()):
                raise UsageError(
                    f"{self.system.title}: local() of two points is not the sum of local() of "
                    f"each in {name!r}: make it a sum over points"
                )
        return format_of(both)

    def check(self, message: AnyInitState, update: Sums, senders: Sequence[Member]) -> None:
        """Check that counts do not exceed the senders' samples, and that sums are not too large.

        Raises:
            RefusedUpdateError: A count or a sum is out of range.
        """
        samples = sum(sender.samples for sender in senders)
        for name, tensor in pack(update).items():
            if isinstance(self.exchange.parts[name], Count):
                check_counts(tensor, senders)
            elif bool((tensor.abs() > FARTHEST**2 * samples).any()):
                raise RefusedUpdateError(f"points in {name!r} lie beyond {FARTHEST:g}")

    def project_noisy(self, message: AnyInitState, update: Sums) -> Sums:
        """Set counts that noise made negative to 0."""
        parts = self.exchange.parts
        possible = {
            name: tensor.clamp(min=0) if isinstance(parts[name], Count) else tensor
            for name, tensor in pack(update).items()
        }
        return unpack(self.exchange.update, possible)

    def aggregate(
        self, state: AnyInitState, updates: Iterable[Sums], randomness: Randomness
    ) -> tuple[AnyInitState, Metrics]:
        """Return the next state, by the system's ``update``; its float fields are the metrics."""
        total = to_device(pack(sum_updates(updates)), self.problem.device)
        sums = unpack(self.exchange.update, total)
        after = self._make_state("update", lambda: self.system.update(state, sums))
        numbers = {each.name: getattr(after, each.name) for each in fields(after)}
        return after, {name: each for name, each in numbers.items() if isinstance(each, float)}

    def assign(self, state: AnyInitState, client: Client) -> Tensor:
        """Return the cluster of each sample, int64 of shape (samples,)."""
        own = self.system.assign is not None
        probabilities = None if own else self.probabilities(state, client)
        if probabilities is not None:
            return probabilities.argmax(dim=1)
        if self.by_angle:
            return super().assign(state, client)
        return self._apply_in_blocks("assign", self.system.assign or _nearest, state, client)

    def probabilities(self, known: AnyInitState, client: Client) -> Tensor | None:
        """Return the probability of each cluster, (samples, k); None if the system has none."""
        if self.system.probabilities is None:
            return None
        return self._apply_in_blocks("probabilities", self.system.probabilities, known, client)

    def _apply_in_blocks(
        self,
        name: str,
        function: Callable[[AnyInitState, Tensor], Tensor],
        state: AnyInitState,
        client: Client,
    ) -> Tensor:
        width = required_centroids(state.centroids).numel()
        with self.system.report_errors(name):
            return torch.cat([function(state, p) for p in self.rule.blocks(client.images, width)])

    def final_model(self, state: AnyInitState) -> AnyInitState:
        """Return the state, which clients need to assign samples."""
        return state
