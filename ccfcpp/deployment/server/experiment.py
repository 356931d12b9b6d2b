"""A run whose images are with clients on other machines, from its description to its results."""

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.judging import Judged, Judging
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.model import ModelFacts
from ccfcpp.clustering.preprocessing.phased import make_algorithm
from ccfcpp.clustering.typical import saved
from ccfcpp.core.config import MethodConfig
from ccfcpp.core.metrics import clustering_scores
from ccfcpp.core.tables import Rows
from ccfcpp.deployment.link.algorithms import (
    COUNTS,
    Counts,
    classification,
    clustering_problem,
    counts_exchange,
)
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.deployment.server.transport import Deployed
from ccfcpp.engine.algorithm import Crew
from ccfcpp.engine.client import Member, by_size
from ccfcpp.engine.exchange import AbsentClientError, Exchange, RefusedUpdateError, Task
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.payload import pack, size
from ccfcpp.models.state import ModelState
from ccfcpp.runs.experiment import Experiment, Scores
from ccfcpp.runs.folder import Arrays
from ccfcpp.runs.local_spectra import LocalSpectra
from ccfcpp.runs.paths import RunSetting, Summary
from supervised.algorithm import FederatedClassification
from supervised.config import ClassifyConfig

Exchanges = Mapping[str, Exchange[Any, Any]]
Connect = Callable[[RunSpec, Exchanges, torch.device], Deployed]
"""Returns the transport, for what clients are told, the exchanges of a system and the server's
device."""
_LOOK = 0.5
"""Seconds between checks whether the server is to wait no longer."""
_AFTER_THE_ROUND = 10**6
"""Index of the counting, after all exchanges of a round."""


