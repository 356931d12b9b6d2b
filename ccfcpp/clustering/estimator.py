"""scikit-learn estimator for federated clustering of images or vectors in memory."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.api import CLUSTERING
from ccfcpp.clustering.auto_settings import settings_for
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.kmeans.centroids import required_centroids
from ccfcpp.clustering.mahalanobis import model_tensors, split_model
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.model import Model, ModelFacts, load_model
from ccfcpp.clustering.preprocessing.make_algorithm import make_algorithm
from ccfcpp.clustering.setup import check_encoder
from ccfcpp.core.config import VectorsConfig
from ccfcpp.core.config_layers import dump_yaml, merge, unflatten, validated
from ccfcpp.core.encoders import refuse_program
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import read_tensors, save_tensors, write_atomically
from ccfcpp.data.categories import describe_categories
from ccfcpp.data.columns import (
    Roles,
    check_distinct,
    find_vector_columns,
    known_names,
    read_frame,
    warn_of_row_numbers,
)
from ccfcpp.data.npz import from_arrays
from ccfcpp.data.open import AnyData
from ccfcpp.data.vectors import VectorData, check_finite, refuse_mask, vectors_from
from ccfcpp.engine.payload import pack, unpack
from ccfcpp.runs.environment import choose_device
from ccfcpp.runs.estimator import AUTO, FederatedEstimator, Names
from ccfcpp.runs.paths import RunPaths

_FOR_VECTORS = "fed-em"
_FITTED = "estimator.safetensors"
_HEADER = "estimator"

Samples = Any
"""uint8 images, or vectors: an array, a scipy sparse matrix or a pandas data frame."""


def _is_soft(estimator: "FederatedClustering") -> bool:
    """Return whether the estimator's system has probabilities or memberships."""
    problem = getattr(estimator, "_problem", None)
    method = estimator.method if problem is None else problem.config.method
    # What ``auto`` stands for is unknown before the data are.
    return method not in METHODS or METHODS[method].soft


