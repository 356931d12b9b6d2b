"""Evaluation of a run whose images are on other machines, by the clients' contingency tables.

Scores need class labels, which only clients have. So clients count their images by class and
cluster, or by class and predicted class, and send these tables.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.evaluation.evaluator import NO_SCORES
from ccfcpp.clustering.evaluation.server import EvaluationState
from ccfcpp.clustering.mahalanobis import FinalMessage, model_tensors
from ccfcpp.clustering.methods import leaves_client
from ccfcpp.clustering.model import ModelFacts
from ccfcpp.core.metrics import sum_tables, table_scores
from ccfcpp.deployment.link.algorithms import COUNTS, AnyAlgorithm, Counts
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.deployment.server.transport import Deployed
from ccfcpp.engine.client import Member, sort_by_size
from ccfcpp.engine.exchange import AbsentClientError, RefusedUpdateError, Task
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.payload import count_bytes, pack
from ccfcpp.runs.evaluator import Evaluator, Results, Scores
from ccfcpp.runs.local_spectra import LocalSpectra
from ccfcpp.runs.paths import Json
from supervised.algorithm import FederatedClassification
from supervised.config import ClassifyConfig

_LOOK = 0.5
"""Seconds between checks whether to stop waiting for late clients."""
_AFTER_THE_ROUND = 10**6
"""Index in the round of the exchange ``counts``, larger than that of any other exchange."""


@dataclass(eq=False)
class CountsEvaluator(Evaluator[Any]):
    """Evaluator that computes scores from the clients' contingency tables.

    Attributes:
        config: Configuration of the run.
        spec: Description of the run.
        algorithm: The run's algorithm.
        members: The clients that take part.
        absent: Number of clients that are absent for the whole run.
        deployed: The transport to the clients.
        skipped: Number of files that clients have left out.
    """

    config: ClusterConfig | ClassifyConfig
    spec: RunSpec
    algorithm: AnyAlgorithm
    members: Sequence[Member]
    absent: int
    deployed: Deployed
    skipped: int

    def describe(self) -> Json:
        """Return facts on the run's method, data and clients, for ``summary.json``."""
        config, algorithm = self.config, self.algorithm
        setting = {
            "method": config.method,
            "dataset": "the clients' own images",
            "deployed": True,
            "unit": self.spec.unit,
            "samples": self.spec.samples,
            "skipped": self.skipped,
            "held": sum(member.samples for member in self.members),
            "classes": len(self.spec.classes),
            "seed": config.seed,
            "clients": len(self.members) + self.absent,
            "connected": len(self.members),
            "disconnected": self.absent,
            "kinds": list(self.spec.kinds),
            "device": str(self.deployed.device),
        }
        if not isinstance(algorithm, FederatedClassification):
            assert isinstance(config, ClusterConfig)
            sends = leaves_client(config, self.spec.unit == "vector")
            return setting | {"clusters": self.spec.clusters, "sends": sends} | algorithm.describe()
        return setting | {
            "training_images": self.spec.samples,
            "model": algorithm.config.model.name,
            "decorrelation": algorithm.config.decorrelation.kind,
            "rounds": algorithm.rounds,
            "local_epochs": algorithm.config.training.local_epochs,
        }

    def scores(self, number: int, state: Any, memories: ClientMemories) -> Scores:
        """Return the scores after a round; empty if it is not scored or no client sends counts."""
        algorithm = self.algorithm
        due = algorithm.is_scored(number, self.config.evaluate_every) and self.spec.classes
        knows = isinstance(algorithm, FederatedClassification) or algorithm.knows_clusters(state)
        if not due or not knows:
            return {}
        tables, _ = self._collect_counts(number, self._sent_to_count(state), self.members)
        table = sum_tables(tables)
        return {} if table is None else table_scores(table, self.spec.command == "cluster")

    def results(
        self,
        state: Any,
        memories: ClientMemories,
        local: LocalSpectra,
        outcome: EvaluationState | None,
    ) -> Results:
        """Send the final model to all clients; return scores, model and contingency tables.

        ``outcome`` is the result of the exchanges after the last round; None without any.
        """
        algorithm, message = self.algorithm, self._sent_to_count(state, outcome)
        counts, missing = self._send_final_model(message)
        arrays = {}
        if counts:
            numbers, tables = zip(*sorted(counts.items()), strict=True)
            arrays["counts"] = {"client": torch.tensor(numbers), "table": torch.stack(tables)}
        table = sum_tables(counts)
        scores: Json = {} if table is None else table_scores(table, self.spec.command == "cluster")
        reached = {
            "counted_clients": [m.name for m in self.members if m.id in counts],
            "without_model": {m.name: str(missing[m.id]) for m in self.members if m.id in missing},
        }
        if isinstance(algorithm, FederatedClassification):
            return Results({"accuracy": None, **scores, **reached}, pack(state), arrays=arrays)
        known = {
            "scores_connected": None,
            "scores_absent": None,
            "bytes_delivered": count_bytes(pack(message)),
            **algorithm.summarize(state),
        }
        spec = self.spec
        facts = ModelFacts.of(spec.clusters, spec.image_shape, spec.columns)
        model = model_tensors(pack(state), outcome.typical if outcome else None)
        return Results({**NO_SCORES, **scores, **reached, **known}, model, facts.header, arrays)

    def _sent_to_count(self, state: Any, outcome: EvaluationState | None = None) -> object:
        """Return the message of the exchange ``counts``, with the model that assigns images."""
        if isinstance(self.algorithm, FederatedClassification):
            return state
        return FinalMessage(self.algorithm.final_model(state), outcome.typical if outcome else None)

    def _collect_counts(
        self, number: int, message: object, members: Sequence[Member]
    ) -> tuple[dict[int, Tensor], dict[int, RefusedUpdateError]]:
        """Run the exchange ``counts``; return the valid tables, and the errors, by client number.

        Clients that answer without a valid table are in neither mapping.
        """
        task = Task(self.config.method, COUNTS, number, _AFTER_THE_ROUND)
        members = sort_by_size(members)
        samples = {member.id: member.samples for member in members}
        tables, missing = {}, {}
        for reply in self.deployed.deliver(task, message, members):
            if isinstance(reply.update, Counts):
                table = reply.update.table
                if table.numel() and self._is_valid(table, samples[reply.client]):
                    tables[reply.client] = table
            else:
                assert isinstance(reply.update, RefusedUpdateError)
                missing[reply.client] = reply.update
        return tables, missing

    def _send_final_model(
        self, message: object
    ) -> tuple[dict[int, Tensor], dict[int, RefusedUpdateError]]:
        """Run the exchange ``counts`` after the last round; for a while, ask late clients again."""
        deployed, waiting = self.deployed, self.members
        rounds = self.algorithm.rounds
        until = time.monotonic() + deployed.channel.timeouts.linger
        counts: dict[int, Tensor] = {}
        missing: dict[int, RefusedUpdateError] = {}
        reported: Sequence[Member] = ()
        while True:
            left = max(0.0, until - time.monotonic())
            deployed.patience = min(left, _LOOK)
            tables, reasons = self._collect_counts(rounds, message, waiting)
            asked = {member.id for member in waiting}
            counts |= tables
            missing = {n: why for n, why in missing.items() if n not in asked} | reasons
            late = [m for m in waiting if isinstance(reasons.get(m.id), AbsentClientError)]
            if not late or time.monotonic() >= until or deployed.stopped():
                return counts, missing
            if late != reported:
                deployed.channel.observer.on_linger([member.name for member in late], left)
            waiting = reported = late
            time.sleep(deployed.channel.timeouts.poll)

    def _is_valid(self, table: Tensor, samples: int) -> bool:
        return (
            table.dtype == torch.int64
            and table.shape == self.spec.table_shape
            and bool((table >= 0).all())
            and bool((table <= 10**9).all())
            and (self.spec.command == "classify" or int(table.sum()) == samples)
        )