class DeployedExperiment(Experiment[Any]):
    """Clustering or classification of images that the server does not see.

    Attributes:
        no_scores: The part of a summary that holds scores, if no client tells.
    """

    algorithm: ClusteringAlgorithm[Any] | FederatedClassification
    no_scores: Mapping[str, None] = {}

    def __init__(
        self,
        config: MethodConfig,
        spec: RunSpec,
        members: Sequence[Member],
        connect: Connect,
        skipped: int = 0,
        larger: "Callable[[], DeployedExperiment | None]" = lambda: None,
    ) -> None:
        super().__init__(config)
        self.attack.refuse_deployed()
        self.config = config
        self.spec = spec
        self._skipped = skipped
        self._larger = larger
        connected = self.availability.connected([m.id for m in members], self.randomness)
        self.clients = []  # They are elsewhere.
        self._everyone = members
        self._members = [member for member in members if member.id in connected]
        self.absent_names = [member.name for member in members if member.id not in connected]
        self.prepare()
        largest = max(member.samples for member in self._members)
        works = self.algorithm.client_side(Crew(largest, together=1)).works
        self.exchanges = [work.exchange for work in works.values()]
        self.check()
        if self.epilogue is not None:
            works = {**works, **self.epilogue.client_works(Crew(largest, together=1))}
        if self.protection:
            works = self.protection.works(works)
        asked = {name: work.exchange for name, work in works.items()}
        asked[COUNTS] = counts_exchange(self.algorithm)
        mechanism = self.protection.mechanism if self.protection else None
        # Clients count by themselves what their images cost.
        told = spec.with_noise(mechanism.budget.noise) if mechanism else spec
        self.deployed = connect(told, asked, self.device)

    @abstractmethod
    def prepare(self) -> None:
        """Build the algorithm of the run."""

    @abstractmethod
    def sent_to_count(self, state: object, told: Any = None) -> object:
        """Return what clients need of a state in order to count.

        Args:
            state: The server's.
            told: What the exchanges after the last round have told, if any.
        """

    @abstractmethod
    def scores_of(self, table: Tensor) -> Scores:
        """Return scores of a table of counts.

        Args:
            table: int64 of shape (classes, clusters or predicted classes); not all 0.
        """

    def ended(self, federation: Any, state: Any) -> tuple[Any, Summary]:
        """Run the exchanges after the last round; clients that have all left are not waited for."""
        self.deployed.patience = self.deployed.channel.timeouts.linger
        return super().ended(federation, state)

    def as_of(self, number: int) -> "DeployedExperiment | None":
        """The run with the clients that have come since the last round; None where nobody has."""
        larger = self._larger()
        if larger is not None:
            larger.deployed.take_over(self.deployed)
        return larger

    @property
    def members(self) -> list[Member]:
        """The clients that take part."""
        return self._members

    @property
    def skipped(self) -> Rows:
        """Return no rows: clients keep the names of their files to themselves."""
        return []

    @property
    def cohort(self) -> None:
        """None, since each client trains by itself."""
        return

    def transport(self, memories: ClientMemories) -> Deployed:
        """Return the transport to the clients, which keep their own memories."""
        self.deployed.stopped = lambda: self._should_stop()
        return self.deployed

    def knows_groups(self, state: object) -> bool:
        """Return whether images can be assigned yet."""
        return True

    def scores(self, number: int, state: object, memories: ClientMemories) -> Scores:
        """Return scores over the images of the clients that tell, in rounds that are scored."""
        due = self.algorithm.is_scored(number, getattr(self.config, "evaluate_every", None))
        if not due or not self.spec.classes or not self.knows_groups(state):
            return {}
        table = sum_of(self.counts(number, self.sent_to_count(state)))
        return {} if table is None else self.scores_of(table)

    def counts(self, number: int, message: object) -> dict[int, Tensor]:
        """Return the clients' tables of counts, by their number.

        Clients that do not tell or cannot be reached are left out. Each client keeps the assignment
        of every one of its images to itself.
        """
        return self._counts(number, message, self._members)[0]

    def _counts(
        self, number: int, message: object, members: Sequence[Member]
    ) -> tuple[dict[int, Tensor], dict[int, RefusedUpdateError]]:
        """Return some clients' tables, and why there is no answer, by the client's number."""
        task = Task(self.system, COUNTS, number, _AFTER_THE_ROUND)
        members = by_size(members)
        held = {member.id: member.samples for member in members}
        found, missing = {}, {}
        for reply in self.deployed.deliver(task, message, members):
            if isinstance(reply.update, Counts):
                table = reply.update.table
                if table.numel() and self._is_sound(table, held[reply.client]):
                    found[reply.client] = table
            else:
                assert isinstance(reply.update, RefusedUpdateError)
                missing[reply.client] = reply.update
        return found, missing

    def _handed_out(
        self, message: object
    ) -> tuple[dict[int, Tensor], dict[int, RefusedUpdateError]]:
        """Give every client the last model, also to those that come while the server lingers."""
        deployed, waiting = self.deployed, self._members
        until = time.monotonic() + deployed.channel.timeouts.linger
        found: dict[int, Tensor] = {}
        missing: dict[int, RefusedUpdateError] = {}
        said: Sequence[Member] = ()
        while True:
            left = max(0.0, until - time.monotonic())
            deployed.patience = min(left, _LOOK)
            tables, reasons = self._counts(self.algorithm.rounds, message, waiting)
            asked = {member.id for member in waiting}
            found |= tables
            missing = {n: why for n, why in missing.items() if n not in asked} | reasons
            late = [m for m in waiting if isinstance(reasons.get(m.id), AbsentClientError)]
            if not late or time.monotonic() >= until or self._should_stop():
                return found, missing
            if late != said:
                deployed.channel.observer.lingers([member.name for member in late], left)
            waiting = said = late
            time.sleep(deployed.channel.timeouts.poll)

    def _is_sound(self, table: Tensor, samples: int) -> bool:
        return (
            table.dtype == torch.int64
            and table.shape == self.spec.table_shape
            and bool((table >= 0).all())
            and bool((table <= 10**9).all())
            and (self.spec.command == "classify" or int(table.sum()) == samples)
        )

    def results(
        self, state: object, memories: ClientMemories, local: LocalSpectra, told: Any
    ) -> tuple[dict[str, object], Arrays]:
        """Return scores over the clients that tell, and their tables."""
        message = self.sent_to_count(state, told)
        found, missing = self._handed_out(message)
        table = sum_of(found)
        arrays = {}
        if found:
            numbers, tables = zip(*sorted(found.items()), strict=True)
            arrays["counts"] = {"client": torch.tensor(numbers), "table": torch.stack(tables)}
        scores = self.no_scores if table is None else self.scores_of(table)
        got = {
            "counted_clients": [m.name for m in self._members if m.id in found],
            "without_model": {m.name: str(missing[m.id]) for m in self._members if m.id in missing},
        }
        return {**self.no_scores, **scores, **got, **self.last_facts(state, message)}, arrays

    def last_facts(self, state: object, message: object) -> dict[str, object]:
        """Return other entries of the summary about the last state."""
        return {}

    def local_representations(self, client: int, model: ModelState) -> None:
        """Return None: the server has no image on which models could be compared."""

    def setting(self) -> RunSetting:
        """Return what the report tells beside log and results; only clients know who holds what."""
        return RunSetting(
            self.algorithm.rounds,
            self.describe(),
            {str(member.id): member.name for member in self._everyone},
            [member.id for member in self._members],
            list(self.spec.classes),
            None,
        )

    def describe(self) -> dict[str, object]:
        """Return the setting, for the summary."""
        config = self.config
        return {
            "method": config.method,
            "dataset": "the clients' own images",
            "deployed": True,
            "unit": self.spec.unit,
            "samples": self.spec.samples,
            "skipped": self._skipped,
            "held": sum(member.samples for member in self._members),
            "classes": len(self.spec.classes),
            "seed": config.seed,
            "clients": len(self._members) + len(self.absent_names),
            "connected": len(self._members),
            "disconnected": len(self.absent_names),
            "kinds": list(self.spec.kinds),
            "device": str(self.device),
        }


