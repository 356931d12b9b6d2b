"""Server side of Fed-SCAN apart from training steps: merging over-clusters, computing centres."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import rank_candidates
from ccfcpp.clustering.kmeans.centroids import ClusterSums, SumsWork, cluster_means
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.systems.fed_scan.merging import (
    Rule,
    evidence,
    merge_overclusters,
    renumber_like,
)
from ccfcpp.clustering.systems.fed_scan.messages import (
    CENTRES,
    TRANSITIONS,
    OwnTransitions,
    Transitions,
)
from ccfcpp.clustering.systems.fed_scan.network import MERGE
from ccfcpp.core.errors import FederationError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import Metrics, ServerWork
from ccfcpp.engine.payload import check_counts, pack, sum_updates
from ccfcpp.engine.synchronised.server import add_absent_parts, client_part_name
from ccfcpp.engine.update_format import Spec, UpdateFormat, format_of
from ccfcpp.models.state import ModelState


def snapshot(state: EncoderState) -> EncoderState:
    """Return the part of a state that clients need to assign images.

    Raises:
        FederationError: No step was made yet, or over-clusters have not been merged.
    """
    if state.version == 0 or state.groups is None:
        raise FederationError(
            "no client has contributed to a step: see the refused updates above, or lower "
            "availability.dropout_rate"
        )
    return EncoderState(state.model, state.version, groups=state.groups)


_LEAST_SHARE = 1e-4
"""Smallest target share of images of a cluster in training."""

_PART = "transitions/"
"""Prefix of the names under which the state keeps each client's last sums."""

M = TypeVar("M", bound=EncoderState)


@dataclass(frozen=True)
class MergeOverclusters(ServerWork[M, EncoderState, Transitions]):
    """Server side of the merge of over-clusters into k clusters.

    Attributes:
        clusters: Number of clusters k, or its largest candidate.
        overclusters: Number m of over-clusters.
        folds: Number of folds (random subsets) of the images, to choose k; 1 if k is known.
        fewest: Smallest candidate for k if k is chosen from the data; else 0.
        rule: The measure that the merge maximises (module ``merging``).
        trained: Whether the next steps train the merged clusters.
        again: Whether this repeats a merge, in case the earlier one could not be trained.
    """

    clusters: int
    overclusters: int
    folds: int = 1
    fewest: int = 0
    rule: Rule = "both"
    trained: bool = False
    again: bool = False
    exchange = TRANSITIONS

    def is_due(self, state: M) -> bool:
        """Return whether the merge is needed: a repeated one only if the earlier one failed."""
        return not (self.again and trains_merged(state.model))

    def broadcast(self, state: M) -> EncoderState:
        """Return the message to clients: the model."""
        return EncoderState(state.model, state.version)

    def update_format(self, message: EncoderState) -> UpdateFormat:
        """Return an update's shapes and dtypes: sums of m × m matrices, see ``Transitions``."""
        square = self.overclusters, self.overclusters
        return {
            "neighbours": Spec(torch.float64, (self.folds, *square)),
            "holders": Spec(torch.float64, square),
        }

    def check(self, message: EncoderState, update: Transitions, senders: Sequence[Member]) -> None:
        """Refuse matrices whose elements add up to more than the senders' number of images."""
        for part in (update.neighbours, update.holders):
            check_counts(part, senders)

    def project_noisy(self, message: EncoderState, update: Transitions) -> Transitions:
        """Set sums that noise made negative to 0."""
        return Transitions(update.neighbours.clamp(min=0), update.holders.clamp(min=0))

    def attributed(self, update: Transitions, senders: Sequence[int]) -> Transitions:
        """Add the sender's number to an update of a single client; return others unchanged."""
        return OwnTransitions(**vars(update), client=senders[0]) if len(senders) == 1 else update

    def aggregate(
        self, state: M, updates: Iterable[Transitions], randomness: Randomness
    ) -> tuple[M, Metrics]:
        """Merge over-clusters into clusters; if k is unknown, choose the k with most evidence.

        Clusters keep their numbers of the last merge. For absent clients, the last sums that they
        sent are used; as long as a client has sent none, merged clusters are not trained, since
        their target shares would leave this client out.
        """
        parts = dict(state.descent.parts) if state.descent else {}
        total, complete = sum_transitions(updates, parts)
        sums = torch.stack([total.neighbours.sum(dim=0), total.holders])
        descent = state.descent and replace(state.descent, parts=parts)
        changes: dict[str, Any] = {"descent": descent}
        if self.fewest:
            by_k = evidence(total.neighbours, self.fewest, self.clusters)
            changes["evidence"] = by_k.to(sums.device)
            # With so many over-clusters, random initialisations are slow and give worse merges.
            groups = merge_overclusters(
                sums, rank_candidates(by_k, self.fewest)[0], None, self.rule
            )
        else:
            groups = merge_overclusters(
                sums, self.clusters, randomness.generator("merging"), self.rule
            )
        of_each = sums[0].sum(dim=1).cpu()
        if state.groups is not None:
            groups = renumber_like(groups, state.groups.cpu(), of_each)
        if complete and (self.trained or trains_merged(state.model)):
            changes["model"] = state.model | merge_tensors(groups, of_each, state.model)
        return replace(state, groups=groups.to(sums.device), **changes), {}