class FederatedClustering(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc] # no types there
    TransformerMixin,  # type: ignore[misc]
    ClusterMixin,  # type: ignore[misc]
    FederatedEstimator,
):
    """Federated clustering of images or vectors over the clients that hold them.

    X is uint8 images of shape (n, h, w), (n, h, w, c) or (n, c, h, w) with c 1 or 3; or vectors of
    shape (n, d): an array of numbers, a scipy sparse matrix, which becomes dense, or a pandas data
    frame. With an encoder of texts it is a list of strings.

    Args:
        n_clusters: Number of clusters k; ``auto`` or a range such as ``5-30`` to choose it from the
            data, with Fed-SCAN, Fed-EMP, Fed-KM, Fed-FCM or Fed-EM, or with CCFC or CCFC++ if they
            are pre-trained by neighbours.
        method: Name of a system, as in ``ccfcpp cluster --method``; ``auto``: Fed-EMP for 1,000 or
            more images in colour of 24 × 24 pixels or more, Fed-SCAN for other images, and Fed-EM
            for vectors, with 20 principal components if they are longer than 32.
        random_state: Seed of all random numbers. With a ``RandomState``, each fit draws a seed from
            it; with None, each fit has a new seed.
        device: ``auto``, ``cpu`` or ``cuda``.
        encoder: Name of a pre-trained encoder for images or texts, as ``ccfcpp cluster
            --encoder`` takes it, such as ``torchvision:resnet50``; None without one.
        settings: Other sections of the configuration, as a nested mapping such as
            ``{"scan": {"steps": 60}}``, or ``{"vectors": {"categories": ["colour"], "dates":
            ["born"]}}`` for a data frame. They override the settings that are otherwise chosen by
            the shape and number of the samples.
        verbose: Whether ``fit`` prints a line for each round.

    Attributes:
        n_clusters_: Number of clusters, as given or chosen.
        labels_: Cluster of each sample, int64 of shape (n_samples,).
        cluster_centers_: Global centroids of shape (n_clusters_, dimensions): in latent space,
            pixel space, or the space of the vectors after preprocessing.
        n_iter_: Number of rounds.
        n_features_in_: Length of a vector; not set for images.
        feature_names_in_: Names of a data frame's columns, if all are strings.

    Example:
        >>> import numpy as np
        >>> from ccfcpp import FederatedClustering
        >>> rng = np.random.default_rng(0)
        >>> X = np.concatenate([rng.normal(centre, size=(50, 2)) for centre in (0, 10)])
        >>> model = FederatedClustering(2, method="fed-km", random_state=0)
        >>> labels = model.fit(X, clients=np.arange(100) % 4).predict(X)
        >>> sorted(np.bincount(labels).tolist())
        [50, 50]
        >>> model.cluster_centers_.shape, model.transform(X).shape
        ((2, 2), (100, 2))
    """

    n_clusters_: int
    labels_: NDArray[np.int64]
    cluster_centers_: NDArray[Any]
    n_iter_: int
    _n_features_out: int
    _problem: Problem
    _tensors: dict[str, Tensor]

    def __init__(
        self,
        n_clusters: int | str = 10,
        *,
        method: str = AUTO,
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
        encoder: str | None = None,
        settings: Mapping[str, object] | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            method=method,
            random_state=random_state,
            device=device,
            settings=settings,
            verbose=verbose,
        )
        self.n_clusters = n_clusters
        self.encoder = encoder

    def fit(
        self,
        X: Samples,  # noqa: N803 - scikit-learn's name
        y: object = None,
        *,
        clients: Names | None = None,
    ) -> Self:
        """Train the system over the clients, and cluster X.

        Args:
            X: Images or vectors.
            y: Ignored; present for scikit-learn's conventions.
            clients: Client that holds each sample, integers or strings of shape (n,). None: one
                client holds all.

        Raises:
            UsageError: X, ``clients`` or a setting is not valid, or they do not fit each other.
        """
        clusters = _check_n_clusters(self.n_clusters)
        if not isinstance(self.settings or {}, Mapping):
            raise UsageError(f"settings = {self.settings!r} is no mapping: give a dictionary")
        data = self._check_samples(X, reset=True)
        source = "./vectors.npy" if data.unit == "vector" else "./images"
        fixed = {"clusters": clusters, "partition": {"kind": "folders"}}
        method = _FOR_VECTORS if self.method == AUTO else self.method
        suited = settings_for(len(data), data.values.shape[1:], method)
        if isinstance(data, VectorData) and data.encoder:
            encoder = {"encoder": self.encoder, "encoder_hash": data.encoder}
            suited = merge(suited, {"data": encoder})
        run = self._run(CLUSTERING, data, clients, fixed, suited, source)
        state, self.n_iter_ = run.train(self.verbose)
        evaluation, _ = run.run_epilogue(run.federation(), state)
        algorithm = run.algorithm
        centres = required_centroids(algorithm.centres(state))
        self._problem = run.evaluator.problem
        typical = evaluation.typical if evaluation else None
        self._tensors = model_tensors(pack(algorithm.final_model(state)), typical)
        self.cluster_centers_ = centres.cpu().numpy()
        self.n_clusters_ = self._n_features_out = len(centres)
        self.labels_ = self._model.assign(data.values).numpy()
        distinct, fewest = len(np.unique(self.labels_)), self._problem.fewest
        if distinct < (max(fewest, self.n_clusters_) if fewest else self._problem.clusters):
            warnings.warn(
                f"Number of distinct clusters ({distinct}) found smaller than n_clusters "
                f"({self.n_clusters}). Possibly due to duplicate points in X.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def predict(self, X: Samples) -> NDArray[np.int64]:  # noqa: N803
        """Return the cluster of each sample, int64 of shape (n,).

        Raises:
            UsageError: The samples differ in shape from those of ``fit``.
            NotFittedError: ``fit`` was not called.
        """
        check_is_fitted(self)
        labels: NDArray[np.int64] = self._model.assign(self._check_samples(X).values).numpy()
        return labels

    @available_if(_is_soft)  # type: ignore[untyped-decorator] # no types there
    def predict_proba(self, X: Samples) -> NDArray[np.floating]:  # noqa: N803
        """Return the probability of each cluster for each sample, of shape (n, k); rows sum to 1.

        They are posterior probabilities in Fed-EM, memberships in Fed-FCM, and the network's
        predictions in Fed-SCAN; estimators with other systems do not have this method.

        Raises:
            UsageError: The samples differ in shape from those of ``fit``.
            NotFittedError: ``fit`` was not called.
        """
        check_is_fitted(self)
        tensor = self._model.probabilities(self._check_samples(X).values)
        assert tensor is not None  # by _is_soft
        probabilities: NDArray[np.floating] = tensor.numpy()
        return probabilities

    def transform(self, X: Samples) -> NDArray[np.floating]:  # noqa: N803
        """Return the distance of each sample to each centroid, of shape (n, k).

        It is Euclidean, or 1 − cos for systems that assign by cosine similarity.

        Raises:
            UsageError: The samples differ in shape from those of ``fit``.
            NotFittedError: ``fit`` was not called.
        """
        check_is_fitted(self)
        model = self._model
        points = model.algorithm.represent(
            model.final_model, model.make_client(self._check_samples(X).values)
        )
        distances: NDArray[np.floating] = _distances(
            required_centroids(points).cpu(),
            torch.from_numpy(self.cluster_centers_),
            model.algorithm.by_angle,
        ).numpy()
        return distances

    def score(self, X: Samples, y: object = None) -> float:  # noqa: N803
        """Return minus the sum of squared distances to the nearest centroids, as in KMeans.

        Raises:
            UsageError: The samples differ in shape from those of ``fit``.
            NotFittedError: ``fit`` was not called.
        """
        return -float(np.square(self.transform(X).min(axis=1)).sum())

    def outlier_factor(self, X: Samples) -> NDArray[np.floating]:  # noqa: N803
        """Return each sample's distance to its cluster, of shape (n,); large for outliers.

        It is the Mahalanobis distance to the cluster's mean, with one covariance for all clusters
        (``ccfcpp.clustering.mahalanobis``), divided by its root mean square over ``fit``'s samples.

        Raises:
            UsageError: The samples differ in shape from those of ``fit``, or their distribution is
                unknown: with differential privacy, with points of more than 1,024 dimensions, or
                if all samples of a cluster are the same.
            NotFittedError: ``fit`` was not called.
        """
        check_is_fitted(self)
        measures = self._model.examine(self._check_samples(X).values)
        if "outlier" not in measures:
            raise UsageError("this model does not know what is usual: see outlier_factor's help")
        factors: NDArray[np.floating] = measures["outlier"].numpy()
        return factors

    def save(self, path: str | Path) -> None:
        """Save the fitted estimator in a new folder, which ``ccfcpp predict`` also accepts.

        The folder contains no samples and no executable code.

        Raises:
            UsageError: The folder is not empty, or ``settings`` do not fit into JSON.
            NotFittedError: ``fit`` was not called.
        """
        check_is_fitted(self)
        paths = RunPaths(Path(path))
        paths.refuse_if_taken()
        parameters = self.get_params(deep=False)
        if not isinstance(self.random_state, Integral | None):
            parameters["random_state"] = None
        try:
            saved = {"parameters": parameters, "n_iter": self.n_iter_}
            header = json.dumps(saved, default=_as_python_number)
        except TypeError as error:
            raise UsageError(f"settings cannot be saved ({error}): give plain values") from error
        shape = self._problem.image_shape
        facts = ModelFacts.of(self._problem.clusters, shape, self._column_names)
        paths.path.mkdir(parents=True, exist_ok=True)
        write_atomically(paths.config, dump_yaml(self._problem.config).encode())
        save_tensors(paths.model, self._tensors, facts.header)
        fitted = {
            "labels": torch.from_numpy(self.labels_),
            "centres": torch.from_numpy(self.cluster_centers_),
        }
        save_tensors(paths.path / _FITTED, fitted, {_HEADER: header})

    @classmethod
    def load(cls, path: str | Path, encoder: str | None = None) -> Self:
        """Load an estimator that ``save`` has written.

        Args:
            path: The folder.
            encoder: Name of the encoder on this machine; None if it is the same as in ``fit``.

        Raises:
            UsageError: The folder holds no saved estimator, it cannot be read, or its encoder is an
                executable program and ``encoder`` does not name it.
        """
        place = Path(path)
        try:
            tensors, header = read_tensors(place / _FITTED)
            saved = json.loads(header[_HEADER])
            labels, centres = tensors["labels"], tensors["centres"]
            parameters, iterations = dict(saved["parameters"]), int(saved["n_iter"])
            saved_encoder = parameters.get("encoder")
            estimator = cls(**parameters | {"encoder": encoder or saved_encoder})
            estimator.n_iter_ = iterations
        except (OSError, TypeError, LookupError, ValueError) as error:
            raise UsageError(
                f"{place} holds no saved FederatedClustering ({error}): give a folder of save()"
            ) from error
        refuse_program(estimator.encoder, [encoder])
        model = load_model(place, estimator.device)
        estimator._problem = model.problem
        estimator._tensors = model_tensors(pack(model.final_model), model.typical)
        estimator.labels_, estimator.cluster_centers_ = labels.numpy(), centres.numpy()
        estimator.n_clusters_ = estimator._n_features_out = len(centres)
        if model.problem.has_vectors:
            (estimator.n_features_in_,) = model.image_shape
        if model.columns:
            estimator.feature_names_in_ = np.array(model.columns, dtype=object)
        return estimator

    @property
    def _model(self) -> Model:
        # Not stored: an algorithm may hold arrays of the samples, which must not be pickled.
        algorithm = make_algorithm(self._problem)
        tensors, typical = split_model(self._tensors)
        final_model = unpack(algorithm.final_model_type, tensors)
        return Model(self._problem, algorithm, final_model, typical=typical)

    def _check_samples(self, X: Samples, reset: bool = False) -> AnyData:  # noqa: N803
        """Validate and convert samples; unless ``reset``, their shape must be that of ``fit``."""
        refuse_mask(X)
        if self.encoder is not None:
            return self._embed(X, self.encoder, reset)
        if not sparse.issparse(X) and not hasattr(X, "columns"):
            X = X if hasattr(X, "dtype") else np.asarray(X)  # noqa: N806
            if np.ndim(X) > 2:
                return self._check_images(np.asarray(X), reset)
        if not reset and not self._problem.has_vectors:
            raise UsageError("the model was fitted to images: give uint8 images")
        own = unflatten(self.settings or {}).get("vectors")
        # A section that is none is refused with the other settings.
        vectors = validated(VectorsConfig, dict(own) if isinstance(own, Mapping) else {})
        roles = Roles.of(vectors)
        names = [*map(str, getattr(X, "columns", ()))]
        convert: Any = partial(validate_data, self, reset=reset, accept_sparse="csr")
        check_distinct([*roles.categories, *roles.dates])
        kinds = getattr(X, "dtypes", ()) if names else ()  # That of a series is no list.
        texts = any(getattr(kind, "kind", "") in "OcmM" for kind in kinds)
        texts = texts and (reset or bool(self._column_names))
        remarks: list[str] = []
        given = known_names("X", names)
        if names and reset:
            find_vector_columns("X", roles, given, names)
        if by_name := bool(roles.categories or roles.dates or texts):
            if not names:
                raise UsageError("vectors.categories and dates name columns: give a data frame")
            names = roles.arranged(given if reset else self._column_names)
            table = read_frame("X", X, names, roles)
            X, remarks = table.numbers, describe_categories(table.categories)  # noqa: N806
            # scikit-learn would miss the names, which the array has no more.
            convert = convert if reset else check_array
        array = convert(X, dtype=[np.float64, np.float32], ensure_all_finite="allow-nan")
        dense = array.toarray() if sparse.issparse(array) else array
        columns = tuple(names) or tuple(map(str, range(dense.shape[1])))
        check_finite(dense, columns, "X", vectors.missing)
        data = vectors_from("vectors", dense, "X", missing=vectors.missing)
        if by_name and not reset:
            for line in self._model.describe_gaps(data.values):
                warnings.warn(line, stacklevel=3)
        if not names or not reset:
            return data
        if by_name:  # Otherwise scikit-learn has set it.
            self.feature_names_in_ = np.array(names, dtype=object)
        known = names if by_name else given
        plain = [place for place, name in enumerate(known) if name not in roles.categories]
        notes = warn_of_row_numbers("X", [known[place] for place in plain], dense[:, plain])
        return replace(data, notes=(*notes, *remarks))

    @property
    def _column_names(self) -> list[str]:
        """Names of the columns of the fitted vectors; [] if they have none."""
        names: Any = getattr(self, "feature_names_in_", ())
        return [*map(str, names)]

    def _embed(self, X: Samples, encoder: str, reset: bool) -> VectorData:  # noqa: N803
        """Embed images or texts; unless ``reset``, the encoder must be that of ``fit``."""
        from ccfcpp.data.encoders.loading import load_encoder
        from ccfcpp.data.encoding import embed_images, embed_texts

        loaded = load_encoder(encoder, choose_device(self.device))
        if not reset:
            config = self._problem.config
            assert isinstance(config, ClusterConfig)
            check_encoder(config, loaded.hash)
        if loaded.name.takes == "images":
            return embed_images(from_arrays("images", np.asarray(X), None, "X"), loaded)
        texts = [text for text in X if isinstance(text, str)]
        if not texts or len(texts) < len(X):
            raise UsageError(f"{loaded.name.called} takes texts: give X as a list of strings")
        return VectorData("texts", embed_texts(texts, loaded), encoder=loaded.hash)

    def _check_images(self, images: NDArray[Any], reset: bool) -> AnyData:
        if reset:
            for name in ("n_features_in_", "feature_names_in_"):
                if hasattr(self, name):
                    delattr(self, name)
            return from_arrays("images", images, None, "X")
        if self._problem.has_vectors:
            raise UsageError(f"the model was fitted to vectors, and X has shape {images.shape}")
        return self._images(images, self._problem.image_shape)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _as_python_number(value: object) -> object:
    """Return one of numpy's numbers as JSON can hold it, such as a ``random_state``."""
    if isinstance(value, np.number):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no plain value")


def _check_n_clusters(clusters: object) -> int | str:
    if isinstance(clusters, str) and not clusters.strip().isdigit():
        return clusters  # The configuration parses it.
    if not isinstance(clusters, Integral) or isinstance(clusters, bool) or clusters < 1:
        raise UsageError(
            f"n_clusters = {clusters!r} is refused: give a whole number, 1 at least; or auto, or a "
            "range such as 5-30"
        )
    return int(clusters)


def _distances(points: Tensor, centres: Tensor, by_angle: bool) -> Tensor:
    points = points.to(centres)
    if by_angle:
        return 1 - F.normalize(points, dim=1) @ F.normalize(centres, dim=1).T
    return torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist")
