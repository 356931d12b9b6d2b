"""Loading of a run's trained model, which assigns images or vectors to clusters."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.confidence import confidence
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.mahalanobis import SampleDistribution, split_model
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.preprocessing.categories import count_unknown
from ccfcpp.clustering.preprocessing.make_algorithm import make_algorithm
from ccfcpp.clustering.preprocessing.phases import PhasedClustering
from ccfcpp.core.config import Positive, PrecisionConfig, Section, VectorsConfig
from ccfcpp.core.config_layers import merge, read_yaml, validate
from ccfcpp.core.errors import FederationError, UsageError
from ccfcpp.core.files import read_tensors
from ccfcpp.core.randomness import SERVER
from ccfcpp.core.units import format_count
from ccfcpp.data.columns import Roles, known_names, read_frame
from ccfcpp.data.npz import from_arrays
from ccfcpp.data.vectors import refuse_mask, vectors_from
from ccfcpp.engine.client import Client
from ccfcpp.engine.payload import PayloadError, unpack
from ccfcpp.models.state import to_device
from ccfcpp.runs.environment import choose_device
from ccfcpp.runs.paths import RunPaths

_HEADER = "ccfcpp"
"""Key of the facts in a model file's header."""


_MISFITS = (RuntimeError, LookupError, ValueError, AssertionError)
"""Errors that the tensors of another system or network may cause."""
_MOST_LETTERS = 200
"""Largest length of a reason in an error message."""


class ModelFacts(Section):
    """Header of a model's file: what is needed besides the configuration to rebuild the model."""

    clusters: Positive
    """Number of clusters k; if k was chosen from the data, its largest candidate."""
    image_shape: tuple[Positive, Positive, Positive] | tuple[Positive]
    """Channels, height and width of an image; (d,) if the data are vectors."""
    columns: tuple[str, ...] = ()
    """Names of the columns of the vectors, if they have any."""

    @staticmethod
    def of(clusters: int, shape: tuple[int, ...], columns: Sequence[str] = ()) -> ModelFacts:
        """Validate and return the facts: number of clusters, shape of a sample, column names."""
        facts = {"clusters": clusters, "image_shape": shape, "columns": tuple(columns)}
        return ModelFacts.model_validate(facts)

    @property
    def header(self) -> dict[str, str]:
        """The facts as the metadata of a safetensors file."""
        return {_HEADER: self.model_dump_json()}


Samples = Tensor | NDArray[np.uint8] | NDArray[np.floating]
"""Images, uint8, or vectors, floats."""


