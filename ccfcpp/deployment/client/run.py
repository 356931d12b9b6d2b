"""A client's side of a run, built from the run's description and the client's own images."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm
from ccfcpp.clustering.confidence import confidence, table_columns
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.evaluation.epilogue import ClusteringEpilogue
from ccfcpp.clustering.evaluation.profile import profile
from ccfcpp.clustering.evaluation.server import NAMES
from ccfcpp.clustering.mahalanobis import FinalMessage, model_tensors
from ccfcpp.clustering.model import ModelFacts
from ccfcpp.clustering.preprocessing.make_algorithm import make_algorithm
from ccfcpp.clustering.setup import check_encoder, load_run_encoder
from ccfcpp.clustering.vector_checks import check_range
from ccfcpp.core.config import DataConfig, RunConfig, Tree, VectorsConfig
from ccfcpp.core.config_layers import dump_yaml, merge, validate, validated
from ccfcpp.core.data_kinds import kind_of
from ccfcpp.core.encoders import EncoderName
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import save_tensors, write_atomically
from ccfcpp.core.metrics import contingency_table
from ccfcpp.core.name_matching import canonical
from ccfcpp.core.randomness import Randomness
from ccfcpp.core.tables import Columns
from ccfcpp.data.images import ImageData
from ccfcpp.data.open import AnyData, open_dataset, open_images
from ccfcpp.data.vectors import VectorData
from ccfcpp.deployment.client.results import save_results
from ccfcpp.deployment.client.rules import ForbiddenError
from ccfcpp.deployment.link.algorithms import (
    COUNTS,
    NO_COUNTS,
    Counts,
    classification_algorithm,
    clustering_problem,
    counts_exchange,
)
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import AnyClientWork, ClientWork, RefusedUpdateError, Task
from ccfcpp.engine.payload import pack
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.per_image_clipping import bounding_of
from ccfcpp.privacy.sums.client import wrap_works
from ccfcpp.privacy.sums.identity import Safeguard
from ccfcpp.runs.environment import choose_device
from ccfcpp.runs.paths import RunPaths
from supervised.algorithm import FederatedClassification
from supervised.config import ClassifyConfig
from supervised.evaluation import Predictor
from supervised.messages import ServerState
from supervised.setup import check_images, train_test_indices

Model = TypeVar("Model")
_COLUMNS = {"label_column": None, "text_column": "text"}
"""Settings that name columns of a table, with their defaults."""
_OWNERS = {"skip", "max_pixels"}
"""Settings of the owner alone: a server that chose which files are read could compare runs."""
ASSIGNMENTS = "found"
"""Key in ``Client.scratch`` of the cluster or predicted class of each image."""


class ClientRun(ABC, Generic[Model]):
    """Base class of a client's side of a run: its data, algorithm and work in each exchange.

    Attributes:
        images: Images for training, uint8 of shape (samples, channels, height, width), or vectors.
        labels: Class labels, int64 of shape (samples,); None if they are not used for training.
        test_labels: The client's own class labels of the images for testing; None if it has none.
    """

    config: RunConfig
    algorithm: ClusteringAlgorithm[Any] | FederatedClassification
    images: Tensor
    labels: Tensor | None = None
    test_labels: Tensor | None
    epilogue: ClusteringEpilogue | None = None
    """The exchanges after the last round, which evaluate the model; None if there are none."""

    def __init__(self, spec: RunSpec, data: AnyData, device: torch.device) -> None:
        self.spec = spec
        self.data = data
        self.device = device

    @abstractmethod
    def prepare(self) -> None:
        """Build the algorithm, once the server has completed the run's description (``spec``)."""

    @abstractmethod
    def assign(self, model: Model, client: Client) -> Tensor:
        """Return each test image's cluster or class by a model, int64 of shape (images,)."""

    @property
    def test_classes(self) -> Tensor | None:
        """Class label of each test image, int64 of shape (images,); None if there are no labels."""
        return None if self.test_labels is None else self._renumber(self.test_labels)

    def save(self, model: Model, client: Client, assigned: Tensor, folder: Path) -> None:
        """Write the results for the owner to a folder: the ``assigned`` clusters or classes."""
        save_results(folder, assigned, (), self.images)

    def client(self, number: int) -> Client:
        """Return a ``Client`` of the engine with this client's training images and ``number``."""
        images = self.images.to(self.device)
        labels = None if self.labels is None else self.labels.to(self.device)
        return Client(number, f"client {number}", images, labels)

    def works(
        self,
        least: int,
        sends_counts: bool,
        guard: Safeguard = Safeguard(),  # noqa: B008 - it keeps nothing
    ) -> Mapping[str, AnyClientWork]:
        """Return the client's work in each exchange, by the exchange's name.

        Args:
            least: Smallest number of images in any sum that is sent.
            sends_counts: Whether the client may send counts of its images by class and cluster.
            guard: Protection of the client in secure sums.
        """
        privacy = self.config.section(PrivacyConfig)
        alike = privacy.level == "client"
        context = ClientContext(len(self.images), 1, bounding_of(privacy), least, alike)
        works = self.algorithm.client_side(context).works
        if self.epilogue is not None:
            works = {**works, **self.epilogue.client_works(context)}
        if privacy.is_on:
            # Exchanges only for a report are not part of secure sums or noise: they are left out.
            travelling = {name: work for name, work in works.items() if work.exchange.travels}
            works = wrap_works(travelling, privacy, self.spec.clients, guard)
        return {**works, COUNTS: Counting(self, sends_counts)}

    def check_order(self, exchange: str, number: int, index: int) -> None:
        """Check that an exchange for evaluation comes once, in its place after the last round.

        These exchanges send sums over a model's clusters; for many models they would reveal images.

        Args:
            exchange: Name of the exchange; others than those for evaluation are not checked.
            number: Number of the round.
            index: Position of the exchange in the round, from 0.

        Raises:
            RefusedUpdateError: It comes at another place.
        """
        names = () if self.epilogue is None else NAMES
        planned, last = names[index : index + 1], number == self.algorithm.rounds
        for name in set(names):
            if exchange.startswith(name) and not (last and planned == (name,)):
                raise RefusedUpdateError(f"{name} comes once, after the last round")

    def _renumber(self, labels: Tensor) -> Tensor:
        """Convert the client's numbers for classes to the run's, by the classes' names."""
        places = {name: number for number, name in enumerate(self.spec.classes)}
        own = [*map(canonical, self.data.classes)]
        if missing := [name for name in own if name not in places]:
            raise UsageError(f"the run knows no class {missing[0]!r}")
        return torch.tensor([places[name] for name in own])[labels]


