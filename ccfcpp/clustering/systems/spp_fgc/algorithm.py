"""SPP-FGC: one-shot clustering of a graph of all records, made of the clients' graphs.

Source: He, Wang, Tang, Wang, Wang and Nie, *Towards Federated Clustering: A Client-wise Private
Graph Aggregation Framework* (AAAI 2026).

A client sends for each record which of its records are its neighbours, how near they are, and which
prototype (Gaussian of a mixture) it belongs to; and the prototypes' means with noise, and the
spread about them. So the server knows which of a client's records are alike: by the graph alone
``ccfcpp leakage`` tells most pairs of one class from others. A prototype may be one record, with
noise; ``privacy.smallest_count`` and an owner's rule set how many it is of at least.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.systems.spp_fgc.config import SppConfig
from ccfcpp.clustering.systems.spp_fgc.prototypes import fit_prototypes, links_between
from ccfcpp.clustering.systems.spp_fgc.structure import (
    components_of,
    learn_structure,
    neighbour_graph,
    project_on_simplex,
    squared_distances,
)
from ccfcpp.plugin import (
    Client,
    ClientContext,
    ClientSide,
    ClientWork,
    Exchange,
    FederationError,
    KeyValue,
    Member,
    Metrics,
    Nothing,
    PixelClustering,
    Problem,
    Randomness,
    RefusedUpdateError,
    Rows,
    ServerWork,
    Spec,
    Task,
    UpdateFormat,
    UsageError,
    required_centroids,
    sum_by_group,
)


@dataclass(frozen=True)
class GraphState:
    """State of the server: centroids, and the prototypes of all clients with their clusters.

    Attributes:
        centroids: Mean of each cluster's prototypes, of shape (at most k, dimensions).
        prototypes: float64 of shape (prototypes, dimensions).
        labels: Cluster of each prototype, int64 of shape (prototypes,).
    """

    centroids: Tensor | None = None
    prototypes: Tensor | None = None
    labels: Tensor | None = None


@dataclass(frozen=True)
class GraphUpdate:
    """Update of a client with n records.

    Attributes:
        neighbours: Numbers of each record's neighbours, int64 of shape (n, m).
        weights: Weights of the edges to them, float32 of shape (n, m); 0 where there are fewer.
        owners: Prototype of each record, int64 of shape (n,).
        centroids: Means of the prototypes, with noise, float64 of shape (prototypes, dimensions).
        spread: Traces of the covariance about the prototypes, and of its square, float64.
    """

    neighbours: Tensor
    weights: Tensor
    owners: Tensor
    centroids: Tensor
    spread: Tensor

    @property
    def graph(self) -> Tensor:
        """The weights of all edges, float64 of shape (n, n) on the CPU."""
        empty = torch.zeros(len(self.neighbours), len(self.neighbours), dtype=torch.float64)
        return empty.scatter_add_(1, self.neighbours.cpu(), self.weights.cpu().double())


GRAPHS = Exchange("graphs", Nothing, GraphUpdate)


def client_graph(points: Tensor, m: int, components: int | None) -> Tensor:
    """Learn the graph of a client's records, (n, n), with at most m edges in a row."""
    distances = squared_distances(points)
    return learn_structure(
        lambda penalty: neighbour_graph(distances + penalty, m),
        neighbour_graph(distances, m),
        components or 1,
        float(distances.mean()) or 1.0,
    )