@dataclass(frozen=True)
class Model:
    """A trained model, which assigns images or vectors to clusters; made by ``load_model``.

    Attributes:
        problem: Configuration, data shape, number of clusters and device.
        algorithm: The clustering system.
        final_model: The tensors that clients receive after the run, as the system's dataclass.
        columns: Names of the columns of the vectors, if they have any.
        typical: Distribution of the run's samples; None if it is unknown.
    """

    problem: Problem
    algorithm: ClusteringAlgorithm[Any]
    final_model: Any
    columns: tuple[str, ...] = ()
    typical: SampleDistribution | None = None

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels, height and width of an image; (d,) if the data are vectors."""
        return self.problem.image_shape

    def assign(self, images: Samples) -> Tensor:
        """Return the cluster of each image.

        Args:
            images: uint8 of shape (images, channels, height, width); or (images, height, width), or
                (images, height, width, channels). Or vectors, floats of shape (vectors, d).

        Returns:
            int64 of shape (images,), on the CPU.

        Warns:
            UserWarning: A data frame holds no value of a column, or unknown categories.

        Raises:
            UsageError: The images have another dtype or shape than those of the run.
        """
        return self._assign(images)[1]

    def examine(self, images: Samples) -> dict[str, Tensor]:
        """Return the cluster of each image, with measures of confidence.

        Args:
            images: Images or vectors as for ``assign``.

        Returns:
            Tensors of shape (images,) on the CPU: ``cluster``, int64; and floats, each if it is
            known: ``probability`` of the cluster; ``distance`` to its centre, Euclidean or in
            degrees; ``outlier``, the Mahalanobis distance to its mean, where 1 is usual.

        Raises:
            UsageError: The images have another dtype or shape than those of the run.
        """
        client, clusters = self._assign(images)
        measures = confidence(self.algorithm, self.final_model, client, clusters, self.typical)
        return {"cluster": clusters} | measures

    def describe_gaps(self, samples: Tensor) -> list[str]:
        """Return a line for each column that is missing or unknown in a table, (rows, d).

        Columns whose values are all missing, and columns of categories with some that the model
        has no column for.
        """
        names = self.columns or tuple(map(str, range(samples.shape[1])))
        missing = samples.isnan().all(dim=0).tolist()
        lines = [
            f"column {name!r} is missing: the run's mean stands for it"
            for name, all_missing in zip(names, missing, strict=True)
            if all_missing
        ]
        categories = self.problem.config.section(VectorsConfig).categories
        if categories and isinstance(self.algorithm, PhasedClustering):
            known = self.algorithm.phase_state(self.final_model)
            counts = count_unknown(samples[:, -len(categories) :].double(), known).tolist()
            lines += [
                f"column {name!r}: {count} of {format_count(len(samples), 'row')} hold a category "
                "that the model has no column for: the run had none so spelt, or few rows of it"
                for name, count in zip(categories, counts, strict=True)
                if count
            ]
        return lines

    def probabilities(self, images: Samples) -> Tensor | None:
        """Return the probability of each cluster for each image, of shape (images, k) on the CPU.

        None if the system has none. ``images`` are as for ``assign``.
        """
        client = self.make_client(images)
        probabilities = self.algorithm.probabilities(self.final_model, client)
        return None if probabilities is None else probabilities.cpu()

    def make_client(self, images: Samples) -> Client:
        """Check images or vectors, and return a client that holds them.

        Raises:
            UsageError: They have another dtype or shape than those of the run.
        """
        given = images.cpu().numpy() if isinstance(images, Tensor) else self._as_array(images)
        if self.problem.has_vectors:
            missing = self.problem.config.section(VectorsConfig).missing
            values = vectors_from("vectors", given, "the model", missing=missing).values
        else:
            values = from_arrays("images", given, None, "the model").values
        if tuple(values.shape[1:]) != self.image_shape:
            wanted = ", ".join(map(str, self.image_shape))
            unit, mend = (
                ("vectors", "give as many columns")
                if self.problem.has_vectors
                else ("images", "resize them")
            )
            raise UsageError(f"{unit} are {tuple(values.shape)}, expected (n, {wanted}): {mend}")
        return Client(SERVER, "predict", values.to(self.problem.device))

    def _as_array(self, images: Any) -> NDArray[Any]:
        """Return samples as an array; select and order a data frame's columns as the model's.

        Warn of a data frame's gaps, as ``describe_gaps`` names them.
        """
        refuse_mask(images)
        names = getattr(images, "columns", None)
        vectors = self.problem.config.section(VectorsConfig)
        if names is None and (vectors.categories or vectors.dates):
            raise UsageError("the model has columns of categories or dates: give a data frame")
        if names is None or not self.columns:
            return np.asarray(images)
        roles = Roles.of(vectors)
        names = known_names("the model", self.columns)
        numbers = read_frame("the data frame", images, names, roles).numbers
        for line in self.describe_gaps(torch.from_numpy(numbers)):
            warnings.warn(line, stacklevel=5)
        return numbers

    def _assign(self, images: Samples) -> tuple[Client, Tensor]:
        """Return a client that holds the images, and their clusters on the CPU."""
        client = self.make_client(images)
        return client, self.algorithm.assign_by_model(self.final_model, client).cpu()


def load_model(path: str | Path, device: str = "auto") -> Model:
    """Load the model of a run of ``ccfcpp cluster``, or one that a client has received.

    Args:
        path: A file ``model.safetensors`` with the run's ``config.yaml`` beside it, or its folder.
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        UsageError: There is no such model, it cannot be read, or it does not fit the
            ``config.yaml`` beside it.

    Example:
        >>> import tempfile
        >>> import ccfcpp
        >>> settings = {"dataset": "digits", "method": "k-fed", "data.images": 100}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     summary = ccfcpp.run(settings, out=folder)
        ...     model = ccfcpp.load_model(folder)
        >>> model.assign(ccfcpp.load("digits").images[:3]).shape
        torch.Size([3])
    """
    path = Path(path)
    path = RunPaths(path).model if path.is_dir() else path
    if not path.is_file():
        raise UsageError(
            f"there is no model {path}: give the model.safetensors of a finished run of ccfcpp "
            "cluster"
        )
    on = choose_device(device)
    own, typical, header = _read(path, on)
    config = _read_config(path, on)
    facts = _parse_header(path, header)
    fewest = config.fewest_clusters
    problem = Problem(config, facts.image_shape, facts.clusters, on, fewest=fewest)
    algorithm = make_algorithm(problem)
    model = Model(problem, algorithm, _unpack(path, algorithm, own), facts.columns, typical)
    _check_assigns(path, model)
    return model


def _read(
    path: Path, device: torch.device
) -> tuple[dict[str, Tensor], SampleDistribution | None, dict[str, str]]:
    """Return the tensors of a model's file, the distribution of the samples, and the header."""
    try:
        tensors, header = read_tensors(path)
        return *split_model(to_device(tensors, device)), header
    except PayloadError as error:
        raise _misfit(path, error) from error
    except (ValueError, OSError) as error:
        raise UsageError(
            f"{path} is no model ({error}): give the model.safetensors of a run of ccfcpp cluster"
        ) from error