class ClusteringClient(ClientRun[FinalMessage[Any]]):
    """A client's side of a clustering run. All images are used for training and for testing."""

    config: ClusterConfig
    algorithm: ClusteringAlgorithm[Any]

    def __init__(self, spec: RunSpec, data: AnyData, device: torch.device) -> None:
        super().__init__(spec, data, device)
        self.config = validate(ClusterConfig, spec.config)
        if isinstance(data, VectorData):
            try:
                check_encoder(self.config, data.encoder)
            except UsageError as error:
                raise RefusedUpdateError(str(error)) from error
        self.images, self.test_labels = data.values, data.labels

    def prepare(self) -> None:
        """Build the run's clustering system; put named columns of vectors in the run's order."""
        own: tuple[str, ...] = getattr(self.data, "columns", ())
        if own != self.spec.columns:
            if set(own) != set(self.spec.columns):
                raise UsageError("its columns have other names than those of the run")
            self.images = self.images[:, [own.index(name) for name in self.spec.columns]]
        self.problem = clustering_problem(self.config, self.spec, self.device)
        if self.problem.has_vectors:
            check_range(self.config.vectors, self.images)
        self.algorithm = make_algorithm(self.problem)
        # Scores without labels cost privacy: a run with differential privacy has none.
        if self.config.privacy.level == "none":
            self.epilogue = ClusteringEpilogue(self.algorithm, self.spec.clusters)

    def assign(self, model: FinalMessage[Any], client: Client) -> Tensor:
        """Return the cluster of each image by a model, int64 of shape (images,)."""
        return self.algorithm.assign_by_model(model.model, client)

    def save(
        self, model: FinalMessage[Any], client: Client, assigned: Tensor, folder: Path
    ) -> None:
        """Write the clusters with the confidence in them, a profile of them, and the model."""
        sure = confidence(self.algorithm, model.model, client, assigned, model.typical)
        columns = table_columns({"cluster": assigned} | sure)
        rows = list(Columns({self.data.key: self.data.called, **columns}))
        pictures = getattr(self.data, "pictures", None)
        described = profile(self.data, self.config.vectors, assigned)
        save_results(folder, assigned, rows, self.images, pictures, described)
        self._save_model(model, RunPaths(folder))

    def _save_model(self, model: FinalMessage[Any], paths: RunPaths) -> None:
        """Write the model and its settings for ``ccfcpp predict``, without the encoder's name."""
        data = self.config.data.model_copy(update={"encoder": None})
        config = self.config.model_copy(update={"data": data})
        write_atomically(paths.config, dump_yaml(config).encode())
        tensors = model_tensors(pack(model.model), model.typical)
        facts = ModelFacts.of(self.spec.clusters, self.spec.image_shape, self.spec.columns)
        save_tensors(paths.model, tensors, facts.header)