@dataclass(frozen=True)
class SendGraph(ClientWork[Nothing, GraphUpdate]):
    """Client side: each client learns a graph and a mixture of its records."""

    system: "SppFgc"
    least: int
    exchange = GRAPHS

    def local_updates(
        self, task: Task, message: Nothing, clients: Sequence[Client], randomness: Randomness
    ) -> list[GraphUpdate | RefusedUpdateError]:
        """Return the graph and the prototypes of each client; a refusal if it has few records."""
        return [self._of(client, randomness.of_client(client.id)) for client in clients]

    def _of(self, client: Client, randomness: Randomness) -> GraphUpdate | RefusedUpdateError:
        config, points = self.system.config, self.system.rule.points(client.images).cpu().double()
        # With a prototype for each record there would be no noise.
        count = min(self.system.prototypes, len(points) // max(2, self.least))
        if count == 0:
            return RefusedUpdateError(f"it has fewer than {max(2, self.least)} records")
        graph = client_graph(points, config.neighbours, config.components)
        weights, neighbours = graph.float().topk(min(config.neighbours, len(points)))
        missing = (0, config.neighbours - weights.shape[1])
        found = fit_prototypes(points, count, config.noise, randomness, self.least)
        owners, means, spread = found
        means = F.pad(means, (0, 0, 0, self.system.prototypes - len(means)))
        return GraphUpdate(
            F.pad(neighbours, missing), F.pad(weights, missing), owners, means, spread
        )


def joint_graph(updates: Sequence[GraphUpdate], links: Tensor) -> Tensor:
    """Put the clients' graphs on the diagonal of ``links``, (n, n), and scale rows to the sum 1."""
    joint, start = links.clone(), 0
    for update in updates:
        own = slice(start, start := start + len(update.owners))
        joint[own, own] = update.graph
    return joint / joint.sum(dim=1, keepdim=True).clamp(min=1e-300)


def cut(graph: Tensor, points: Tensor, clusters: int) -> Tensor:
    """Cut a graph A into at most so many clusters, int64 of shape (n,).

    Rows of S are those of A - γ/2 ‖f_i - f_j‖², projected onto the simplex (CLR). If S has too many
    components, those whose means of ``points``, (n, dimensions), are nearest are merged.
    """
    learnt = learn_structure(
        lambda penalty: project_on_simplex(graph - penalty / 2), graph, clusters, 1.0
    )
    count, labels = components_of(learnt)
    if count <= clusters:
        return labels
    from scipy.cluster.hierarchy import fcluster, linkage

    means = sum_by_group(labels, points, count) / labels.bincount().unsqueeze(1)
    merged = fcluster(linkage(means.numpy(), "average"), clusters, "maxclust") - 1
    return torch.from_numpy(merged).long()[labels]


class SppFgc(PixelClustering[GraphState], ServerWork[GraphState, Nothing, GraphUpdate]):
    """SPP-FGC: the algorithm, and the server's half of its exchange.

    Any sample belongs to the cluster of the nearest prototype of all clients.
    """

    state_type = GraphState
    exchange = GRAPHS
    rounds = 1

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.config = problem.config.section(SppConfig)
        self.prototypes = self.config.prototypes or problem.clusters

    def initial_state(self, randomness: Randomness) -> GraphState:
        """Return a state without centroids."""
        return GraphState()

    def exchanges(self, number: int, state: GraphState) -> Sequence["SppFgc"]:
        """Return the only exchange of the run, which this object carries out.

        Raises:
            UsageError: There are more records than ``spp.records``.
        """
        # Not in the constructor: `serve` tries one with more samples than its clients have.
        most, there = self.config.records, self.problem.samples
        if there > most:
            raise UsageError(
                KeyValue("spp.records", most),
                f" is fewer than the clients' {there} records, and the server's graph has a weight "
                f"for each pair: give --set data.images={most}, or with enough memory --set "
                f"spp.records={there}",
            )
        return [self]

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return what clients do in it."""
        return ClientSide.of(SendGraph(self, context.least))

    def broadcast(self, state: GraphState) -> Nothing:
        """Return an empty message."""
        return Nothing()

    def update_format(self, message: Nothing) -> UpdateFormat:
        """Return an update's shapes and dtypes: a row for each record, and all prototypes."""
        rows = Rows(self.config.records)
        return {
            "neighbours": Spec(torch.int64, (rows, self.config.neighbours)),
            "weights": Spec(torch.float32, (rows, self.config.neighbours)),
            "owners": Spec(torch.int64, (rows,)),
            "centroids": Spec(torch.float64, (self.prototypes, self.rule.dimensions)),
            "spread": Spec(torch.float64, (2,)),
        }

    def check(self, message: Nothing, update: GraphUpdate, senders: Sequence[Member]) -> None:
        """Refuse a graph of other records, and numbers that cannot be."""
        n, held = len(update.owners), sum(sender.samples for sender in senders)
        if n != held:
            raise RefusedUpdateError(f"its graph has {n} records, and the client holds {held}")
        for numbers, most in ((update.neighbours, n), (update.owners, self.prototypes)):
            if not bool(((numbers >= 0) & (numbers < most)).all()):
                raise RefusedUpdateError(
                    f"it names a record or a prototype outside 0 to {most - 1}"
                )
        if bool((update.weights < 0).any() | (update.weights > 1).any()):
            raise RefusedUpdateError("weights are not from 0 to 1")
        if bool((update.spread < 0).any() | (update.centroids.abs() > 1e15).any()):
            raise RefusedUpdateError("its prototypes cannot be")

    def aggregate(
        self, state: GraphState, updates: Iterable[GraphUpdate], randomness: Randomness
    ) -> tuple[GraphState, Metrics]:
        """Cut the joint graph into clusters, and label each prototype as most of its records."""
        received = list(updates)
        owners = [one.owners.cpu() + i * self.prototypes for i, one in enumerate(received)]
        # Prototypes without records are left out.
        kept, owner = torch.unique(torch.cat(owners), return_inverse=True)
        means, sizes = torch.cat([one.centroids.cpu() for one in received])[kept], owner.bincount()
        shares = torch.tensor([len(own) for own in owners]) / len(owner)
        spread = shares.double() @ torch.stack([one.spread.cpu() for one in received])
        if not bool(spread[0] > 0):
            raise FederationError(
                "each client's records are all alike, so that nothing tells how far they spread: "
                "give another --method"
            )
        links = self.config.links * links_between(means, sizes, spread)
        joint = joint_graph(received, links[owner][:, owner])
        clusters = cut(joint, means[owner], self.problem.clusters)
        votes = sum_by_group(owner, F.one_hot(clusters).double(), len(means))
        # A cluster that is the most frequent one in no prototype is left out.
        used, labels = torch.unique(votes.argmax(dim=1), return_inverse=True)
        weighted = sum_by_group(labels, sizes.unsqueeze(1) * means, len(used))
        centroids = weighted / sum_by_group(labels, sizes.unsqueeze(1).double(), len(used))
        there = self.problem.device
        return GraphState(centroids.to(there), means.to(there), labels.to(there)), {}

    def assign(self, state: GraphState, client: Client) -> Tensor:
        """Return the cluster of each sample, int64 of shape (samples,)."""
        labels = required_centroids(state.labels)
        return labels[self.rule.assign(client.images, required_centroids(state.prototypes))]

    def final_model(self, state: GraphState) -> GraphState:
        """Return the state, which clients need to assign images."""
        return state
