"""A client's half of a run, made from its charter and the client's own images."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.model import ModelFacts
from ccfcpp.core.config import MethodConfig
from ccfcpp.core.config_layers import dump_yaml, validate
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import save_tensors, write_whole
from ccfcpp.core.randomness import Randomness
from ccfcpp.data import ImageData, load
from ccfcpp.deployment.charter import Charter
from ccfcpp.engine.algorithm import Algorithm, Crew
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import ClientWork, Exchange, Task
from ccfcpp.engine.payload import pack
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.images import bounding_of
from ccfcpp.privacy.sums.client import works_in_sums
from ccfcpp.runs.paths import RunPaths
from supervised.algorithm import FederatedClassification
from supervised.classifiers import CLASSIFIERS
from supervised.config import ClassifyConfig
from supervised.evaluation import Evaluator
from supervised.setup import check_images, classifier_maker, split

COUNTS = "counts"
"""The exchange in which clients are told what the server knows, and may say how it fares."""
FOUND = "found"
"""Where a client's scratch holds the cluster, or the predicted class, of each image."""


@dataclass(frozen=True)
class Counts:
    """What a client says of the clusters, or the predicted classes, of its images.

    Attributes:
        table: int64 of shape (classes, clusters or predicted classes): how many images of each
            class are where. Of shape (0, 0) where the client has no labels or keeps that to itself.
    """

    table: Tensor


def counting(told: type[Any], uses_memory: bool = False) -> Exchange[Any, Counts]:
    """The exchange that counts, by what clients are told."""
    return Exchange(COUNTS, told, Counts, uses_memory=uses_memory)


class Half(ABC):
    """What a client can be asked for.

    Args:
        charter: What the server tells of the run.
        data: The client's images.
        device: Where it computes.

    Attributes:
        config: The run's.
        algorithm: The system.
        images: Those that take part in training, uint8 of shape (samples, channels, height, width).
        labels: Their classes, int64 of shape (samples,); None where the system learns without.
    """

    config: MethodConfig
    algorithm: Algorithm[Any]
    images: Tensor
    labels: Tensor | None = None

    def __init__(self, charter: Charter, data: ImageData, device: torch.device) -> None:
        self.charter = charter
        self.data = data
        self.device = device

    @property
    def samples(self) -> int:
        """How many images take part in training."""
        return len(self.images)

    @abstractmethod
    def begin(self) -> None:
        """Make the algorithm, now that the charter tells of all clients together.

        Raises:
            UsageError: The charter does not fit the images.
        """

    @abstractmethod
    def find(self, told: Any, client: Client) -> Tensor:
        """Where the server's knowledge puts each image that it is tested on: int64 (images,)."""

    @property
    @abstractmethod
    def tested(self) -> Tensor | None:
        """The classes of the images that a state is tested on; None where they are not known."""

    @property
    @abstractmethod
    def groups(self) -> int:
        """How many clusters, or predicted classes, there are."""

    @property
    @abstractmethod
    def exchange(self) -> Exchange[Any, Counts]:
        """The exchange that counts."""

    def keep(self, told: Any, folder: Path) -> None:
        """Leave the client what it needs to use the server's knowledge by itself.

        Args:
            told: What the server knows.
            folder: A folder of the client's; it exists.
        """
        return

    def client(self, number: int) -> Client:
        """The holder of the images."""
        images = self.images.to(self.device)
        labels = None if self.labels is None else self.labels.to(self.device)
        return Client(number, f"client {number}", images, labels)

    def works(self, tells: bool) -> Mapping[str, ClientWork[Any, Any]]:
        """What can be asked of the client, by the exchange's name.

        Args:
            tells: Whether its owner allows counts.
        """
        privacy = self.config.section(PrivacyConfig)
        crew = Crew(self.samples, 1, bounding_of(privacy), privacy.smallest_count)
        works = self.algorithm.client_side(crew).works
        if privacy.is_on:
            # What would not travel in one process, and serves a report, is hidden by nothing.
            travelling = {name: work for name, work in works.items() if work.exchange.travels}
            works = works_in_sums(travelling, privacy, self.charter.clients)
        return {**works, COUNTS: Counting(self, tells)}

    def _numbered(self, labels: Tensor) -> Tensor:
        """Labels as the charter numbers the classes.

        Raises:
            UsageError: The charter has a class of the client not.
        """
        places = {name: number for number, name in enumerate(self.charter.classes)}
        if missing := [name for name in self.data.classes if name not in places]:
            raise UsageError(f"the run knows no class {missing[0]!r}")
        return torch.tensor([places[name] for name in self.data.classes])[labels]