class ClassificationClient(ClientRun[ServerState]):
    """A client's side of a classification run. Its images are split into training and test."""

    config: ClassifyConfig
    algorithm: FederatedClassification

    def __init__(self, spec: RunSpec, data: ImageData, device: torch.device) -> None:
        super().__init__(spec, data, device)
        self.config = validate(ClassifyConfig, spec.config)
        check_images(self.config, data)
        assert data.labels is not None
        train, test = train_test_indices(self.config, data)
        self.images, self._train_labels = data.images[train], data.labels[train]
        self._test_images, self.test_labels = data.images[test].to(device), data.labels[test]

    def prepare(self) -> None:
        """Build the run's classification algorithm and the predictor for test images."""
        self.labels = self._renumber(self._train_labels)
        self.algorithm = classification_algorithm(self.config, self.spec, self.device)
        self._predict = Predictor(self.algorithm.make_model, self.config, self.device)

    def assign(self, model: ServerState, client: Client) -> Tensor:
        """Return the class of each test image, predicted by a model, int64 of shape (images,)."""
        weights = model.model
        if counts_exchange(self.algorithm).uses_memory:
            weights = self.algorithm.sharing.personal(weights, client.memory)
        return self._predict(weights, self._test_images)[1]


class Counting(ClientWork[Model, Counts]):
    """The client's work in the exchange ``counts``: to count its images by class and cluster."""

    def __init__(self, run: ClientRun[Model], sends_counts: bool) -> None:
        self.run = run
        self.sends_counts = sends_counts
        self.exchange = counts_exchange(run.algorithm)

    def local_updates(
        self, task: Task, message: Model, clients: Sequence[Client], randomness: Randomness
    ) -> list[Counts]:
        """Assign the images; return their contingency table, or an empty one if it is not sent.

        The assignments are stored in ``client.scratch``.
        """
        (client,) = clients
        assigned = self.run.assign(message, client).cpu()
        client.scratch[ASSIGNMENTS] = assigned
        classes = self.run.test_classes if self.sends_counts else None
        if classes is None:
            return [NO_COUNTS]
        return [Counts(contingency_table(classes, assigned, *self.run.spec.table_shape))]


def make_client_run(spec: RunSpec, data: AnyData, device: torch.device) -> ClientRun[Any]:
    """Return a client's side of a run on ``data``; raise ``UsageError`` if they cannot be used."""
    if spec.command == "cluster":
        return ClusteringClient(spec, data, device)
    if not isinstance(data, ImageData):
        raise UsageError("vectors are not classified: give images")
    return ClassificationClient(spec, data, device)


