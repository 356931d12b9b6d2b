"""Estimator of federated classification with scikit-learn's interface, for images in memory."""

from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from ccfcpp.core.errors import UsageError
from ccfcpp.data.images import ImageData
from ccfcpp.data.npz import from_arrays
from ccfcpp.runs.environment import choose_device
from ccfcpp.runs.estimator import FederatedEstimator, Names, as_plain_array, as_string_array
from supervised.api import CLASSIFICATION
from supervised.classification import ClassificationRun, classification_run
from supervised.classifiers import CLASSIFIERS
from supervised.config import ClassifyConfig
from supervised.evaluation import Predictor
from supervised.setup import classifier_maker

Labels = NDArray[np.generic]


class FederatedClassifier(ClassifierMixin, FederatedEstimator):  # type: ignore[misc] # no types there
    """Classifier trained by simulated federated learning, by default by FedAvg with FedDecorr.

    Args:
        method: A method's name, as ``ccfcpp classify --method`` takes it; not a personal one such
            as ``fedbn``, which has no single model to predict with.
        random_state: Seed of all random numbers.
        device: ``auto``, ``cpu`` or ``cuda``.
        settings: Other sections of the configuration, as a nested mapping such as
            ``{"training": {"rounds": 5}, "decorrelation": {"kind": "none"}}``.
        verbose: Whether ``fit`` prints a line for each round.

    Attributes:
        classes_: The distinct labels, sorted.
        n_iter_: Number of rounds.

    Example:
        >>> import numpy as np
        >>> import ccfcpp
        >>> from supervised import FederatedClassifier
        >>> digits = ccfcpp.load("digits", classes=["0", "1"])
        >>> X, y = digits.images.numpy()[:100], digits.labels.numpy()[:100]
        >>> settings = {"training": {"rounds": 1, "local_epochs": 3, "batch_size": 10}}
        >>> model = FederatedClassifier(random_state=0, settings=settings)
        >>> model.fit(X, y, clients=np.arange(100) % 2).score(X, y) > 0.9
        True
    """

    def fit(
        self,
        X: NDArray[np.uint8],  # noqa: N803 - scikit-learn's name
        y: Labels,
        *,
        clients: Names,
    ) -> Self:
        """Train the classifier on all images, divided among clients as ``clients`` says.

        Args:
            X: uint8 images of shape (n, h, w), (n, h, w, c) or (n, c, h, w) with c 1 or 3.
            y: Labels, integers or strings of shape (n,).
            clients: The client that holds each image: integers or strings of shape (n,).

        Raises:
            UsageError: An array or a setting is not allowed, or the method is a personal one.
        """
        labels = as_string_array(as_plain_array(y, "y"))
        data = from_arrays("images", as_plain_array(X, "X"), labels, "X")
        pipeline = replace(CLASSIFICATION, make=_trained_on_all)
        run = self._run(pipeline, data, clients, {"partition": {"kind": "domain"}})
        state, self.n_iter_ = run.train(self.verbose)
        # Labels that differ in spelling only count as one: the first spelling is kept.
        self.classes_ = labels[np.unique(np.asarray(data.labels), return_index=True)[1]]
        self._config, self._model = run.evaluator.config, state.model
        self._shape = tuple(data.images.shape[1:])
        return self

    def predict(self, X: NDArray[np.uint8]) -> Labels:  # noqa: N803
        """Predict the class of each image.

        Args:
            X: uint8 images of the shape (n, …) that ``fit`` takes.

        Returns:
            Labels of shape (n,), of the dtype of ``classes_``.

        Raises:
            UsageError: Images have another height, width or number of channels than in ``fit``.
            NotFittedError: ``fit`` was not called.
        """
        check_is_fitted(self)
        data = self._images(X, self._shape)
        device = choose_device(self._config.device)
        make_model = classifier_maker(self._config, self._shape, len(self.classes_))
        predict = Predictor(make_model, self._config, device)
        _, classes = predict(self._model, data.images.to(device))
        labels: Labels = self.classes_[classes.cpu().numpy()]
        return labels


def _trained_on_all(config: ClassifyConfig, data: ImageData | None) -> ClassificationRun:
    if CLASSIFIERS[config.method].personal:
        raise UsageError(
            f"method = {config.method!r} gives each client a model of its own, and an estimator "
            "has one for all images: take another method"
        )
    return classification_run(config, data, tested=False)