def _read_config(path: Path, device: torch.device) -> ClusterConfig:
    """Read the configuration beside a model; without a GPU, replace TF32 by float32."""
    file = RunPaths(path.parent).config
    if not file.is_file():
        raise UsageError(f"{file} is missing: put it beside the model, from the folder of the run")
    tree = read_yaml(file)
    method = str(tree.get("method"))
    if method not in METHODS:
        raise UsageError(
            f"{file} names no known system of clustering ({method}): give a model of ccfcpp "
            "cluster, or install the package that adds the system"
        )
    config = validate(ClusterConfig, tree)
    if device.type == "cuda" or config.section(PrecisionConfig).precision != "tf32":
        return config
    # Only GPUs have TF32, and only training needs it.
    tree = merge(config.model_dump(mode="json"), {"compute": {"precision": "float32"}})
    return validate(ClusterConfig, tree)


def _parse_header(path: Path, header: dict[str, str]) -> ModelFacts:
    try:
        return ModelFacts.model_validate_json(header.get(_HEADER, ""))
    except ValidationError as error:
        raise UsageError(
            f"the header of {path} cannot be read, or is of another version of ccfcpp: run this "
            "again"
        ) from error


def _unpack(path: Path, algorithm: ClusteringAlgorithm[Any], tensors: dict[str, Tensor]) -> Any:
    """Return the final model from tensors: those of the server's state, or else its own."""
    try:
        return algorithm.final_model(unpack(algorithm.state_type, tensors))
    except FederationError as error:
        raise _without_clusters(path) from error
    except _MISFITS as error:
        try:
            return unpack(algorithm.final_model_type, tensors)
        except PayloadError:
            raise _misfit(path, error) from error


def _check_assigns(path: Path, model: Model) -> None:
    """Check that a model can assign an image of zeros, before the user's images are read."""
    try:
        dtype = torch.float64 if model.problem.has_vectors else torch.uint8
        model.assign(torch.zeros(1, *model.image_shape, dtype=dtype))
    except FederationError as error:
        raise _without_clusters(path) from error
    except NotImplementedError as error:
        raise UsageError(
            f"{model.problem.config.method} does not assign new images: take another system"
        ) from error
    except _MISFITS as error:
        raise _misfit(path, error) from error


def _without_clusters(path: Path) -> UsageError:
    return UsageError(f"{path} knows no clusters yet: give the model of a finished run")


def _misfit(path: Path, error: Exception) -> UsageError:
    # Shortened, since PyTorch lists every tensor that does not fit.
    reason = textwrap.shorten(str(error), _MOST_LETTERS) or type(error).__name__
    return UsageError(
        f"{path} does not fit the config.yaml beside it ({reason}): put the two of one run together"
    )
