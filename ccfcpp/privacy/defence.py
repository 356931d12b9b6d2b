"""What stands between accepted updates and their aggregation where clients may be hostile.

A robust mean needs all updates at once. It gives the aggregation one update that stands for all, so
that a system has it without a line of its own; ``bound`` gives an update for each.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from ccfcpp.core.errors import UsageError
from ccfcpp.core.profiling import section
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import Exchange
from ccfcpp.engine.payload import pack, unpack
from ccfcpp.models.state import ModelState
from ccfcpp.privacy.dp_mechanism import groups
from ccfcpp.privacy.estimators import (
    Estimator,
    estimator,
    hostile_of,
    most_central,
    squared_distances,
    weighted_mean,
    weights_by,
)
from ccfcpp.privacy.hostile_config import DefenceConfig
from ccfcpp.privacy.robust_centroids import robust_kmeans

Received = tuple[Sequence[Member], Any]
"""Whose update it is, and the update."""

_STATISTICS = ("running_mean", "running_var")
_BY_COORDINATE = ("median", "trimmed-mean")


class Treatment(Protocol):
    """What becomes of the updates of an exchange."""

    def __call__(self, message: Any, received: Sequence[Received]) -> Iterable[Any]:
        """The updates that are aggregated, from those of all clients, one at least."""
        ...


class Defence:
    """A rule for all exchanges of a system.

    Args:
        config: The rule.
        system: The system's name.
        exchanges: All that its clients can be asked for.
        invited: How many clients the server asks in a round.

    Raises:
        UsageError: The rule does not fit the system, or the number of clients.
    """

    def __init__(
        self,
        config: DefenceConfig,
        system: str,
        exchanges: Iterable[Exchange[Any, Any]],
        invited: int,
    ) -> None:
        self.config = config
        _check_enough(config, invited)
        self._treatments: dict[str, Treatment] = {}
        for exchange in exchanges:
            if exchange.travels:
                self._treatments[exchange.name] = _treatment(config, system, exchange)

    def combined(
        self, exchange: Exchange[Any, Any], message: Any, received: Iterator[Received]
    ) -> Iterator[Any]:
        """The updates that are aggregated. They begin once all have come.

        Args:
            exchange: Whose updates they are.
            message: What went down.
            received: What was accepted.
        """
        treat = self._treatments.get(exchange.name)
        if treat is None:
            yield from (update for _, update in received)
            return
        if kept := list(received):
            with section("defence"):
                found = list(treat(message, kept))
            yield from found


def _check_enough(config: DefenceConfig, invited: int) -> None:
    beyond_twice = {"trimmed-mean": 1, "krum": 3, "multi-krum": 3}
    if config.rule not in beyond_twice:
        return
    hostile = math.ceil(config.hostile * invited - 1e-9)
    least = 2 * hostile + beyond_twice[config.rule]
    if invited < least:
        raise UsageError(
            f"defence.rule = {config.rule} with defence.hostile = {config.hostile:g} takes "
            f"{hostile} of {invited} clients to be hostile, for which it needs {least}: give a "
            "smaller share, or take median or geometric-median"
        )


def _treatment(config: DefenceConfig, system: str, exchange: Exchange[Any, Any]) -> Treatment:
    """What a rule does to the updates of an exchange.

    Raises:
        UsageError: It cannot do anything.
    """
    fields = {field.name for field in dataclasses.fields(exchange.update)}
    models = exchange.averaged or {"model", "local"} <= fields
    if config.rule == "bound":
        if models or exchange.summed or "centroids" in fields:
            return Bounded(config, models)
    elif models:
        return RobustModel(config)
    elif "centroids" in fields:
        return RobustCentroids(config)
    elif exchange.summed and fields == {"sums", "counts"}:
        return RobustMeans(estimator(config))
    elif exchange.summed:
        raise UsageError(
            f"defence.rule = {config.rule}: in {system}'s exchange {exchange.name!r} the server "
            "needs the sum over all clients, which no robust mean stands for: take bound"
        )
    raise UsageError(
        f"defence.rule = {config.rule}: in {system}'s exchange {exchange.name!r} the server needs "
        "each client's part as it is: leave the rule out, or take a system whose models are means"
    )


@dataclasses.dataclass(frozen=True)
class RobustModel:
    """One model for all clients' models; and where centroids come with them, one set of these.

    By rules that go by distances, parameters and batch normalisation's running statistics are each
    taken by the median of their own distances, so that neither hides the other. Of an integer entry
    the value in the middle is taken.

    Attributes:
        config: The rule.
    """

    config: DefenceConfig

    def __call__(self, message: Any, received: Sequence[Received]) -> Iterable[Any]:
        """A single update."""
        updates = [update for _, update in received]
        known: dict[str, Any] = {
            "model": self.model([update.model for update in updates]),
            "samples": sum(update.samples for update in updates),
            "loss": _middle([update.loss for update in updates if update.loss is not None]),
        }
        if local := [u.local for u in updates if getattr(u, "local", None) is not None]:
            known["local"] = RobustCentroids(self.config).combined(local)
        yield dataclasses.replace(updates[0], **known)

    def model(self, models: Sequence[Mapping[str, Tensor]]) -> ModelState:
        """The robust mean of some models of the same entries."""
        floats = [name for name, entry in models[0].items() if entry.is_floating_point()]
        if self.config.rule in _BY_COORDINATE:
            estimate = estimator(self.config)
        else:
            estimate = partial(
                weighted_mean, weights=weights_by(self.config, self._distances(models, floats))
            )
        return {
            name: _entry(estimate if name in floats else _in_the_middle, models, name)
            for name in models[0]
        }

    def _distances(self, models: Sequence[Mapping[str, Tensor]], names: Sequence[str]) -> Tensor:
        """Squared distances between models, float64 of shape (n, n) on the CPU."""
        total = torch.zeros(len(models), len(models), dtype=torch.float64)
        kinds = [name.endswith(_STATISTICS) for name in names]
        for kind in set(kinds):
            of_kind = [name for name, its in zip(names, kinds, strict=True) if its == kind]
            squares = sum(
                squared_distances(torch.stack([model[name].flatten() for model in models])).cpu()
                for name in of_kind
            )
            assert isinstance(squares, Tensor)
            _, typical = most_central(squares)
            total += squares / typical if typical > 0 else squares
        return total


@dataclasses.dataclass(frozen=True)
class RobustCentroids:
    """One set of centroids for all clients', by votes.

    Attributes:
        config: The rule by which a centroid comes of its votes.
    """

    config: DefenceConfig

    def __call__(self, message: Any, received: Sequence[Received]) -> Iterable[Any]:
        """A single update."""
        yield self.combined([update for _, update in received])

    def combined(self, updates: Sequence[Any]) -> Any:
        """An update whose sizes, where it has such, are those of all clients together."""
        local = [update.centroids for update in updates]
        hostile = hostile_of(self.config.hostile, len(local))
        centres, labels = robust_kmeans(local, estimator(self.config), hostile)
        known = {"centroids": centres}
        for name in ("sizes", "supports"):
            if hasattr(updates[0], name):
                sizes = torch.cat([getattr(update, name) for update in updates])
                total = sizes.new_zeros(len(centres))
                # A centre that no centroid is nearest to stands for something all the same.
                known[name] = total.index_add_(0, torch.cat(list(labels)), sizes).clamp(min=1e-9)
        return dataclasses.replace(updates[0], **known)


@dataclasses.dataclass(frozen=True)
class RobustMeans:
    """Sums and counts of clusters: a client votes by its mean of each cluster that it holds.

    Attributes:
        estimate: What a cluster's mean is of the votes.
    """

    estimate: Estimator

    def __call__(self, message: Any, received: Sequence[Received]) -> Iterable[Any]:
        """A single update, whose sums and counts have the robust means."""
        updates = [update for _, update in received]
        sums = torch.stack([update.sums for update in updates])
        counts = torch.stack([update.counts for update in updates])
        total = torch.zeros_like(sums[0])
        size = counts.clamp(min=0).sum(dim=0)
        for cluster in range(sums.shape[1]):
            votes = counts[:, cluster] > 0
            if bool(votes.any()):
                means = sums[votes, cluster] / counts[votes, cluster].unsqueeze(1)
                total[cluster] = self.estimate(means) * size[cluster]
        yield dataclasses.replace(updates[0], sums=total, counts=size)


@dataclasses.dataclass(frozen=True)
class Bounded:
    """An update for each client, within bounds that follow from the clients' median.

    A model's change, or a group of sums for each image, is scaled down to ``norm`` times the median
    of the norms (Sun et al., *Can You Really Backdoor Federated Learning?*, 2019, with a bound that
    is not given but found); and a client counts for ``weight`` times as many images as the median
    client at most.

    Attributes:
        config: The bounds.
        models: Whether updates hold models.
    """

    config: DefenceConfig
    models: bool

    def __call__(self, message: Any, received: Sequence[Received]) -> Iterable[Any]:
        """The updates, in their order."""
        samples = [float(sum(member.samples for member in members)) for members, _ in received]
        most = self.config.weight * statistics.median(samples)
        shares = [min(1.0, most / max(own, 1.0)) for own in samples]
        updates = [update for _, update in received]
        if self.models:
            yield from self._models(message, updates, shares)
        elif hasattr(updates[0], "centroids"):
            yield from self._centroids(updates, shares)
        else:
            yield from self._sums(updates, samples, shares)

    def _models(
        self, message: Any, updates: Sequence[Any], shares: Sequence[float]
    ) -> Iterator[Any]:
        kinds = [
            [name for name in message.model if wanted(name)]
            for wanted in (_is_parameter(message.model), _is_statistic)
        ]
        factors = [
            self._factors([_norm(_change(message.model, u.model, names)) for u in updates])
            for names in kinds
        ]
        for number, (update, share) in enumerate(zip(updates, shares, strict=True)):
            model = dict(update.model)
            for names, factor in zip(kinds, factors, strict=True):
                for name, change in _change(message.model, update.model, names).items():
                    entry = message.model[name]
                    model[name] = (entry.double() + factor[number] * change).to(entry.dtype)
            known: dict[str, Any] = {
                "model": model,
                "samples": max(1, round(share * update.samples)),
            }
            yield dataclasses.replace(update, **known)

    def _centroids(self, updates: Sequence[Any], shares: Sequence[float]) -> Iterator[Any]:
        norms = [update.centroids.double().norm(dim=1) for update in updates]
        longest = self.config.norm * float(torch.cat(norms).median())
        for update, own, share in zip(updates, norms, shares, strict=True):
            factors = (longest / own.clamp(min=1e-300)).clamp(max=1).unsqueeze(1)
            known = {"centroids": (update.centroids * factors).to(update.centroids.dtype)}
            for name in ("sizes", "supports"):
                if hasattr(update, name):
                    known[name] = share * getattr(update, name)
            yield dataclasses.replace(update, **known)

    def _sums(
        self, updates: Sequence[Any], samples: Sequence[float], shares: Sequence[float]
    ) -> Iterator[Any]:
        parts = [pack(update) for update in updates]
        for names in groups(parts[0]).values():
            of_image = [
                _norm({name: own[name] for name in names}) / max(held, 1.0)
                for own, held in zip(parts, samples, strict=True)
            ]
            for own, factor, share in zip(parts, self._factors(of_image), shares, strict=True):
                for name in names:
                    own[name] = (share * factor * own[name].double()).to(own[name].dtype)
        yield from (unpack(type(update), own) for update, own in zip(updates, parts, strict=True))

    def _factors(self, norms: Sequence[float]) -> list[float]:
        """By how much each of some is scaled down."""
        longest = self.config.norm * statistics.median(norms)
        return [1.0 if norm <= longest else longest / norm for norm in norms]


def _middle(losses: Sequence[float]) -> float | None:
    return statistics.median(losses) if losses else None


def _in_the_middle(points: Tensor) -> Tensor:
    """One of the values of each coordinate, for what has no mean."""
    return points.sort(dim=0).values[len(points) // 2]


def _entry(
    estimate: Callable[[Tensor], Tensor], models: Sequence[Mapping[str, Tensor]], name: str
) -> Tensor:
    like = models[0][name]
    return estimate(torch.stack([model[name].flatten() for model in models])).view(like.shape)


def _is_statistic(name: str) -> bool:
    return name.endswith(_STATISTICS)


def _is_parameter(model: Mapping[str, Tensor]) -> Callable[[str], bool]:
    return lambda name: model[name].is_floating_point() and not _is_statistic(name)


def _change(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], names: Sequence[str]
) -> dict[str, Tensor]:
    return {name: after[name].double() - before[name].double() for name in names}


def _norm(parts: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in parts.values()))
