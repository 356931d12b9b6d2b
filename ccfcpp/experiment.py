"""One clustering run, from its configuration to its results."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ccfcpp.clustering.ccfc import CCFC
from ccfcpp.clustering.exchanges import CCFCState, required_centroids
from ccfcpp.config import ClusterConfig
from ccfcpp.data import ImageData
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.checkpoint import Checkpoint, CheckpointClock
from ccfcpp.engine.client import Client
from ccfcpp.engine.federation import Federation, RoundReport
from ccfcpp.engine.memories import ClientMemories, memory_budget
from ccfcpp.environment import check_precision, choose_device, describe_environment
from ccfcpp.errors import UsageError
from ccfcpp.metrics import clustering_scores
from ccfcpp.profiling import section
from ccfcpp.randomness import SERVER, Randomness
from ccfcpp.run_folder import RunFolder
from ccfcpp.setup import cohort_size, load_data, model_maker, number_of_clusters, partition

Scores = dict[str, float]
Observer = Callable[[RoundReport, Scores], None]


class StoppedError(Exception):
    """The run was asked to stop, and did after a checkpoint."""


@dataclass
class History:
    """What a summary says of all rounds together; kept in the checkpoint.

    Attributes:
        seconds: Wall-clock time of the rounds, without evaluation and checkpoints.
        bytes_down: Bytes that all clients received.
        bytes_up: Bytes that all clients sent.
        rounds_by_client: How many rounds each client took part in, by its number.
        refused: How many updates were refused.
    """

    seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    rounds_by_client: dict[str, int] = field(default_factory=dict)
    refused: int = 0

    def add(self, report: RoundReport) -> None:
        """Count a round in."""
        self.seconds += report.seconds
        self.bytes_down += report.bytes_down
        self.bytes_up += report.bytes_up
        self.refused += sum(map(len, report.refused.values()))
        for client in map(str, report.clients):
            self.rounds_by_client[client] = self.rounds_by_client.get(client, 0) + 1


class ClusteringExperiment:
    """Data, clients, algorithm and federation that a configuration asks for.

    Making one checks everything that can be checked before a file is written.

    Args:
        config: The configuration.
        data: The images; those that the configuration names where it is None.

    Raises:
        UsageError: The configuration does not fit the data or the machine.
    """

    def __init__(self, config: ClusterConfig, data: ImageData | None = None) -> None:
        self.config = config
        self.device = choose_device(config.device)
        check_precision(config.compute.precision, self.device)
        self.randomness = Randomness(config.seed)
        self.data = load_data(config) if data is None else data
        self.clusters = number_of_clusters(config, self.data)
        self.parts = partition(config, self.data, self.randomness)
        self.availability = Availability(**config.availability.model_dump())
        connected = self.availability.connected(range(len(self.parts)), self.randomness)
        self.disconnected = len(self.parts) - len(connected)
        self.data = self.data.to(self.device)
        # A client without samples has nothing to train on and nothing to add to an average.
        self.clients = [
            self._holder(number, self._name(number), self.parts[number])
            for number in connected
            if len(self.parts[number]) > 0
        ]
        if not self.clients:
            raise UsageError("no connected client holds an image: give fewer clients")
        held = torch.zeros(len(self.data), dtype=torch.bool)
        held[torch.cat([self.parts[client.id] for client in self.clients])] = True
        # Images that take no part in training are clustered all the same.
        self.unheld = (~held).nonzero().flatten()
        self.rest = self._holder(SERVER, "the rest", self.unheld)
        image_shape = tuple(self.data.images.shape[1:])
        make_model = model_maker(config.model, image_shape)
        largest = max(map(len, self.clients))
        self.cohort = cohort_size(
            config, make_model, image_shape, len(self.clients), largest, self.device
        )
        self.algorithm = CCFC(config, make_model, self.clusters, self.cohort, self.device)

    def _holder(self, number: int, name: str, samples: Tensor) -> Client:
        return Client(number, name, self.data.images[samples.to(self.device)])

    def _name(self, number: int) -> str:
        by_folder = self.config.partition.kind == "folders"
        return self.data.owner_names[number] if by_folder else f"client {number}"

    def run(
        self,
        folder: RunFolder,
        observe: Observer = lambda report, scores: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> dict[str, object]:
        """Run all rounds, or those that are left, and write the results.

        Args:
            folder: Where to; a run that was interrupted goes on after its last checkpoint.
            observe: Called after each round with its report and its scores.
            should_stop: Asked after each round; what it stops is checkpointed first.

        Returns:
            The summary, as it stands in ``summary.json``.

        Raises:
            StoppedError: ``should_stop`` said so.
            FederationError: No client has delivered centroids that can be used.
        """
        folder.add_environment(describe_environment(self.device))
        federation = self.federation(folder.checkpoint.parent)
        state, history, first_round = self._start(folder, federation.memories)
        clock = CheckpointClock()
        for state, report in federation.run(state, first_round):  # noqa: B020 - the state moves on
            with section("scores"):
                scores = self._scores(state) if self._is_due(report.round, state) else {}
            history.add(report)
            folder.log_round(vars(report) | {"scores": scores})
            observe(report, scores)
            done = report.round + 1
            stopping = should_stop()
            if stopping or done == self.algorithm.rounds or clock.is_due():
                with clock.timing(), section("checkpoint"):
                    files = federation.memories.save(report.round)
                    folder.save_checkpoint(Checkpoint(done, state, files, vars(history)))
                    federation.memories.settle()
            if stopping and done < self.algorithm.rounds:
                raise StoppedError
        return self._finish(folder, state, history)

    def federation(self, folder: Path | None = None) -> Federation[CCFCState]:
        """The clients and the server; what clients remember goes to ``folder`` where it must."""
        memories = ClientMemories(self.device, memory_budget(self.device), folder)
        return Federation(
            self.algorithm, self.clients, self.availability, self.randomness, memories
        )

    def _start(self, folder: RunFolder, memories: ClientMemories) -> tuple[CCFCState, History, int]:
        checkpoint = folder.load_checkpoint(self.algorithm.state_type, self.device)
        if checkpoint is None:
            return self.algorithm.initial_state(self.randomness), History(), 0
        memories.restore(checkpoint.memories)
        return checkpoint.state, History(**checkpoint.facts), checkpoint.next_round

    def _is_due(self, number: int, state: CCFCState) -> bool:
        return state.centroids is not None and (number + 1) % self.config.evaluate_every == 0

    def _scores(self, state: CCFCState) -> Scores:
        """Scores over all samples; none where the data has no labels."""
        if self.data.labels is None:
            return {}
        clusters = self._assign_all(state)
        return clustering_scores(self.data.labels.cpu().numpy(), clusters.numpy())

    def _assign_all(self, state: CCFCState) -> Tensor:
        """The cluster of every image, int64 of shape (samples,) on the CPU.

        Each client's images go through the model by themselves: what it makes of them serves the
        client in the next round too.
        """
        clusters = torch.empty(len(self.data), dtype=torch.int64)
        for client in self.clients:
            clusters[self.parts[client.id]] = self.algorithm.assign(state, client).cpu()
        if len(self.rest) > 0:
            clusters[self.unheld] = self.algorithm.assign(state, self.rest).cpu()
        return clusters

    def _finish(self, folder: RunFolder, state: CCFCState, history: History) -> dict[str, object]:
        required_centroids(state.centroids)
        clusters = self._assign_all(state)
        owners = torch.full((len(self.data),), -1)
        for number, part in enumerate(self.parts):
            owners[part] = number
        assignments = {"cluster": clusters, "client": owners}
        scores: dict[str, float | None] = dict.fromkeys(
            ("nmi", "nmi_geometric", "kappa", "accuracy", "ari")
        )
        if self.data.labels is not None:
            assignments["class"] = self.data.labels
            scores |= clustering_scores(self.data.labels.cpu().numpy(), clusters.numpy())
        summary = self._describe(history) | scores | {"out": str(folder.path)}
        folder.write_results(summary, state, assignments)
        return summary

    def _describe(self, history: History) -> dict[str, object]:
        config = self.config
        participants = [
            {
                "client": client.id,
                "name": client.name,
                "samples": len(client),
                "rounds": history.rounds_by_client.get(str(client.id), 0),
            }
            for client in self.clients
        ]
        return {
            "method": config.method,
            "dataset": config.dataset,
            "samples": len(self.data),
            "held": len(self.data) - len(self.unheld),
            "clusters": self.clusters,
            "partition": config.partition.kind,
            "p": config.partition.p if config.partition.kind == "skew" else None,
            "seed": config.seed,
            "clients": len(self.parts),
            "connected": len(self.clients),
            "disconnected": self.disconnected,
            "participants": participants,
            "pretrain_rounds": config.training.pretrain_rounds,
            "rounds": config.training.rounds,
            "seconds": round(history.seconds, 3),
            "bytes_down": history.bytes_down,
            "bytes_up": history.bytes_up,
            "refused_updates": history.refused,
            "device": str(self.device),
            "cohort": self.cohort,
        }