def trains_merged(model: ModelState) -> bool:
    """Return whether a model is trained on merged clusters, no longer on over-clusters."""
    groups = model.get(f"{MERGE}.groups")
    return groups is not None and int(groups.max()) + 1 < len(groups)


def merge_tensors(groups: Tensor, of_each: Tensor, model: ModelState) -> ModelState:
    """Return the tensors of a network's ``Merge``: groups, and the clusters' shares of images.

    Args:
        groups: The cluster of each over-cluster, int64 of shape (m,).
        of_each: Number of images of each over-cluster, of shape (m,).
        model: Its tensors give the device and the dtype.
    """
    before = model[f"{MERGE}.shares"]
    shares = torch.zeros_like(of_each)
    shares = shares.index_add(0, groups, of_each) / of_each.sum().clamp(min=1e-300)
    shares = shares.clamp(min=_LEAST_SHARE)  # The divergence from a share of 0 is infinite.
    # Numbers above k stand for no cluster: their probability is 0, whatever the share.
    shares[int(groups.max()) + 1 :] = 1.0
    return {
        f"{MERGE}.groups": groups.to(before.device, copy=True),
        f"{MERGE}.shares": shares.to(before),
    }


def sum_transitions(
    updates: Iterable[Transitions], parts: dict[str, Tensor]
) -> tuple[Transitions, bool]:
    """Sum ``Transitions`` over all clients; return the sum, and whether it includes all clients.

    For absent clients, the last sums count. ``parts`` holds each client's last sums, by
    ``client_part_name``; it is updated in place.
    """
    answered = set[int]()

    def without_clients() -> Iterator[Transitions]:
        for update in updates:
            if isinstance(update, OwnTransitions):
                answered.add(update.client)
                own = {"neighbours": update.neighbours, "holders": update.holders}
                parts.update(
                    {client_part_name(update.client, f"{_PART}{n}"): t for n, t in own.items()}
                )
            yield Transitions(update.neighbours, update.holders)

    total = sum_updates(without_clients())
    sums = {f"{_PART}neighbours": total.neighbours, f"{_PART}holders": total.holders}
    totals = add_absent_parts(sums, parts, answered)
    clients = {key.partition("/")[0] for key in parts}
    included = {key.partition("/")[0] for key in parts if f"/{_PART}" in key}
    return Transitions(*totals.values()), not answered or clients == included


@dataclass(frozen=True)
class FindCentres(SumsWork[M, EncoderState, ClusterSums]):
    """Server side of the centres: computes the mean latent of each cluster or over-cluster.

    Attributes:
        latent: Number d of latent dimensions.
        overclusters: m to compute a centre for each over-cluster; None for each cluster.
        early: Whether to leave the exchange out, instead of failing, if clusters are not known.
    """

    latent: int
    overclusters: int | None = None
    early: bool = False
    exchange = CENTRES

    def is_due(self, state: M) -> bool:
        """Return whether the exchange takes place: if clusters are known, or have to be."""
        return not self.early or (state.version > 0 and state.groups is not None)

    def broadcast(self, state: M) -> EncoderState:
        """Return the message to clients: the model."""
        return snapshot(state)

    def update_format(self, message: EncoderState) -> UpdateFormat:
        """Return an update's shapes and dtypes: a sum of latents and a count for each cluster."""
        return format_of(
            pack(ClusterSums.zeros(self.overclusters or message.clusters, self.latent))
        )

    def aggregate(
        self, state: M, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[M, Metrics]:
        """Set each cluster's centre to its mean latent; an empty cluster's centre is the origin."""
        origin = state.model["head.weight"].new_zeros(self.latent)
        return replace(state, centroids=cluster_means(updates, origin)), {}
