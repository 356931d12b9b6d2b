"""A system of clustering made of three functions: a start, a client's sums, and the next state.

In each round the server sends the state, each client computes sums from it and its own samples, and
the server computes the next state from their total. Since clients send only sums, such a system has
secure sums, differential privacy, defences, device failures, resumption and clients on other
machines without further code.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any, Generic, TypeVar, get_type_hints

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.kmeans.centroids import FARTHEST, AnyInitState, InitState, required_centroids
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
from ccfcpp.core.registry import in_one_line
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
    SummedWork,
    Task,
)
from ccfcpp.engine.payload import check_counts, not_finite, pack, sum_updates, unpack
from ccfcpp.engine.update_format import Count, Part, Sum, UpdateFormat, format_of, unknown_part
from ccfcpp.models.state import placed

Sums = TypeVar("Sums")
T = TypeVar("T")
_ROUNDING = 1e-3
"""Share of a sum that may be rounding, in single precision too."""


class SumsConfig(Section):
    """The section `sums`, from which a system may derive its own, with more settings."""

    rounds: Positive = 100
    """Largest number of rounds. If the library finds the first centroids, that takes the first
    round."""


@dataclass(frozen=True)
class SumsSystem(System, Generic[AnyInitState, Sums]):
    """A system made of three functions, of which the first two say what dataclass they return.

    Points are floats of shape (samples, d): vectors as they are, or images as the section
    ``pixels`` scales them. A section that derives from ``SumsConfig`` has the number of rounds;
    without one there is a section ``sums``.

    Attributes:
        init: Makes the first state, which derives from ``InitState``. If it has no centroids yet,
            the library finds them first, as it does for Fed-KM.
        local: Makes a client's sums of the state and of points: a dataclass of tensors, each a sum
            over the points. They are added up in double precision.
        update: Makes the next state of the state and the sums over all clients.
        assign: Finds the cluster of each point, int64 of shape (samples,). None: the one with the
            highest probability; without ``probabilities`` the one with the nearest centroid.
        probabilities: Finds the probability of each cluster, of shape (samples, k), if any.
        has_converged: Tells whether no further round would change a state.
        parts: The fields of the sums that are a ``Count()``, or a ``Sum(count=…)`` of as many
            rows; all others are a ``Sum()``.
        largest: Upper bound of the part of one point, by the name of the field, if that is
            known: noise that hides a point is then no larger than it must be.
        exchange: The exchange of a round, which follows from these.

    Raises:
        UsageError: The functions do not fit each other, or the library.
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
        """Fill in what follows from the functions and the sections."""
        sections: dict[str, type[Section]] = {"pixels": PixelsConfig, **self.sections}
        of_rounds = [name for name, kind in sections.items() if issubclass(kind, SumsConfig)]
        if not of_rounds:
            sections["sums"] = SumsConfig
        own = [] if self.by_nearest else ["pixels.assignment"]
        found = {
            "exchange": self._exchange(),
            "make": partial(SumsClustering, self),
            "sections": sections,
            "rounds": f"{[*of_rounds, 'sums'][0]}.rounds",
            "ignores": tuple(dict.fromkeys([*self.ignores, *own])),
            "soft": self.probabilities is not None,
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)  # it is frozen from here on

    @property
    def by_nearest(self) -> bool:
        """Whether points belong to the nearest centroid."""
        return self.assign is None and self.probabilities is None

    def _exchange(self) -> Exchange[AnyInitState, Sums]:
        state, sums = self._returned("init"), self._returned("local")
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
        if unknown := unknown_part(parts, hints):
            raise UsageError(
                f"{self.title}: {sums.__name__}, which local() returns, has no field {unknown!r}, "
                f"which parts or largest name: it has {', '.join(hints)}"
            )
        declared = {**dict.fromkeys(hints, Sum()), **self.parts}
        exchange = Exchange("sums", state, sums, declared, images=Images(largest=self.largest))
        if not exchange.is_sum:
            raise UsageError(f"{self.title}: parts may be Sum() and Count() alone")
        return exchange

    def _returned(self, name: str) -> type[Any]:
        with self.called(name):
            kind = get_type_hints(getattr(self, name)).get("return")
        if not (isinstance(kind, type) and is_dataclass(kind)):
            raise UsageError(
                f"{self.title}: {name}() must say which dataclass it returns, as in -> State"
            )
        return kind

    def called(self, name: str) -> AbstractContextManager[None]:
        """Turn an error in one of the functions into one line."""
        return in_one_line(f"{self.title}: {name}()", self.init.__module__)

    def sums(self, state: AnyInitState, points: Tensor) -> dict[str, Tensor]:
        """Return the sums over some points by name, in double precision."""
        with self.called("local"):
            found = _as_said(self.local(state, points), self.exchange.update)
            return {name: part.double() for name, part in pack(found).items()}