def load_data(
    spec: RunSpec,
    place: str,
    skip: float | str | None = None,
    encoder: str | None = None,
    own: VectorsConfig = VectorsConfig(),  # noqa: B008 - it cannot change
) -> AnyData:
    """Load a client's images, resized to the run's shape, or its vectors.

    Args:
        spec: Description of the run. Before it has an image shape, the shape is chosen from the
            images.
        place: Path of the data, given by the owner: an image folder, an archive of one, an
            ``.npz`` file, or a file of vectors.
        skip: Share of the files that may be unreadable; None: the default.
        encoder: The owner's choice of an encoder for images or texts. The run may only state
            which one is required.
        own: The owner's choice of columns, for example the one with labels.

    Raises:
        UsageError: The data cannot be read, or do not fit the run.
        ForbiddenError: The run names a column that the owner has not named.
    """
    if not Path(place).exists():
        raise UsageError(f"there are no images at {place}: give another --data")
    # An absolute path, since a relative one could be mistaken for the name of a data set.
    place = str(Path(place).absolute())
    if encoder is not None:
        return _load_encoded(spec, place, skip, encoder, own)
    if spec.command == "cluster" and kind_of(place) == "vectors":
        vectors = validate(ClusterConfig, spec.config).vectors
        _owner_columns(vectors, own)
        columns = vectors.model_copy(update={"label_column": own.label_column})
        return open_dataset(place, vectors=columns)
    section = spec.config.get("data")
    known = section.items() if isinstance(section, dict) else ()
    if wanted := dict(known).get("encoder"):
        raise UsageError(
            f"the run is on vectors of {wanted}, and {place} holds none: give --encoder"
        )
    settings = {
        key: value for key, value in known if key in DataConfig.model_fields.keys() - _OWNERS
    }
    if skip is not None:
        settings["skip"] = skip
    reading = validated(DataConfig, settings)
    shape = spec.image_shape
    if len(shape) == 1:
        raise UsageError(f"the run is on vectors, and {place} holds images: give another --data")
    wanted_shape = (shape[0], shape[1], shape[2]) if shape else None
    return open_images(place, data=reading, shape=wanted_shape)


def _owner_columns(vectors: VectorsConfig, own: VectorsConfig) -> Tree:
    """Return the owner's choice of columns; raise ``ForbiddenError`` if the run names others."""
    for key, usual in _COLUMNS.items():
        named = getattr(vectors, key)
        if getattr(own, key) == usual != named:
            raise ForbiddenError(
                f"the run names column {named!r}, and its owner does not: give "
                f"--{key.replace('_', '-')} {named}"
            )
    return own.model_dump(include={*_COLUMNS, "client_column"})


def _load_encoded(
    spec: RunSpec, place: str, skip: float | str | None, encoder: str, columns: VectorsConfig
) -> AnyData:
    if spec.command != "cluster":
        raise UsageError("vectors of an encoder are not classified: leave --encoder out")
    config, own = validate(ClusterConfig, spec.config), EncoderName.parse(encoder)
    wanted = config.data.encoder_name
    if wanted is not None and not own.may_be(wanted):
        raise UsageError(
            f"the run is on vectors of {wanted.called}, and --encoder is {own.called}: give the "
            "same one"
        )
    # The encoder's hash is checked later, by ClusteringClient, so that the server learns of a
    # mismatch. The server's partition is replaced: all data here belong to this client.
    changes: Tree = {"dataset": place, "data": {"encoder": encoder, "encoder_hash": None}}
    changes["partition"] = {"kind": "iid"}
    changes["vectors"] = _owner_columns(config.vectors, columns)
    changes["data"] |= DataConfig().model_dump(include=_OWNERS)
    if skip is not None:
        changes["data"]["skip"] = skip
    config = validate(ClusterConfig, merge(spec.config, changes))
    return open_dataset(
        place,
        load_run_encoder(config, choose_device("auto")),
        data=config.data,
        vectors=config.vectors,
    )