class DeployedClustering(DeployedExperiment):
    """Clustering of images that the server does not see."""

    algorithm: ClusteringAlgorithm[Any]
    config: ClusterConfig
    no_scores = dict.fromkeys(("nmi", "nmi_geometric", "kappa", "accuracy", "ari"))

    def prepare(self) -> None:
        """Build the clustering system of the run."""
        self.problem = clustering_problem(self.config, self.spec, self.device)
        self.algorithm = make_algorithm(self.problem)

    @cached_property
    def epilogue(self) -> Judging | None:
        """Return the exchanges by which the clustering is judged without labels."""
        return None if self.privacy.level != "none" else Judging(self.algorithm, self.spec.clusters)

    def model_facts(self) -> dict[str, str]:
        """Return the facts of the problem, for the header of the model's file."""
        return ModelFacts.of(self.problem, self.spec.columns).header

    def knows_groups(self, state: object) -> bool:
        """Return whether there are clusters yet."""
        return self.algorithm.knows_clusters(state)

    def sent_to_count(self, state: object, told: Judged | None = None) -> object:
        """Return what any client receives at the end."""
        message = counts_exchange(self.algorithm).message
        return message(self.algorithm.delivery(state), told.typical if told else None)

    def saved(self, state: object, told: Judged | None) -> Mapping[str, Tensor]:
        """Return the server's state, and where the clients' images lie."""
        return saved(pack(state), told.typical if told else None)

    def scores_of(self, table: Tensor) -> Scores:
        """Return the scores of a clustering, equal to those over the images themselves."""
        classes, clusters = table.nonzero(as_tuple=True)
        times = table[classes, clusters].numpy()
        return clustering_scores(
            np.repeat(classes.numpy(), times), np.repeat(clusters.numpy(), times)
        )

    def last_facts(self, state: object, message: object) -> dict[str, object]:
        """Return the size of what a client receives to assign its images, and what was found."""
        return {
            "scores_connected": None,
            "scores_absent": None,
            "bytes_delivered": size(pack(message)),
            **self.algorithm.found(state),
        }

    def describe(self) -> dict[str, object]:
        """Return the setting, for the summary."""
        return {
            **super().describe(),
            "clusters": self.spec.clusters,
            "sends": METHODS[self.config.method].sends,
            **self.algorithm.describe(),
        }


class DeployedClassification(DeployedExperiment):
    """Classification of images that the server does not see."""

    algorithm: FederatedClassification
    config: ClassifyConfig
    no_scores: Mapping[str, None] = {"accuracy": None}

    def prepare(self) -> None:
        """Build the method of classification."""
        self.algorithm = classification(self.config, self.spec, self.device)

    def sent_to_count(self, state: object, told: None = None) -> object:
        """Return the whole state: the global model and the server's part of the method."""
        return state

    def scores_of(self, table: Tensor) -> Scores:
        """Return the share of test images whose class was predicted."""
        return {"accuracy": float(table.diagonal().sum() / table.sum())}

    def describe(self) -> dict[str, object]:
        """Return the setting, for the summary."""
        training = self.config.training
        return {
            **super().describe(),
            "training_images": self.spec.samples,
            "model": self.config.model.name,
            "decorrelation": self.config.decorrelation.kind,
            "rounds": training.rounds,
            "local_epochs": training.local_epochs,
        }


def sum_of(counts: Mapping[int, Tensor]) -> Tensor | None:
    """Return the sum of all clients' tables; None if there are none or the sum is 0."""
    if not counts:
        return None
    table = torch.stack(list(counts.values())).sum(dim=0)
    return table if int(table.sum()) > 0 else None
