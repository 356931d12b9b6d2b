"""The classifier with scikit-learn's interface."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError

from ccfcpp.core.errors import UsageError
from supervised import CLASSIFIERS, FederatedClassifier

DIGITS = load_digits()
IMAGES = (DIGITS.images[:240] * (255 / 16)).astype(np.uint8)
LABELS = np.array(list("abcdefghij"))[DIGITS.target[:240]]
CLIENTS = np.array(["north", "south", "west"]).repeat(80)
SETTINGS = {
    "training": {"rounds": 2, "local_epochs": 1, "learning_rate": 0.05},
    "model": {"name": "small", "widths": [8], "representation": 16},
    "decorrelation": {"kind": "none"},
}


def small(method: str = "fedavg") -> FederatedClassifier:
    return FederatedClassifier(method=method, settings=SETTINGS)


def test_it_learns_from_all_images_and_scores() -> None:
    settings = SETTINGS | {"training": {"rounds": 6, "local_epochs": 4, "learning_rate": 0.05}}
    model = FederatedClassifier(settings=settings).fit(IMAGES, LABELS, clients=CLIENTS)
    assert model.classes_.tolist() == list("abcdefghij")
    assert model.n_iter_ == 6
    assert set(model.predict(IMAGES).tolist()) <= set("abcdefghij")
    assert model.score(IMAGES, LABELS) > 0.5


def test_it_follows_scikit_learns_conventions() -> None:
    model = clone(small("fedprox").set_params(random_state=3))
    assert model.get_params() == {
        "method": "fedprox",
        "random_state": 3,
        "device": "auto",
        "settings": SETTINGS,
        "verbose": False,
    }
    first = model.fit(IMAGES, LABELS, clients=CLIENTS).predict(IMAGES)
    again = clone(model).fit(IMAGES[..., None], LABELS, clients=CLIENTS).predict(IMAGES)
    assert np.array_equal(first, again)


def test_labels_may_be_numbers_that_begin_anywhere() -> None:
    numbers = DIGITS.target[:240] * 3 + 7
    model = small().fit(IMAGES, numbers, clients=CLIENTS)
    assert set(model.predict(IMAGES).tolist()) <= set(numbers.tolist())
    assert model.classes_.dtype == numbers.dtype


def test_labels_may_have_several_spellings() -> None:
    """And stand in the order of their values: predictions are those of the integers."""
    numbers = DIGITS.target[:240] + 2
    expected = small().fit(IMAGES, numbers, clients=CLIENTS).predict(IMAGES)
    spelt = np.where(
        np.arange(240) < 200, numbers.astype(str), np.char.add(numbers.astype(str), " ")
    )
    with pytest.warns(UserWarning, match="labels '2' and '2 ' are taken for one"):
        model = small().fit(IMAGES, spelt, clients=CLIENTS)
    assert model.classes_.tolist() == [str(number) for number in range(2, 12)]
    assert model.predict(IMAGES).tolist() == expected.astype(str).tolist()


def test_a_fitted_model_can_be_stored_and_holds_no_images() -> None:
    model = small().fit(IMAGES, LABELS, clients=CLIENTS)
    stored = pickle.dumps(model)
    again = pickle.loads(stored)  # noqa: S301 - written by this test
    assert np.array_equal(again.predict(IMAGES), model.predict(IMAGES))
    assert IMAGES[:40].tobytes() not in stored


@pytest.mark.parametrize("method", CLASSIFIERS.own())
def test_it_takes_every_method_with_one_model(method: str) -> None:
    model = small(method)
    if CLASSIFIERS[method].personal:
        with pytest.raises(UsageError, match="gives each client a model of its own"):
            model.fit(IMAGES, LABELS, clients=CLIENTS)
    else:
        assert model.fit(IMAGES, LABELS, clients=CLIENTS).predict(IMAGES[:7]).shape == (7,)


def test_what_does_not_fit_is_one_line() -> None:
    model = small()
    with pytest.raises(NotFittedError):
        model.predict(IMAGES)
    for images, labels, clients, complaint in (
        (IMAGES / 255, LABELS, CLIENTS, "must be uint8"),
        (IMAGES, LABELS[:5], CLIENTS, "one for each image"),
        (IMAGES, LABELS, CLIENTS[:5], "one for each image"),
    ):
        with pytest.raises(UsageError, match=complaint):
            model.fit(images, labels, clients=clients)
    with pytest.raises(UsageError, match="settings hold partition, seed"):
        FederatedClassifier(settings={"partition.kind": "iid", "seed": 1}).fit(
            IMAGES, LABELS, clients=CLIENTS
        )
    fitted = model.fit(IMAGES, LABELS, clients=CLIENTS)
    with pytest.raises(UsageError, match="do not fit the model"):
        fitted.predict(np.zeros((2, 28, 28), np.uint8))


def test_labels_may_be_strings_as_python_has_them() -> None:
    model = small().fit(IMAGES, LABELS.astype(object), clients=CLIENTS)
    assert model.classes_.tolist() == list("abcdefghij")
    same = small().fit(IMAGES, LABELS, clients=CLIENTS).predict(IMAGES[:9])
    assert np.array_equal(model.predict(IMAGES[:9]), same)


def test_values_below_a_mask_are_not_read() -> None:
    arrays = {"X": IMAGES, "y": np.arange(240) % 10, "clients": np.arange(240) % 3}
    for name, array in arrays.items():
        masked = {name: np.ma.masked_equal(array, array.max())}
        with pytest.raises(UsageError, match=f"{name} has masked values, .*: leave their samples"):
            small().fit(**arrays | masked)
    model = small().fit(**arrays)
    with pytest.raises(UsageError, match="X has masked values"):
        model.predict(np.ma.masked_equal(IMAGES, 0))
