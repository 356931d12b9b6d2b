"""The defence against hostile clients: a stage between clients' updates and their aggregation.

Robust means combine all updates into one, which the system aggregates in place of them. The rule
``bound`` clips each client's update.
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
"""The clients of an update (several for a sum), and the update."""

_BY_COORDINATE = ("median", "trimmed-mean")


Treatment = Callable[[object, Sequence[Received]], Iterable[object]]
"""Maps the message and all clients' updates, at least one, to the updates that are aggregated."""


class Defence:
    """Stage that applies the configured defence to the updates of every exchange.

    Args:
        exchanges: All exchanges of the system.
        invited: Number of clients that the server invites in a round.

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
        """Collect and check all updates, then yield the updates to aggregate."""
        treat = self._treatments.get(request.exchange.name)
        if treat is None:
            yield from inner(request)
            return
        replies: list[Reply] = []
        for reply in inner(request):
            try:
                update = check_reply(request, reply)
            except RefusedUpdateError as refusal:
                # Bytes of a refused update are counted, too.
                yield replace(reply, update=refusal, bytes_up=count_sent_bytes(reply))
                continue
            replies.append(replace(reply, update=update))
        if not replies:
            return
        with section("defence"):
            members = [[request.member[client] for client in each.clients] for each in replies]
            updates = [each.update for each in replies]
            treated = list(treat(request.message, list(zip(members, updates, strict=True))))
        sent = [count_sent_bytes(reply) for reply in replies]
        if len(treated) == len(replies):
            for update, reply, own in zip(treated, replies, sent, strict=True):
                marked = replace(reply, is_checked=True, made_of=(reply,), bytes_up=own)
                yield replace(marked, update=update)
            return
        marked = Reply(0, None, made_of=tuple(replies), is_checked=True, bytes_up=sum(sent))
        (update,) = treated
        yield combine_replies(update, replies, marked)


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
    """Return the defence's function on an exchange's updates; refuse a rule that does not fit."""
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
    """Callable that combines all clients' updates into a single one by a robust mean."""

    config: RobustMean
    parts: Mapping[str, Part]

    def __call__(self, message: object, received: Sequence[Received]) -> Iterable[object]:
        """Yield one update: robust means of models and centroids, summed counts, median metrics."""
        updates = [pack(update) for _, update in received]
        known = _known(self.parts, updates)
        models = [n for n, part in known.items() if isinstance(part, Mean) and not _is_metric(part)]
        found = self.model([{name: update[name] for name in models} for update in updates])
        for name, part in known.items():
            own = [update[name] for update in updates if name in update]
            if _is_metric(part):
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
        """Compute the robust mean of models with the same tensor names and shapes.

        Rules that use distances scale those of parameters and of BatchNorm's running statistics
        separately, so that neither hides the other. Integer tensors get the middle value.
        """
        floats = [name for name, entry in models[0].items() if entry.is_floating_point()]
        if self.config.rule in _BY_COORDINATE or not floats:
            estimate = make_estimator(self.config)
        else:
            weights = estimate_weights(self.config, _distances(models, floats))
            estimate = partial(weighted_mean, weights=weights)
        return {
            name: _estimate(estimate if name in floats else _middle_value, models, name)
            for name in models[0]
        }

    def _centres(
        self, name: str, part: Votes, local: list[Tensor], updates: Sequence[Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Cluster all clients' centroids by robust k-means; return centres and, if sent, sizes."""
        hostile = assumed_hostile(self.config.hostile, len(local))
        centres, labels = robust_kmeans(local, make_estimator(self.config), hostile)
        tensors = {name: centres}
        if part.weights is not None:
            weights = sibling_name(name, part.weights)
            sizes = torch.cat([update[weights] for update in updates if weights in update])
            total = sizes.new_zeros(len(centres)).index_add_(0, torch.cat(list(labels)), sizes)
            # A centre without a nearest centroid gets a small weight, not 0.
            tensors[weights] = total.clamp(min=1e-9)
        return tensors

    def _cluster_means(
        self, name: str, part: Sum, own: list[Tensor], updates: Sequence[Mapping[str, Tensor]]
    ) -> Tensor:
        """Compute each cluster's sum, (k, d): robust mean of the clients' means times the count."""
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
                # A hostile count may be so small that a mean is infinite: it is only far away then.
                total[cluster] = estimate(means.nan_to_num()) * size[cluster]
        return total


@dataclass(frozen=True)
class Bounded:
    """Callable that clips each client's update to bounds computed from the clients' medians.

    The norm of a model's change, a centroid, or a group of sums (per image if they are over images)
    is at most ``norm`` times the clients' median (Sun et al., *Can You Really Backdoor Federated
    Learning?*, 2019, with a fixed bound). A client counts for at most ``weight`` times as
    many images as the median client.
    """

    config: Bound
    exchange: AnyExchange

    def __call__(self, message: object, received: Sequence[Received]) -> Iterable[object]:
        """Yield the clipped updates, in the order of the clients."""
        samples = [float(sum(member.samples for member in members)) for members, _ in received]
        most = self.config.weight * statistics.median(samples)
        shares = [min(1.0, most / max(own, 1.0)) for own in samples]
        updates = [pack(update) for _, update in received]
        known = _known(self.exchange.parts, updates)
        means = [n for n, part in known.items() if isinstance(part, Mean) and not part.report]
        figures = [name for name in means if _is_metric(known[name])]
        floats = {n for own in updates for n, tensor in own.items() if tensor.is_floating_point()}
        models = [name for name in means if name in floats and name not in figures]
        parameters = [name for name in models if not is_statistic(name)]
        sent, ones = pack(message), [1.0] * len(samples)
        starts = {name: sent[name].double() for name in means if name in sent}
        for kind in (parameters, list(filter(is_statistic, models)), *([name] for name in figures)):
            self._bound(updates, kind, starts, ones)
        self._bound_votes(updates, [n for n, part in known.items() if isinstance(part, Votes)])
        # Sums of an update with a mean are over clients; other sums and counts are over images.
        kinds, held = (Sum, ones) if means else (Sum | Count, samples)
        tables = {n for own in updates for n, tensor in own.items() if tensor.ndim}
        sums = [n for n, part in known.items() if isinstance(part, kinds) and n in tables]
        for group in group_names(self.exchange.parts, sums).values():
            self._bound(updates, group, {}, held)
        for (_, update), tensors, share in zip(received, updates, shares, strict=True):
            yield unpack(type(update), tensors | self._scale(tensors, known, share))

    def _bound(
        self,
        updates: Sequence[dict[str, Tensor]],
        names: Sequence[str],
        starts: Mapping[str, Tensor],
        held: Sequence[float],
    ) -> None:
        """Clip in place each client's change from ``starts``, whose norm is divided by ``held``."""
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

    def _scale(
        self, tensors: Mapping[str, Tensor], known: Mapping[str, Part], share: float
    ) -> dict[str, Tensor]:
        """Multiply all sums and counts over images by ``share``, to limit the client's weight."""
        scaled = {}
        for name, tensor in tensors.items():
            if not isinstance(known[name], Sum | Count):
                continue
            scaled[name] = share * tensor.double()
            if not tensor.is_floating_point():
                # The server may divide by it: it stays at least 1 unless it was 0.
                scaled[name] = scaled[name].round().clamp(min=tensor.clamp(max=1).double())
            scaled[name] = scaled[name].to(tensor.dtype)
        return scaled


def _known(parts: Mapping[str, Part], updates: Sequence[Mapping[str, Tensor]]) -> dict[str, Part]:
    """Return the declaration of each tensor that is in any of the updates, by the tensor's name."""
    names = dict.fromkeys(name for update in updates for name in update)
    return {name: find_part(parts, name) for name in names}


def _is_metric(part: Part) -> bool:
    """Return whether a part is a metric: a mean that is optional, or used only in the report."""
    return isinstance(part, Mean) and (part.report or part.optional)


def _distances(models: Sequence[Mapping[str, Tensor]], names: Sequence[str]) -> Tensor:
    """Compute squared distances between models over a typical one, float64 (n, n) on the CPU."""
    total = torch.zeros(len(models), len(models), dtype=torch.float64)
    for kind in {is_statistic(name) for name in names}:
        of_kind = [name for name in names if is_statistic(name) == kind]
        squares = torch.zeros_like(total)
        for name in of_kind:
            squares += pairwise_squares(torch.stack([m[name].flatten() for m in models])).cpu()
        _, typical = most_central(squares)
        total += squares / typical if typical > 0 else squares
    return total


def _middle_value(points: Tensor) -> Tensor:
    """Return the middle value (upper median) of each coordinate of integer points (n, d)."""
    return points.sort(dim=0).values[len(points) // 2]


def _estimate(
    estimate: Callable[[Tensor], Tensor], models: Sequence[Mapping[str, Tensor]], name: str
) -> Tensor:
    like = models[0][name]
    return estimate(torch.stack([model[name].flatten() for model in models])).view(like.shape)


def _norm(parts: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in parts.values()))
