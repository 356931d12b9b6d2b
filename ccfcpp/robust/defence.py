"""The defence against hostile clients, between accepted updates and their aggregation.

A robust mean needs all updates at once. It gives the aggregation one update in place of all, so
that every system has it without further code; ``bound`` keeps an update for each client.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.profiling import section
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import AnyExchange, RefusedUpdateError
from ccfcpp.engine.payload import pack, unpack
from ccfcpp.engine.stages import (
    Deliver,
    ExchangeRequest,
    check_reply,
    combine_replies,
    count_sent_bytes,
)
from ccfcpp.engine.transport import Reply
from ccfcpp.engine.update_format import (
    Count,
    Mean,
    Opaque,
    Part,
    Sum,
    Votes,
    find_part,
    group_names,
    is_statistic,
    sibling_name,
)
from ccfcpp.robust.centroids import robust_kmeans
from ccfcpp.robust.config import Bound, DefenceConfig, RobustMean
from ccfcpp.robust.estimators import (
    assumed_hostile,
    estimate_weights,
    make_estimator,
    most_central,
    pairwise_squares,
    weighted_mean,
)

Received = tuple[Sequence[Member], object]
"""The clients of an update, and the update."""

_BY_COORDINATE = ("median", "trimmed-mean")


Treatment = Callable[[object, Sequence[Received]], Iterable[object]]
"""Takes the message and all clients' updates, one at least; gives those that are aggregated."""


class Defence:
    """Stage that applies the configured defence to the updates of every exchange.

    Raises:
        UsageError: The rule does not fit the system, or the number of clients.
    """

    def __init__(
        self,
        config: DefenceConfig,
        system: str,
        exchanges: Iterable[AnyExchange],
        invited: int,
    ) -> None:
        self.config = config
        _check_enough(config, invited)
        self._treatments: dict[str, Treatment] = {}
        for exchange in exchanges:
            if exchange.travels:
                self._treatments[exchange.name] = _treatment(config, system, exchange)

    def deliver(self, request: ExchangeRequest, inner: Deliver) -> Iterator[Reply]:
        """Check all updates, and once all have come, yield those to aggregate."""
        treat = self._treatments.get(request.exchange.name)
        if treat is None:
            yield from inner(request)
            return
        replies: list[Reply] = []
        for reply in inner(request):
            try:
                update = check_reply(request, reply)
            except RefusedUpdateError as refusal:
                # What has come counts, also where it cannot be used.
                yield replace(reply, update=refusal, bytes_up=count_sent_bytes(reply))
                continue
            replies.append(replace(reply, update=update))
        if not replies:
            return
        with section("defence"):
            members = [[request.member[client] for client in each.clients] for each in replies]
            updates = [each.update for each in replies]
            found = list(treat(request.message, list(zip(members, updates, strict=True))))
        sent = [count_sent_bytes(reply) for reply in replies]
        if len(found) == len(replies):
            for update, reply, own in zip(found, replies, sent, strict=True):
                said = replace(reply, is_checked=True, made_of=(reply,), bytes_up=own)
                yield replace(said, update=update)
            return
        said = Reply(0, None, made_of=tuple(replies), is_checked=True, bytes_up=sum(sent))
        (update,) = found
        yield combine_replies(update, replies, said)


def _check_enough(config: DefenceConfig, invited: int) -> None:
    beyond_twice = {"trimmed-mean": 1, "krum": 3, "multi-krum": 3}
    if not isinstance(config, RobustMean) or config.rule not in beyond_twice:
        return
    hostile = math.ceil(config.hostile * invited - 1e-9)
    least = 2 * hostile + beyond_twice[config.rule]
    if invited < least:
        raise UsageError(
            KeyValue("defence.rule", config.rule),
            " with ",
            KeyValue("defence.hostile", config.hostile),
            f" takes {hostile} of {invited} clients to be hostile, for which it needs {least}: "
            "give a smaller share, or take median or geometric-median",
        )


def _treatment(config: DefenceConfig, system: str, exchange: AnyExchange) -> Treatment:
    """Return the treatment of the updates of an exchange, by the meaning of their parts."""
    parts = exchange.parts
    rule = KeyValue("defence.rule", config.rule)
    where = f": in {system}'s exchange {exchange.name!r} the server"
    for name, part in (parts or {"update": Opaque()}).items():
        if isinstance(part, Opaque) or (isinstance(part, Mean) and part.separate):
            raise UsageError(
                rule,
                f"{where} needs each client's part {name!r} as it is: leave the rule out, or take "
                "a system whose models are means",
            )
        if isinstance(config, Bound):
            continue
        if isinstance(part, Sum) and part.count is None:
            raise UsageError(
                rule,
                f"{where} needs the sum of {name!r} over all clients, which no robust mean stands "
                "for: take bound",
            )
        if isinstance(part, Votes) and part.partial:
            raise UsageError(
                rule,
                f"{where} may get {name!r} of some clusters alone from a client, and the rule "
                "needs a vote for each: leave the rule out, or have clients send all centroids",
            )
    if isinstance(config, Bound):
        return Bounded(config, exchange)
    assert isinstance(config, RobustMean)
    return Robust(config, parts)