class ClusteringHalf(Half):
    """A client of a clustering system."""

    config: ClusterConfig
    algorithm: ClusteringAlgorithm[Any]

    def __init__(self, charter: Charter, data: ImageData, device: torch.device) -> None:
        super().__init__(charter, data, device)
        self.config = validate(ClusterConfig, charter.config)
        self.images = data.images

    def begin(self) -> None:
        """Make the system."""
        charter = self.charter
        self.problem = Problem(
            self.config, charter.image_shape, charter.clusters, self.device, charter.samples
        )
        self.algorithm = METHODS[self.config.method].make(self.problem)

    @property
    def exchange(self) -> Exchange[Any, Counts]:
        """Clients are told what any client receives in the end."""
        return counting(self.algorithm.delivery_type)

    def find(self, told: Any, client: Client) -> Tensor:
        """The cluster of each image."""
        return self.algorithm.assign_delivered(told, client)

    def keep(self, told: Any, folder: Path) -> None:
        """The model, for ``ccfcpp predict``."""
        paths = RunPaths(folder)
        write_whole(paths.config, dump_yaml(self.config).encode())
        save_tensors(paths.model, pack(told), ModelFacts.of(self.problem).header)

    @property
    def tested(self) -> Tensor | None:
        """The classes of all images."""
        return None if self.data.labels is None else self._numbered(self.data.labels)

    @property
    def groups(self) -> int:
        """The number of clusters, k."""
        return self.charter.clusters


class ClassificationHalf(Half):
    """A client that trains a classifier; images of its own that take no part are for testing."""

    config: ClassifyConfig
    algorithm: FederatedClassification

    def __init__(self, charter: Charter, data: ImageData, device: torch.device) -> None:
        super().__init__(charter, data, device)
        self.config = validate(ClassifyConfig, charter.config)
        check_images(self.config, data)
        self._train, self._test = split(self.config, data)
        self.images = data.images[self._train]
        self._test_images = data.images[self._test].to(device)

    def begin(self) -> None:
        """Make the method."""
        charter, config = self.charter, self.config
        assert self.data.labels is not None
        self.labels = self._numbered(self.data.labels[self._train])
        make_model = classifier_maker(config, charter.image_shape, len(charter.classes))
        self.algorithm = FederatedClassification(
            config,
            make_model,
            charter.image_shape,
            len(charter.classes),
            charter.clients,
            self.device,
        )
        self._evaluator = Evaluator(make_model, config, self.device)

    @property
    def exchange(self) -> Exchange[Any, Counts]:
        """Counting takes the parts of the model that stay with the client."""
        return counting(self.algorithm.state_type, CLASSIFIERS[self.config.method].personal)

    def find(self, told: Any, client: Client) -> Tensor:
        """The predicted class of each test image."""
        model = told.model
        if self.exchange.uses_memory:
            model = self.algorithm.sharing.personal(model, client.memory)
        return self._evaluator(model, self._test_images)[1]

    @property
    def tested(self) -> Tensor | None:
        """The classes of the test images."""
        assert self.data.labels is not None
        return self._numbered(self.data.labels[self._test])

    @property
    def groups(self) -> int:
        """The number of classes."""
        return len(self.charter.classes)


class Counting(ClientWork[Any, Counts]):
    """A client looks where a state puts its images, and says how many of each class are where.

    Args:
        half: The client's half.
        tells: Whether its owner allows counts.
    """

    def __init__(self, half: Half, tells: bool) -> None:
        self.half = half
        self.tells = tells
        self.exchange = half.exchange

    def local_updates(
        self, task: Task, message: Any, clients: Sequence[Client], randomness: Randomness
    ) -> list[Counts]:
        """Where the images are stays in the client's scratch."""
        (client,) = clients
        found = self.half.find(message, client).cpu()
        client.scratch[FOUND] = found
        classes = self.half.tested if self.tells else None
        if classes is None:
            return [Counts(torch.zeros(0, 0, dtype=torch.int64))]
        table = torch.zeros(len(self.half.charter.classes), self.half.groups, dtype=torch.int64)
        ones = torch.ones(len(found), dtype=torch.int64)
        return [Counts(table.index_put_((classes, found), ones, accumulate=True))]


def make_half(charter: Charter, data: ImageData, device: torch.device) -> Half:
    """A client's half.

    Raises:
        UsageError: The configuration is of another form, or does not fit the images.
    """
    kinds = {"cluster": ClusteringHalf, "classify": ClassificationHalf}
    return kinds[charter.command](charter, data, device)


def load_for(charter: Charter, place: str) -> ImageData:
    """A client's own images, in the size that the run has them.

    Args:
        charter: What the server tells of the run; it cannot name another place.
        place: An image folder, an archive of one, or an ``.npz`` file.

    Raises:
        UsageError: They cannot be read.
    """
    if not Path(place).exists():
        raise UsageError(f"there are no images at {place}: give another --data")
    section = charter.config.get("data")
    wanted = section if isinstance(section, dict) else {}
    return load(place, image_size=wanted.get("image_size"))
