"""A run whose images are with clients on other machines, from its charter to its results."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.model import ModelFacts
from ccfcpp.core.config import MethodConfig
from ccfcpp.core.errors import UsageError
from ccfcpp.core.metrics import clustering_scores
from ccfcpp.deployment.charter import Charter
from ccfcpp.deployment.halves import COUNTS, Counts, counting
from ccfcpp.deployment.transport import Deployed
from ccfcpp.engine.algorithm import Crew
from ccfcpp.engine.client import Member, by_size
from ccfcpp.engine.exchange import Exchange, RefusedUpdateError, Task
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.payload import pack, size
from ccfcpp.models.state import ModelState
from ccfcpp.runs.experiment import Arrays, Experiment, Scores, Snapshot
from ccfcpp.runs.local_spectra import LocalSpectra
from supervised.algorithm import FederatedClassification
from supervised.classifiers import CLASSIFIERS
from supervised.config import ClassifyConfig
from supervised.setup import classifier_maker

Exchanges = Mapping[str, Exchange[Any, Any]]
Connect = Callable[[Exchanges, torch.device], Deployed]
"""Makes the transport, for the exchanges of a system and the server's device."""
_AFTER_THE_ROUND = 10**6
"""Place of the counting behind all exchanges of a round."""


class DeployedExperiment(Experiment[Any]):
    """What clustering and classification have in common, where the server sees no image.

    Args:
        config: The run's configuration.
        charter: What the clients are told.
        members: All clients that take part, by what they have said.
        connect: Makes the transport.

    Attributes:
        clients_far: What takes tasks to them.
    """

    def __init__(
        self,
        config: MethodConfig,
        charter: Charter,
        members: Sequence[Member],
        connect: Connect,
    ) -> None:
        super().__init__(config)
        self.attack.refuse_deployed()
        self.config = config
        self.charter = charter
        connected = self.availability.connected([m.id for m in members], self.randomness)
        self._members = [member for member in members if member.id in connected]
        self.absent_names = [member.name for member in members if member.id not in connected]
        self.prepare()
        largest = max(member.samples for member in self._members)
        works = self.algorithm.client_side(Crew(largest, together=1)).works
        self.exchanges = [work.exchange for work in works.values()]
        _ = self.hostility, self.protection  # they say before the run what does not fit
        if self.protection:
            works = self.protection.works(works)
        asked = {name: work.exchange for name, work in works.items()}
        self.clients_far = connect({**asked, COUNTS: self.counting}, self.device)

    @abstractmethod
    def prepare(self) -> None:
        """Make the algorithm."""

    @property
    @abstractmethod
    def counting(self) -> Exchange[Any, Counts]:
        """The exchange in which clients count."""

    @abstractmethod
    def told(self, state: Any) -> object:
        """What clients need of a state to count."""

    @abstractmethod
    def scores_of(self, table: Tensor) -> Scores:
        """Scores from how many images of each class are where.

        Args:
            table: int64 of shape (classes, clusters or predicted classes); not all 0.
        """

    @property
    def members(self) -> list[Member]:
        """The clients that take part."""
        return self._members

    @property
    def cohort(self) -> None:
        """Each client trains by itself."""
        return

    def transport(self, memories: ClientMemories) -> Deployed:
        """The clients on other machines; memories are their own affair."""
        return self.clients_far

    def knows_groups(self, state: Any) -> bool:
        """Whether images can be put anywhere yet."""
        return True

    def scores(self, number: int, state: Any, memories: ClientMemories) -> Scores:
        """Scores over the images of the clients that tell, where they are due."""
        due = (number + 1) % getattr(self.config, "evaluate_every", 1) == 0
        if not due or not self.charter.classes or not self.knows_groups(state):
            return {}
        table = sum_of(self.counts(number, state))
        return {} if table is None else self.scores_of(table)

    def counts(self, number: int, state: Any) -> dict[int, Tensor]:
        """What clients say of where a state puts their images, by their number.

        Clients that do not tell, or cannot be reached, are left out; each keeps for itself where
        every image of its own is.
        """
        task = Task(self.system, COUNTS, number, _AFTER_THE_ROUND)
        replies = self.clients_far.deliver(task, self.told(state), by_size(self._members))
        held = {member.id: member.samples for member in self._members}
        found = {}
        for reply in replies:
            if isinstance(reply.update, Counts):
                table = reply.update.table
                if table.numel() and self._is_sound(table, held[reply.client]):
                    found[reply.client] = table
            else:
                assert isinstance(reply.update, RefusedUpdateError)
        return found

    def _is_sound(self, table: Tensor, samples: int) -> bool:
        shape = (len(self.charter.classes), self.charter.clusters or len(self.charter.classes))
        return (
            table.dtype == torch.int64
            and table.shape == shape
            and bool((table >= 0).all())
            and bool((table <= 10**9).all())
            and (self.charter.command == "classify" or int(table.sum()) == samples)
        )

    def results(
        self, state: Any, memories: ClientMemories, local: LocalSpectra
    ) -> tuple[dict[str, Any], Arrays]:
        """Scores over the clients that tell, and what each has told."""
        found = self.counts(self.algorithm.rounds, state)
        table = sum_of(found)
        arrays = {}
        if found:
            numbers, tables = zip(*sorted(found.items()), strict=True)
            arrays["counts"] = {"client": torch.tensor(numbers), "table": torch.stack(tables)}
        summary: dict[str, Any] = dict(self.no_scores)
        if table is not None:
            summary |= self.scores_of(table)
        return summary | {"counted_clients": sorted(found)} | self.last_facts(state), arrays

    no_scores: Mapping[str, None] = {}
    """What a summary says where nobody tells."""

    def last_facts(self, state: Any) -> dict[str, Any]:
        """What else a summary says of the last state."""
        return {}

    def local_representations(self, client: int, model: ModelState) -> None:
        """None: there is no image at the server on which models could be compared."""

    def snapshot(self, state: Any, memories: ClientMemories) -> Snapshot:
        """Nothing can be shown.

        Raises:
            UsageError: Always.
        """
        raise UsageError("the images of this run are with its clients: there is nothing to draw")

    def describe(self) -> dict[str, Any]:
        """The setting, for the summary."""
        config = self.config
        return {
            "method": config.method,
            "dataset": "the clients' own images",
            "deployed": True,
            "samples": self.charter.samples,
            "held": sum(member.samples for member in self._members),
            "classes": len(self.charter.classes),
            "seed": config.seed,
            "clients": len(self._members) + len(self.absent_names),
            "connected": len(self._members),
            "disconnected": len(self.absent_names),
            "kinds": list(self.charter.kinds),
            "device": str(self.device),
        }