def _as_said(found: T, kind: type[T]) -> T:
    if type(found) is not kind:
        raise TypeError(f"it returns a {type(found).__name__}, and says {kind.__name__}")
    return found


@dataclass(frozen=True)
class SumsClientWork(SummedWork[AnyInitState, Sums]):
    """The clients' sums over blocks of points."""

    system: SumsSystem[AnyInitState, Sums]
    exchange: Exchange[AnyInitState, Sums]
    rule: PixelRule
    context: ClientContext

    def local_sum(
        self,
        task: Task,
        message: AnyInitState,
        clients: Sequence[Client],
        randomness: Randomness,
    ) -> Sums:
        """Sum over the clients' points in blocks, without sums over too few points."""
        return sum_updates(self._of(message, client) for client in clients)

    def _of(self, state: AnyInitState, client: Client) -> Sums:
        width = required_centroids(state.centroids).numel()
        total: dict[str, Tensor] = {}
        for points in self.rule.blocks(client.images, width):
            for name, part in self._of_block(state, points).items():
                total[name] = total[name] + part if name in total else part
        if spoilt := not_finite(total):
            raise UsageError(
                f"{self.system.title}: local() gives NaN or Inf in {spoilt!r} for {client.name}"
            )
        return unpack(self.exchange.update, self._told(total, len(client)))

    def _of_block(self, state: AnyInitState, points: Tensor) -> dict[str, Tensor]:
        bounding = self.context.bounding
        if bounding is None:
            return self.system.sums(state, points)
        each = [self.system.sums(state, point) for point in torch.split(points, 1)]
        found = {}
        for name, like in each[0].items():
            rows = torch.stack([one[name].flatten() for one in each])
            found[name] = bounding.rows(self.exchange, name, rows).sum(dim=0).view_as(like)
        return found

    def _told(self, total: dict[str, Tensor], samples: int) -> dict[str, Tensor]:
        """Set sums over too few points to 0: a row by its count, other parts by all points."""
        least, found = self.context.least, {}
        for name, tensor in total.items():
            part = self.exchange.parts[name]
            count = name if isinstance(part, Count) else getattr(part, "count", None)
            of = tensor.new_tensor(samples) if count is None else total[count]
            enough = (of >= least).view(*of.shape, *[1] * (tensor.ndim - of.ndim))
            found[name] = tensor * enough
        return found


def _nearest(state: InitState, points: Tensor) -> Tensor:
    return assign_points(points, required_centroids(state.centroids))


