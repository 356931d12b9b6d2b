import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits

from ccfcpp.clustering.estimator import FederatedClustering
from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config_layers import flatten
from ccfcpp.core.errors import UsageError
from ccfcpp.core.relevance import Heeded
from tests.support.clustering import TINY, digits, tiny

SETTINGS = {
    "training": {"rounds": 1, "pretrain_rounds": 1},
    "model": {"widths": [4, 6], "projector_width": 12, "latent": 8, "predictor_width": 4},
}
IMAGES = (load_digits().images[:120] * (255 / 16)).astype(np.uint8)
CLIENTS = np.array(["north", "south", "west"]).repeat(40)


def small() -> FederatedClustering:
    return FederatedClustering(n_clusters=4, method="ccfc++", settings=SETTINGS)


def test_fit_gives_labels_and_centres() -> None:
    model = small().fit(IMAGES, clients=CLIENTS)
    assert model.labels_.shape == (120,)
    assert set(model.labels_.tolist()) <= set(range(4))
    assert model.cluster_centers_.shape == (4, 8)
    assert model.n_iter_ == 2
    assert np.array_equal(model.predict(IMAGES[5:9]), model.labels_[5:9])


def test_it_follows_scikit_learns_conventions() -> None:
    model = clone(small().set_params(n_clusters=3))
    assert model.get_params()["settings"] == SETTINGS
    first = model.fit_predict(IMAGES, clients=CLIENTS)
    again = clone(model).fit_predict(IMAGES[..., None], clients=CLIENTS)
    assert np.array_equal(first, again)


def test_names_of_the_clients_matter_by_their_order_only() -> None:
    numbers = np.array([0, 1, 2]).repeat(40)
    named, numbered = (small().fit(IMAGES, clients=c).labels_ for c in (CLIENTS, numbers))
    assert np.array_equal(named, numbered)


@pytest.mark.parametrize("method", ["ccfc++", "fed-scan"])
def test_a_fitted_model_can_be_stored_and_holds_no_images(method: str) -> None:
    settings = {"ccfc++": SETTINGS, "fed-scan": {"scan": TINY["scan"]}}[method]
    model = FederatedClustering(n_clusters=4, method=method, settings=settings)
    model.fit(IMAGES, clients=CLIENTS)
    stored = pickle.dumps(model)
    again = pickle.loads(stored)  # noqa: S301 - written by this test
    assert np.array_equal(again.predict(IMAGES), model.labels_)
    assert IMAGES[:40].tobytes() not in stored


def test_it_finds_the_number_of_clusters() -> None:
    settings = {"scan": TINY["scan"]}
    model = FederatedClustering(n_clusters="3-6", settings=settings).fit(IMAGES, clients=CLIENTS)
    assert 3 <= model.n_clusters_ <= 6
    assert model.cluster_centers_.shape == (model.n_clusters_, 6)
    assert set(model.predict(IMAGES).tolist()) <= set(range(model.n_clusters_))


def test_settings_cannot_contradict_the_arguments() -> None:
    model = FederatedClustering(settings={"seed": 7, "clusters": 2})
    with pytest.raises(UsageError, match="settings hold clusters, seed"):
        model.fit(IMAGES, clients=CLIENTS)


def test_settings_that_a_method_does_not_heed_are_refused() -> None:
    model = FederatedClustering(method="km", settings={"loss": {"eta": 0.5}})
    with pytest.raises(UsageError, match=r"loss\.eta = 0\.5 has no effect on km"):
        model.fit(IMAGES, clients=CLIENTS)


@pytest.mark.parametrize(
    ("images", "clients", "expected"),
    [
        (IMAGES / 255, CLIENTS, "must be uint8"),
        (IMAGES, CLIENTS[:5], "one for each image"),
        (IMAGES, CLIENTS.astype(object), "integers or strings"),
        (IMAGES[0], CLIENTS, "shape"),
    ],
)
def test_arrays_that_do_not_fit(images: np.ndarray, clients: np.ndarray, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        small().fit(images, clients=clients)


def test_images_of_another_shape_are_not_assigned() -> None:
    model = small().fit(IMAGES, clients=CLIENTS)
    with pytest.raises(UsageError, match="do not fit the model"):
        model.predict(np.zeros((2, 28, 28), np.uint8))


@pytest.mark.parametrize("method", METHODS.own())
def test_the_estimator_takes_every_method(method: str) -> None:
    images = digits()[0][:90, 0].numpy()
    heeded = Heeded(tiny(method))
    settings = {key: value for key, value in flatten(TINY) if heeded.unmet(key) is None}
    model = FederatedClustering(n_clusters=3, method=method, settings=settings)
    model.fit(images, clients=np.array(["a", "b", "c"]).repeat(30))
    assert np.array_equal(model.predict(images[7:9]), model.labels_[7:9])
    assert model.cluster_centers_.shape[0] <= 3


def test_a_method_that_there_is_not_is_one_line() -> None:
    images = np.zeros((4, 8, 8), np.uint8)
    with pytest.raises(UsageError, match="method = nope is refused"):
        FederatedClustering(2, method="nope").fit(images, clients=np.arange(4) % 2)
