"""The server's work in Fed-SCAN besides the steps: merging over-clusters and computing centres."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import rank_candidates
from ccfcpp.clustering.kmeans.centroids import ClusterSums, SumsWork, cluster_means
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.systems.fed_scan.merging import Rule, evidence, merged, numbered_like
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
    """Return the part of a state that clients need to use the model.

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
"""Smallest share of a cluster in training."""

_PART = "transitions/"
"""Prefix of the names under which clients' last sums are kept."""

M = TypeVar("M", bound=EncoderState)


@dataclass(frozen=True)
class MergeOverclusters(ServerWork[M, EncoderState, Transitions]):
    """The server's merge of over-clusters into k clusters.

    Attributes:
        clusters: Number of clusters k, or its largest candidate.
        overclusters: Number m of over-clusters.
        folds: Number of folds of the images, by which k is chosen; 1 if k is known.
        fewest: Smallest candidate for k if k is chosen from the data; else 0.
        rule: The quantity that the merge maximises.
        trained: Whether the next steps train the merged clusters.
        again: Whether this repeats a merge that could not be trained, and is left out otherwise.
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
        """Return whether the merge is needed: a repeated one only if no merge is trained yet."""
        return not (self.again and trains_merged(state.model))

    def broadcast(self, state: M) -> EncoderState:
        """Return the message to clients: the model."""
        return EncoderState(state.model, state.version)

    def update_format(self, message: EncoderState) -> UpdateFormat:
        """Return an update's shapes and dtypes: two matrices over pairs of over-clusters."""
        square = self.overclusters, self.overclusters
        return {
            "neighbours": Spec(torch.float64, (self.folds, *square)),
            "holders": Spec(torch.float64, square),
        }

    def check(self, message: EncoderState, update: Transitions, senders: Sequence[Member]) -> None:
        """Refuse sums larger than the senders' number of images, each of which adds 1."""
        for part in (update.neighbours, update.holders):
            check_counts(part, senders)

    def project_noisy(self, message: EncoderState, update: Transitions) -> Transitions:
        """Set sums that noise made negative to 0."""
        return Transitions(update.neighbours.clamp(min=0), update.holders.clamp(min=0))

    def attributed(self, update: Transitions, senders: Sequence[int]) -> Transitions:
        """Add the sender's number to the sums of a single client."""
        return OwnTransitions(**vars(update), client=senders[0]) if len(senders) == 1 else update

    def aggregate(
        self, state: M, updates: Iterable[Transitions], randomness: Randomness
    ) -> tuple[M, Metrics]:
        """Assign over-clusters to clusters; if k is unknown, the most evident number is taken.

        Clusters keep the numbers that they had at the last merge. Absent clients count with their
        last transitions; while those of some are unknown, no merge is trained, as its shares would
        leave these clients out.
        """
        parts = dict(state.descent.parts) if state.descent else {}
        total, complete = transitions_of_all(updates, parts)
        sums = torch.stack([total.neighbours.sum(dim=0), total.holders])
        descent = state.descent and replace(state.descent, parts=parts)
        changes: dict[str, Any] = {"descent": descent}
        if self.fewest:
            found = evidence(total.neighbours, self.fewest, self.clusters)
            changes["evidence"] = found.to(sums.device)
            # Among so many over-clusters random starts find worse merges, slowly.
            groups = merged(sums, rank_candidates(found, self.fewest)[0], None, self.rule)
        else:
            groups = merged(sums, self.clusters, randomness.generator("merging"), self.rule)
        of_each = sums[0].sum(dim=1).cpu()
        if state.groups is not None:
            groups = numbered_like(groups, state.groups.cpu(), of_each)
        if complete and (self.trained or trains_merged(state.model)):
            changes["model"] = state.model | merge_as(groups, of_each, state.model)
        return replace(state, groups=groups.to(sums.device), **changes), {}


def trains_merged(model: ModelState) -> bool:
    """Return whether a model trains merged clusters."""
    groups = model.get(f"{MERGE}.groups")
    return groups is not None and int(groups.max()) + 1 < len(groups)


def merge_as(groups: Tensor, of_each: Tensor, model: ModelState) -> ModelState:
    """Return the tensors of a network's merge: groups, and the clusters' shares of images.

    Args:
        groups: The cluster of each over-cluster, int64 of shape (m,).
        of_each: Number of images of each over-cluster, of shape (m,).
        model: Gives the device and dtype of the tensors.
    """
    shares = model[f"{MERGE}.shares"]
    found = torch.zeros_like(of_each)
    found = found.index_add(0, groups, of_each) / of_each.sum().clamp(min=1e-300)
    found = found.clamp(min=_LEAST_SHARE)  # The divergence from none would have no bound.
    # No image is in a cluster that there is not.
    found[int(groups.max()) + 1 :] = 1.0
    return {
        f"{MERGE}.groups": groups.to(shares.device, copy=True),
        f"{MERGE}.shares": found.to(shares),
    }


def transitions_of_all(
    updates: Iterable[Transitions], parts: dict[str, Tensor]
) -> tuple[Transitions, bool]:
    """Sum all clients' matrices of pair probabilities, and return whether every client has one.

    Args:
        updates: Matrices of the clients that answered.
        parts: Each client's last matrices, by ``client_part_name``; changed in place.
    """
    there = set[int]()

    def noted() -> Iterator[Transitions]:
        for update in updates:
            if isinstance(update, OwnTransitions):
                there.add(update.client)
                own = {"neighbours": update.neighbours, "holders": update.holders}
                parts.update(
                    {client_part_name(update.client, f"{_PART}{n}"): t for n, t in own.items()}
                )
            yield Transitions(update.neighbours, update.holders)

    total = sum_updates(noted())
    sums = {f"{_PART}neighbours": total.neighbours, f"{_PART}holders": total.holders}
    found = add_absent_parts(sums, parts, there)
    clients = {key.partition("/")[0] for key in parts}
    told = {key.partition("/")[0] for key in parts if f"/{_PART}" in key}
    return Transitions(*found.values()), not there or clients == told


@dataclass(frozen=True)
class FindCentres(SumsWork[M, EncoderState, ClusterSums]):
    """The server's mean latents of the clusters, or of the over-clusters, after the last step.

    Attributes:
        latent: Number d of latent dimensions.
        overclusters: m to compute a centre for each over-cluster; None for each cluster.
        early: Whether clusters may not be known yet; the exchange is then left out.
    """

    latent: int
    overclusters: int | None = None
    early: bool = False
    exchange = CENTRES

    def is_due(self, state: M) -> bool:
        """Return whether clusters are known, or must be in this round."""
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
        """Set the centres; the centre of an empty cluster is the origin."""
        origin = state.model["head.weight"].new_zeros(self.latent)
        return replace(state, centroids=cluster_means(updates, origin)), {}