class SumsClustering(
    InitBySums[AnyInitState],
    ServerWork[AnyInitState, AnyInitState, Sums],
    Generic[AnyInitState, Sums],
):
    """The algorithm of a ``SumsSystem``, and the server's half of its exchange."""

    def __init__(self, system: SumsSystem[AnyInitState, Sums], problem: Problem) -> None:
        super().__init__(problem)
        self.system, self.exchange = system, system.exchange
        self.state_type = self.exchange.message
        self.rounds = problem.config.section(SumsConfig).rounds
        self.by_angle = self.by_angle and system.by_nearest

    def initial_state(self, randomness: Randomness) -> AnyInitState:
        """Return the first state of the system's function."""
        return self._kept("init", lambda: self.system.init(self.problem, randomness))

    def _kept(self, name: str, make: Callable[[], AnyInitState]) -> AnyInitState:
        """Make a state, and convert it as a checkpoint does, on the run's device."""
        with self.system.called(name):
            packed = pack(_as_said(make(), self.state_type))
            if name == "update" and (spoilt := not_finite(packed)):
                raise ValueError(f"{spoilt} holds NaN or Inf")
            return unpack(self.state_type, placed(packed, self.problem.device))

    def steps(self, number: int) -> Sequence[AnyServerWork]:
        """Return the exchange of a round."""
        return [self]

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the clients' work: sums for the start and for the steps."""
        own = SumsClientWork(self.system, self.exchange, self.rule, context)
        return ClientSide.of(SumCells(context, self.rule.points), own)

    def has_converged(self, state: AnyInitState) -> bool:
        """Return whether no round would change the state; False if clients may be absent."""
        ends = self.system.has_converged
        if ends is None or state.centroids is None or self.problem.config.availability.varies:
            return False
        with self.system.called("has_converged"):
            return ends(state)

    def broadcast(self, state: AnyInitState) -> AnyInitState:
        """Return the message to clients: the state."""
        required_centroids(state.centroids)
        return state

    def update_format(self, message: AnyInitState) -> UpdateFormat:
        """Return an update's shapes and dtypes, found by sums over made-up points."""
        shape, device = (2, self.rule.dimensions), self.problem.device
        points = torch.rand(shape, generator=Randomness(0).generator("points"))
        points = points.to(device, self.rule.dtype)
        both, *single = (
            self.system.sums(message, some) for some in (points, points[:1], points[1:])
        )
        for name, part in both.items():
            each = torch.stack([one[name] for one in single])
            if bool((each.sum() - part.sum()).abs() > _ROUNDING * each.abs().sum()):
                raise UsageError(
                    f"{self.system.title}: local() of two points is not the sum of local() of "
                    f"each in {name!r}: make it a sum over points"
                )
        return format_of(both)

    def check(self, message: AnyInitState, update: Sums, senders: Sequence[Member]) -> None:
        """Refuse counts that the senders cannot hold, and sums of points that lie far off.

        Raises:
            RefusedUpdateError: It cannot be used.
        """
        held = sum(sender.samples for sender in senders)
        for name, tensor in pack(update).items():
            if isinstance(self.exchange.parts[name], Count):
                check_counts(tensor, senders)
            elif bool((tensor.abs() > FARTHEST**2 * held).any()):
                raise RefusedUpdateError(f"points in {name!r} lie beyond {FARTHEST:g}")

    def project_noisy(self, message: AnyInitState, update: Sums) -> Sums:
        """Set counts that noise made negative to 0."""
        parts = self.exchange.parts
        nearest = {
            name: tensor.clamp(min=0) if isinstance(parts[name], Count) else tensor
            for name, tensor in pack(update).items()
        }
        return unpack(self.exchange.update, nearest)

    def aggregate(
        self, state: AnyInitState, updates: Iterable[Sums], randomness: Randomness
    ) -> tuple[AnyInitState, Metrics]:
        """Return the next state by the system's function of the total; report its numbers."""
        total = placed(pack(sum_updates(updates)), self.problem.device)
        sums = unpack(self.exchange.update, total)
        after = self._kept("update", lambda: self.system.update(state, sums))
        numbers = {each.name: getattr(after, each.name) for each in fields(after)}
        return after, {name: each for name, each in numbers.items() if isinstance(each, float)}

    def assign(self, state: AnyInitState, client: Client) -> Tensor:
        """Assign each sample to a cluster, int64 of shape (samples,)."""
        found = self.probabilities(state, client) if self.system.assign is None else None
        if found is not None:
            return found.argmax(dim=1)
        if self.by_angle:
            return super().assign(state, client)
        return self._of_points("assign", self.system.assign or _nearest, state, client)

    def probabilities(self, known: AnyInitState, client: Client) -> Tensor | None:
        """Return the probability of each cluster, of shape (samples, k), if there are any."""
        if self.system.probabilities is None:
            return None
        return self._of_points("probabilities", self.system.probabilities, known, client)

    def _of_points(
        self,
        name: str,
        function: Callable[[AnyInitState, Tensor], Tensor],
        state: AnyInitState,
        client: Client,
    ) -> Tensor:
        width = required_centroids(state.centroids).numel()
        with self.system.called(name):
            return torch.cat([function(state, p) for p in self.rule.blocks(client.images, width)])

    def final_model(self, state: AnyInitState) -> AnyInitState:
        """Return the state, which clients need to assign samples."""
        return state