@dataclass(frozen=True)
class Robust:
    """A single robust update in place of all clients' updates."""

    config: RobustMean
    parts: Mapping[str, Part]

    def __call__(self, message: object, received: Sequence[Received]) -> Iterable[object]:
        """Combine the updates into a single one."""
        updates = [pack(update) for _, update in received]
        known = _known(self.parts, updates)
        models = [n for n, part in known.items() if isinstance(part, Mean) and not _is_figure(part)]
        found = self.model([{name: update[name] for name in models} for update in updates])
        for name, part in known.items():
            own = [update[name] for update in updates if name in update]
            if _is_figure(part):
                middle = statistics.median(map(float, own))
                found[name] = torch.tensor(middle, dtype=own[0].dtype)
            elif isinstance(part, Votes):
                found |= self._centres(name, part, own, updates)
            elif isinstance(part, Sum):
                found[name] = self._cluster_means(name, part, own, updates)
            elif isinstance(part, Count) and name not in found and not self._weighs_votes(name):
                found[name] = torch.stack(own).clamp(min=0).sum(dim=0)
        yield unpack(type(received[0][1]), found)

    def _weighs_votes(self, name: str) -> bool:
        return any(
            isinstance(part, Votes) and part.weights and sibling_name(key, part.weights) == name
            for key, part in self.parts.items()
        )

    def model(self, models: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Compute the robust mean of some models of the same entries.

        By rules that use distances, parameters and batch normalisation's running statistics are
        weighted by distances of their own, so that neither hides the other. Of an
        integer entry the middle value is taken.
        """
        floats = [name for name, entry in models[0].items() if entry.is_floating_point()]
        if self.config.rule in _BY_COORDINATE or not floats:
            estimate = make_estimator(self.config)
        else:
            weights = estimate_weights(self.config, _distances(models, floats))
            estimate = partial(weighted_mean, weights=weights)
        return {
            name: _entry(estimate if name in floats else _in_the_middle, models, name)
            for name in models[0]
        }

    def _centres(
        self, name: str, part: Votes, local: list[Tensor], updates: Sequence[Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Compute one set of centroids by votes; their sizes are those of all clients together."""
        hostile = assumed_hostile(self.config.hostile, len(local))
        centres, labels = robust_kmeans(local, make_estimator(self.config), hostile)
        found = {name: centres}
        if part.weights is not None:
            weights = sibling_name(name, part.weights)
            sizes = torch.cat([update[weights] for update in updates if weights in update])
            total = sizes.new_zeros(len(centres)).index_add_(0, torch.cat(list(labels)), sizes)
            # A centre counts even where no centroid is nearest to it.
            found[weights] = total.clamp(min=1e-9)
        return found

    def _cluster_means(
        self, name: str, part: Sum, own: list[Tensor], updates: Sequence[Mapping[str, Tensor]]
    ) -> Tensor:
        """Compute sums with robust means: a client votes by its mean of each cluster it holds."""
        assert part.count is not None
        sums = torch.stack(own)
        counts = torch.stack([update[sibling_name(name, part.count)] for update in updates])
        total = torch.zeros_like(sums[0])
        size = counts.clamp(min=0).sum(dim=0)
        estimate = make_estimator(self.config)
        for cluster in range(sums.shape[1]):
            votes = counts[:, cluster] > 0
            if bool(votes.any()):
                means = sums[votes, cluster] / counts[votes, cluster].unsqueeze(1)
                total[cluster] = estimate(means) * size[cluster]
        return total


@dataclass(frozen=True)
class Bounded:
    """An update for each client, within bounds that follow from the clients' median.

    A model's change, a centroid, or a group of sums (for each image if they are over images) is
    scaled down to ``norm`` times the median of the norms (Sun et al., *Can You Really Backdoor
    Federated Learning?*, 2019, with a bound that is computed, not given); and a client counts for
    at most ``weight`` times as many images as the median client.
    """

    config: Bound
    exchange: AnyExchange

    def __call__(self, message: object, received: Sequence[Received]) -> Iterable[object]:
        """Bound the updates, in their order."""
        samples = [float(sum(member.samples for member in members)) for members, _ in received]
        most = self.config.weight * statistics.median(samples)
        shares = [min(1.0, most / max(own, 1.0)) for own in samples]
        updates = [pack(update) for _, update in received]
        known = _known(self.exchange.parts, updates)
        means = [n for n, part in known.items() if isinstance(part, Mean) and not part.report]
        figures = [name for name in means if _is_figure(known[name])]
        floats = {n for own in updates for n, tensor in own.items() if tensor.is_floating_point()}
        models = [name for name in means if name in floats and name not in figures]
        parameters = [name for name in models if not is_statistic(name)]
        sent, ones = pack(message), [1.0] * len(samples)
        starts = {name: sent[name].double() for name in means if name in sent}
        for kind in (parameters, list(filter(is_statistic, models)), *([name] for name in figures)):
            self._bound(updates, kind, starts, ones)
        self._bound_votes(updates, [n for n, part in known.items() if isinstance(part, Votes)])
        # Beside a mean there are sums over clients; else they are over images, and so are counts.
        kinds, held = (Sum, ones) if means else (Sum | Count, samples)
        tables = {n for own in updates for n, tensor in own.items() if tensor.ndim}
        sums = [n for n, part in known.items() if isinstance(part, kinds) and n in tables]
        for group in group_names(self.exchange.parts, sums).values():
            self._bound(updates, group, {}, held)
        for (_, update), tensors, share in zip(received, updates, shares, strict=True):
            yield unpack(type(update), tensors | self._weighed(tensors, known, share))

    def _bound(
        self,
        updates: Sequence[dict[str, Tensor]],
        names: Sequence[str],
        starts: Mapping[str, Tensor],
        held: Sequence[float],
    ) -> None:
        """Clip each client's change from ``starts``, by its norm over its weight in ``held``."""
        there = [(own, n) for own, n in zip(updates, held, strict=True) if own.keys() & {*names}]
        changes = [
            {name: own[name].double() - starts.get(name, 0.0) for name in names if name in own}
            for own, _ in there
        ]
        norms = [_norm(each) / max(n, 1.0) for each, (_, n) in zip(changes, there, strict=True)]
        longest = self.config.norm * statistics.median(norms) if norms else 0.0
        for (own, _), change, norm in zip(there, changes, norms, strict=True):
            factor = 1.0 if norm <= longest else longest / norm
            for name, moved in change.items():
                own[name] = (starts.get(name, 0.0) + factor * moved).to(own[name].dtype)

    def _bound_votes(self, updates: Sequence[dict[str, Tensor]], names: Sequence[str]) -> None:
        for name in names:
            there = [update for update in updates if name in update]
            norms = [update[name].double().norm(dim=1) for update in there]
            longest = self.config.norm * float(torch.cat(norms).median())
            for update, own in zip(there, norms, strict=True):
                factors = (longest / own.clamp(min=1e-300)).clamp(max=1).unsqueeze(1)
                update[name] = (update[name] * factors).to(update[name].dtype)

    def _weighed(
        self, tensors: Mapping[str, Tensor], known: Mapping[str, Part], share: float
    ) -> dict[str, Tensor]:
        """Multiply all sums and counts over images by ``share``, to limit the client's weight."""
        found = {}
        for name, tensor in tensors.items():
            if not isinstance(known[name], Sum | Count):
                continue
            found[name] = share * tensor.double()
            if not tensor.is_floating_point():
                # The server may divide by it: what is not 0 stays so.
                found[name] = found[name].round().clamp(min=tensor.clamp(max=1).double())
            found[name] = found[name].to(tensor.dtype)
        return found


def _known(parts: Mapping[str, Part], updates: Sequence[Mapping[str, Tensor]]) -> dict[str, Part]:
    """Return the meaning of each tensor of some updates, also of those that some clients lack."""
    names = dict.fromkeys(name for update in updates for name in update)
    return {name: find_part(parts, name) for name in names}


def _is_figure(part: Part) -> bool:
    """Return whether a part is a mean that is optional, or that only the report needs."""
    return isinstance(part, Mean) and (part.report or part.optional)


def _distances(models: Sequence[Mapping[str, Tensor]], names: Sequence[str]) -> Tensor:
    """Compute squared distances between models, float64 of shape (n, n) on the CPU."""
    total = torch.zeros(len(models), len(models), dtype=torch.float64)
    for kind in {is_statistic(name) for name in names}:
        of_kind = [name for name in names if is_statistic(name) == kind]
        squares = torch.zeros_like(total)
        for name in of_kind:
            squares += pairwise_squares(torch.stack([m[name].flatten() for m in models])).cpu()
        _, typical = most_central(squares)
        total += squares / typical if typical > 0 else squares
    return total


def _in_the_middle(points: Tensor) -> Tensor:
    """Return the middle value of each coordinate, for integers."""
    return points.sort(dim=0).values[len(points) // 2]


def _entry(
    estimate: Callable[[Tensor], Tensor], models: Sequence[Mapping[str, Tensor]], name: str
) -> Tensor:
    like = models[0][name]
    return estimate(torch.stack([model[name].flatten() for model in models])).view(like.shape)


def _norm(parts: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in parts.values()))