class DeployedClustering(DeployedExperiment):
    """Clustering of images that the server does not see."""

    algorithm: ClusteringAlgorithm[Any]
    config: ClusterConfig
    no_scores = dict.fromkeys(("nmi", "nmi_geometric", "kappa", "accuracy", "ari"))

    def prepare(self) -> None:
        """Make the system."""
        charter = self.charter
        self.problem = Problem(
            self.config, charter.image_shape, charter.clusters, self.device, charter.samples
        )
        self.algorithm = METHODS[self.config.method].make(self.problem)

    def model_facts(self) -> dict[str, str]:
        """What the problem was."""
        return ModelFacts.of(self.problem).header

    def knows_groups(self, state: Any) -> bool:
        """Whether there are clusters yet."""
        return self.algorithm.knows_clusters(state)

    def told(self, state: Any) -> object:
        """What any client receives in the end."""
        return self.algorithm.delivery(state)

    @property
    def counting(self) -> Exchange[Any, Counts]:
        """For what is delivered."""
        return counting(self.algorithm.delivery_type)

    def scores_of(self, table: Tensor) -> Scores:
        """The scores of a clustering, as over the images themselves."""
        classes, clusters = table.nonzero(as_tuple=True)
        times = table[classes, clusters].numpy()
        return clustering_scores(
            np.repeat(classes.numpy(), times), np.repeat(clusters.numpy(), times)
        )

    def last_facts(self, state: Any) -> dict[str, Any]:
        """What a client receives to assign its images."""
        return {
            "scores_connected": None,
            "scores_absent": None,
            "bytes_delivered": size(pack(self.algorithm.delivery(state))),
        }

    def describe(self) -> dict[str, Any]:
        """The setting, for the summary."""
        return {
            **super().describe(),
            "clusters": self.charter.clusters,
            "sends": METHODS[self.config.method].sends,
            **self.algorithm.describe(),
        }


class DeployedClassification(DeployedExperiment):
    """Classification of images that the server does not see."""

    algorithm: FederatedClassification
    config: ClassifyConfig
    no_scores: Mapping[str, None] = {"accuracy": None}

    def prepare(self) -> None:
        """Make the method."""
        charter, config = self.charter, self.config
        classes = len(charter.classes)
        make_model = classifier_maker(config, charter.image_shape, classes)
        self.algorithm = FederatedClassification(
            config, make_model, charter.image_shape, classes, charter.clients, self.device
        )

    def told(self, state: Any) -> object:
        """The whole state: it is the global model, and the server's part of a method."""
        return state

    @property
    def counting(self) -> Exchange[Any, Counts]:
        """Clients may have parts of the model that they remember."""
        return counting(self.algorithm.state_type, CLASSIFIERS[self.config.method].personal)

    def scores_of(self, table: Tensor) -> Scores:
        """The share of test images whose class was predicted."""
        return {"accuracy": float(table.diagonal().sum() / table.sum())}

    def describe(self) -> dict[str, Any]:
        """The setting, for the summary."""
        training = self.config.training
        return {
            **super().describe(),
            "training_images": self.charter.samples,
            "model": self.config.model.name,
            "decorrelation": self.config.decorrelation.kind,
            "rounds": training.rounds,
            "local_epochs": training.local_epochs,
        }


def sum_of(counts: Mapping[int, Tensor]) -> Tensor | None:
    """All clients' counts together; None where there are none, or all are 0."""
    if not counts:
        return None
    table = torch.stack(list(counts.values())).sum(dim=0)
    return table if int(table.sum()) > 0 else None


def make_experiment(
    config: MethodConfig, charter: Charter, members: Sequence[Member], connect: Connect
) -> DeployedExperiment:
    """The experiment that a charter asks for; the arguments are those of the class."""
    kinds = {"cluster": DeployedClustering, "classify": DeployedClassification}
    return kinds[charter.command](config, charter, members, connect)
