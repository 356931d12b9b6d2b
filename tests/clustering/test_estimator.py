import csv
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from ccfcpp import load_model
from ccfcpp.clustering.estimator import FederatedClustering
from ccfcpp.clustering.methods import METHODS, methods_for
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import flatten
from ccfcpp.core.errors import UsageError
from ccfcpp.core.unused_settings import needs_of
from tests.support.clustering import TINY, digits, tiny
from tests.support.command import succeeded

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


def test_it_tells_each_round_where_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    small().fit(IMAGES, clients=CLIENTS)
    assert capsys.readouterr().out == ""
    small().set_params(verbose=True).fit(IMAGES, clients=CLIENTS)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": loss ")[0] for line in lines] == ["round 1/2", "round 2/2"]
    model = FederatedClustering(n_clusters=3, method="fed-km", verbose=True)
    model.fit(IMAGES.reshape(120, -1).astype(float), clients=CLIENTS)  # it has no loss
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0].partition("/")[0] for line in lines] == [
        f"round {number + 1}" for number in range(model.n_iter_)
    ]


@pytest.mark.parametrize("overclustering", [1, 2])
def test_there_are_centres_where_nobody_comes_to_the_last_round(overclustering: int) -> None:
    scan: Tree = {"steps": 12, "batch": 64, "overclustering": overclustering, "mine_every": 5}
    model = FederatedClustering(
        n_clusters=4,
        method="fed-scan",
        random_state=1,  # with which both clients are away then
        settings={"availability": {"dropout_rate": 0.8}, "scan": scan},
    )
    model.fit(IMAGES, clients=np.arange(120) % 2)
    assert model.cluster_centers_.shape[0] == 4


def test_over_clusters_may_be_merged_in_the_last_round_alone() -> None:
    scan: Tree = {"steps": 6, "batch": 64, "overclustering": 2}
    own: Tree = {"availability": {"sample_fraction": 0.5}, "scan": scan}
    model = FederatedClustering(n_clusters=4, method="fed-scan", settings=own)
    model.fit(IMAGES, clients=np.arange(120) % 4)
    assert model.cluster_centers_.shape[0] == 4


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


@pytest.mark.parametrize("wrong", [3, ["seed"]])
def test_settings_that_are_no_mapping_are_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="is no mapping: give a dictionary"):
        FederatedClustering(settings=wrong).fit(IMAGES)


def test_settings_of_files_are_refused() -> None:
    model = FederatedClustering(settings={"data.images": 5, "track": "mlflow"})
    with pytest.raises(UsageError, match="settings hold data, track, which has no effect"):
        model.fit(IMAGES, clients=CLIENTS)


def test_a_section_of_vectors_that_is_none_is_one_line() -> None:
    model = FederatedClustering(settings={"vectors": "unit"})
    with pytest.raises(UsageError, match="vectors = unit is refused: it should hold keys and val"):
        model.fit(np.arange(20.0).reshape(10, 2))


def test_a_series_is_refused_as_by_scikit_learn() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="Expected a 2-dimensional container but got"):
        FederatedClustering(2).fit(pandas.Series([1.0, 2.0, 9.0]))


def test_numbers_of_numpy_are_saved_as_they_were_given(tmp_path: Path) -> None:
    model = FederatedClustering(np.int64(2), method="fed-km", random_state=np.int64(5))  # type: ignore[arg-type]
    model.fit(np.arange(20.0).reshape(10, 2)).save(tmp_path / "model")
    loaded = FederatedClustering.load(tmp_path / "model")
    assert (loaded.n_clusters, loaded.random_state) == (2, 5)


@pytest.mark.parametrize("role", ["label", "client"])
def test_columns_of_files_are_refused(role: str) -> None:
    """A data frame's column of this name would be clustered, too."""
    model = FederatedClustering(method="fed-km", settings={"vectors": {f"{role}_column": "a"}})
    with pytest.raises(UsageError, match=rf"settings hold vectors\.{role}_column, which has no"):
        model.fit(np.arange(20.0).reshape(10, 2))


def test_settings_that_a_method_does_not_heed_are_refused() -> None:
    model = FederatedClustering(method="km", settings={"loss": {"eta": 0.5}})
    with pytest.raises(UsageError, match=r"loss\.eta = 0\.5 has no effect on km"):
        model.fit(IMAGES, clients=CLIENTS)


@pytest.mark.parametrize(
    ("images", "clients", "expected"),
    [
        (IMAGES / 255, CLIENTS, "must be uint8"),
        (IMAGES, CLIENTS[:5], "one for each image"),
        (IMAGES, np.array([1, "a"] * 60, dtype=object), "integers or strings"),
        (IMAGES[..., None, None], CLIENTS, "shape"),
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
    config = tiny(method)
    settings = {key: value for key, value in flatten(TINY) if needs_of(config, key) is None}
    model = FederatedClustering(n_clusters=3, method=method, settings=settings)
    model.fit(images, clients=np.array(["a", "b", "c"]).repeat(30))
    assert np.array_equal(model.predict(images[7:9]), model.labels_[7:9])
    assert model.cluster_centers_.shape[0] <= 3
    distances = model.transform(images[:7])
    assert distances.shape == (7, len(model.cluster_centers_))
    assert model.score(images) <= 0
    assert hasattr(model, "predict_proba") == METHODS[method].soft


def test_a_method_that_there_is_not_is_one_line() -> None:
    images = np.zeros((4, 8, 8), np.uint8)
    with pytest.raises(UsageError, match="method = nope is refused"):
        FederatedClustering(2, method="nope").fit(images, clients=np.arange(4) % 2)


VECTORS = load_digits().data[:120]
SMALL: dict[str, Tree] = {
    "fed-scan": {"scan": {"steps": 6, "steps_per_round": 3, "batch": 40, "hidden": 8, "latent": 4}},
}
"""Settings of a system's run of a second."""


def of_vectors(method: str = "auto", **arguments: Any) -> FederatedClustering:
    return FederatedClustering(4, method=method, settings=SMALL.get(method), **arguments)


def expected_to_fail(estimator: FederatedClustering) -> dict[str, str]:
    """Checks of scikit-learn that cannot hold, with the reason."""
    if not hasattr(estimator, "predict_proba"):
        return {}
    reason = "it looks for a classifier's tags in all that has predict_proba"
    return dict.fromkeys(("check_estimator_sparse_array", "check_estimator_sparse_matrix"), reason)


@parametrize_with_checks(
    [FederatedClustering(), of_vectors("fed-km")],
    expected_failed_checks=expected_to_fail,
)  # type: ignore[untyped-decorator] # no types there
def test_it_is_an_estimator_of_scikit_learn(
    estimator: FederatedClustering, check: Callable[[Any], None]
) -> None:
    check(estimator)


@pytest.mark.parametrize("method", methods_for("vectors"))
def test_vectors_of_every_system(method: str, tmp_path: Path) -> None:
    model = of_vectors(method).fit(VECTORS, clients=CLIENTS)
    assert model.n_features_in_ == 64
    assert np.array_equal(model.predict(VECTORS[5:9]), model.labels_[5:9])
    assert model.transform(VECTORS).shape == (120, len(model.cluster_centers_))
    stored = pickle.dumps(model)
    assert VECTORS[:40].tobytes() not in stored
    model.save(tmp_path / "model")
    for again in (pickle.loads(stored), FederatedClustering.load(tmp_path / "model")):  # noqa: S301
        assert np.array_equal(again.predict(VECTORS), model.labels_)
        assert np.array_equal(again.labels_, model.labels_)
        assert again.get_params() == model.get_params()
        assert (again.n_iter_, again.n_features_in_) == (model.n_iter_, 64)
        if METHODS[method].soft:
            shares = again.predict_proba(VECTORS)
            assert np.array_equal(shares.argmax(axis=1), model.labels_)
            np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-5)


def test_a_saved_model_serves_the_command(tmp_path: Path) -> None:
    model = of_vectors().fit(VECTORS, clients=CLIENTS)
    model.save(tmp_path / "model")
    np.save(tmp_path / "new.npy", VECTORS[:9])
    out = tmp_path / "clusters.csv"
    succeeded("predict", str(tmp_path / "model"), str(tmp_path / "new.npy"), "--out", str(out))
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [int(row["row"]) for row in rows] == list(range(9))
    assert [int(row["cluster"]) for row in rows] == model.labels_[:9].tolist()
    shares = model.predict_proba(VECTORS[:9]).max(axis=1)
    assert [float(row["probability"]) for row in rows] == pytest.approx(shares.tolist(), rel=1e-5)
    apart = model.transform(VECTORS[:9])[range(9), model.labels_[:9]]
    assert [float(row["distance"]) for row in rows] == pytest.approx(apart.tolist(), rel=1e-5)
    with pytest.raises(UsageError, match=r"taken|holds|empty"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("content", [None, b"nonsense"])
def test_what_is_no_saved_model_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    if content:
        (tmp_path / "estimator.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match="holds no saved FederatedClustering"):
        FederatedClustering.load(tmp_path)


def test_one_client_holds_all_where_none_are_named() -> None:
    alone = of_vectors().fit(VECTORS).labels_
    assert np.array_equal(alone, of_vectors().fit(VECTORS, clients=np.zeros(120, int)).labels_)
    assert small().fit(IMAGES).labels_.shape == (120,)


def test_strings_in_an_array_of_objects_name_clients() -> None:
    named = of_vectors().fit(VECTORS, clients=CLIENTS.astype(object)).labels_
    assert np.array_equal(named, of_vectors().fit(VECTORS, clients=CLIENTS).labels_)


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.coo_array, np.asarray, list])
def test_forms_of_vectors(kind: Callable[[Any], Any]) -> None:
    wanted = of_vectors().fit(VECTORS, clients=CLIENTS)
    found = of_vectors().fit(kind(VECTORS), clients=CLIENTS)
    assert np.array_equal(found.labels_, wanted.labels_)
    assert np.array_equal(found.predict(kind(VECTORS[:4])), wanted.labels_[:4])


def test_data_frames_name_their_columns() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(VECTORS, columns=[f"pixel {n}" for n in range(64)])
    model = of_vectors().fit(frame, clients=pandas.Series(CLIENTS))
    assert list(model.feature_names_in_[:2]) == ["pixel 0", "pixel 1"]
    assert np.array_equal(model.predict(frame), model.labels_)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[frame.columns[::-1]])


@pytest.mark.filterwarnings("error")
def test_columns_of_categories_and_dates(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    kinds = np.array(["red", "blue", "green"])[np.arange(90) % 3]
    born = np.datetime64("2000-01-01") + np.arange(90) % 3 * 1000
    frame = pandas.DataFrame({"colour": kinds, "born": born, "size": np.arange(90) % 3 * 5.0})
    settings = {"vectors": {"categories": ["colour"], "dates": ["born"]}}
    model = FederatedClustering(3, method="fed-km", random_state=0, settings=settings)
    model.fit(frame, clients=np.arange(90) % 4)
    assert sorted(np.bincount(model.labels_).tolist()) == [30, 30, 30]
    assert list(model.feature_names_in_) == ["born", "size", "colour"]
    reversed_columns = frame[frame.columns[::-1]].assign(other=0)
    assert np.array_equal(model.predict(reversed_columns), model.labels_)
    model.save(tmp_path / "saved")
    assert np.array_equal(
        FederatedClustering.load(tmp_path / "saved").predict(frame), model.labels_
    )
    assert np.array_equal(load_model(tmp_path / "saved").assign(frame), model.labels_)
    with pytest.raises(UsageError, match="categories or dates: give a data frame"):
        load_model(tmp_path / "saved").assign(np.eye(3))
    with pytest.raises(UsageError, match="X has no column 'born', which the model needs"):
        model.predict(frame[["colour", "size"]])
    with pytest.warns(UserWarning, match="values of 'colour' 'Red' and 'red' look alike"):
        clone(model).fit(frame.assign(colour=["Red", *kinds[1:]]))
    with pytest.warns(UserWarning, match="column 'colour': 1 of 90 rows hold a category"):
        model.predict(frame.assign(colour=["mauve", *kinds[1:]]))
    with pytest.warns(UserWarning, match="column 'colour': 1 of 90 rows hold a category"):
        load_model(tmp_path / "saved").assign(frame.assign(colour=["mauve", *kinds[1:]]))
    absent = clone(model).set_params(settings={"vectors": {"categories": ["color"]}})
    with pytest.raises(UsageError, match="X has no column 'color': it has 'colour', 'born'"):
        absent.fit(frame)
    numbered = frame.assign(colour=pandas.Categorical(np.arange(90) % 3))
    with pytest.raises(UsageError, match="column 'colour' has the type category: name it by"):
        FederatedClustering(3, method="fed-km").fit(numbered.drop(columns="born"))
    twice = {"vectors": {"categories": ["colour"], "dates": ["colour"]}}
    with pytest.raises(UsageError, match="column 'colour' is named twice"):
        FederatedClustering(3, method="fed-km", settings=twice).fit(frame)
    vectors = np.arange(9.0).reshape(3, 3)
    plain = FederatedClustering(3, method="fed-km").fit(vectors)
    objects = pandas.DataFrame(vectors.astype(object))
    assert np.array_equal(plain.predict(objects), plain.labels_)
    with pytest.raises(UsageError, match="column 'colour' holds 'red', which is no number: name"):
        FederatedClustering(3, method="fed-km").fit(frame)
    with pytest.raises(UsageError, match=r"column 'size' holds '.*j.*, which is no number: give"):
        FederatedClustering(3, method="fed-km").fit(frame[["size"]].assign(one=1.0) * 1j)
    with pytest.raises(UsageError, match="name columns: give a data frame"):
        model.fit(np.eye(9), clients=np.arange(9) % 3)


def test_names_in_several_spellings_are_told() -> None:
    vectors, sites = np.eye(6)[:, :3], np.array(["a", "a ", "b", "b", "a", "B"])
    with pytest.warns(UserWarning, match="clients 'a' and 'a ' are taken for one"):
        model = FederatedClustering(2, method="fed-km").fit(vectors, clients=sites)
    assert model.n_clusters_ == 2


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "Unnamed: 0"], "X: column 2 is called 'Unnamed: 0', as an index"),
        (["index", "a"], "X: column 'index' numbers the rows"),
        (["a", "a "], "X has two columns 'a' and 'a '"),
    ],
)
def test_an_index_in_a_data_frame_is_refused(names: list[str], message: str) -> None:
    pandas = pytest.importorskip("pandas")
    numbers = np.column_stack([np.arange(6)[::-1], np.arange(6) % 4])
    with pytest.raises(UsageError, match=message):
        FederatedClustering(2, method="fed-km").fit(pandas.DataFrame(numbers, columns=names))


def test_two_columns_of_one_name_are_refused() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.arange(12.0).reshape(6, 2) % 5, columns=["age", "age"])
    with pytest.raises(UsageError, match="X has two columns 'age': give each a name of its own"):
        FederatedClustering(2, method="fed-km").fit(frame)


def test_it_works_in_a_pipeline_and_with_column_names_out() -> None:
    pipeline = make_pipeline(StandardScaler(), of_vectors())
    found = pipeline.fit_predict(VECTORS, federatedclustering__clients=CLIENTS)
    assert np.array_equal(found, pipeline.predict(VECTORS))
    assert pipeline.get_feature_names_out()[0] == "federatedclustering0"


def test_missing_values_are_filled_in_where_that_is_asked_for() -> None:
    gaps = VECTORS.copy()
    gaps[::7, 20] = np.nan
    with pytest.raises(UsageError, match=r"X: column '20' holds nan in row 1, and .*NaN"):
        of_vectors().fit(gaps)
    model = FederatedClustering(4, settings={"vectors": {"missing": "mean"}}).fit(gaps)
    assert np.array_equal(model.predict(gaps), model.labels_)


def test_values_below_a_mask_are_not_read() -> None:
    masked = np.ma.masked_greater(VECTORS, 1.0)
    model = of_vectors().fit(np.ma.masked_greater(VECTORS, np.inf))  # nothing is masked
    for call in (of_vectors().fit, model.predict):
        with pytest.raises(UsageError, match=r"give it as array.filled\(np.nan\)"):
            call(masked)


@pytest.mark.parametrize("k", ["3", True, 2.0, 0, None])
def test_numbers_of_clusters_that_are_none(k: Any) -> None:
    with pytest.raises(UsageError, match=r"n_clusters = .* is refused"):
        FederatedClustering(k).fit(VECTORS)


@pytest.mark.parametrize("call", ["predict", "transform", "score", "predict_proba"])
def test_before_a_fit_there_is_no_model(call: str) -> None:
    with pytest.raises(NotFittedError):
        getattr(FederatedClustering(), call)(VECTORS)


def test_random_states() -> None:
    first, again = (of_vectors(random_state=np.random.RandomState(3)) for _ in range(2))
    assert np.array_equal(first.fit(VECTORS).labels_, again.fit(VECTORS).labels_)
    assert of_vectors(random_state=None).fit(VECTORS).labels_.shape == (120,)


def test_a_model_of_images_takes_no_vectors_and_the_other_way_round() -> None:
    with pytest.raises(UsageError, match="fitted to images"):
        small().fit(IMAGES).predict(VECTORS)
    with pytest.raises(UsageError, match="fitted to vectors"):
        of_vectors().fit(VECTORS).predict(IMAGES)


def test_a_system_of_images_refuses_vectors() -> None:
    with pytest.raises(UsageError, match="vectors, and the data are vectors: take one of km"):
        of_vectors("ccfc++").fit(VECTORS)


FAR_METHODS = ("km", "fcm", "k-fed", "ffcm-avg", "ffcm-km", "fed-km", "fed-fcm", "fed-em")


@pytest.mark.parametrize("offset", [1.7e9, -1e12])
@pytest.mark.parametrize("method", FAR_METHODS)
def test_vectors_far_from_zero_are_told_apart(method: str, offset: float, tmp_path: Path) -> None:
    """Such as seconds since 1970, which float32 rounds to minutes."""
    source, classes = np.random.default_rng(0), np.arange(60) % 3
    points = source.normal(0, 8, (3, 4))[classes] + source.normal(0, 1, (60, 4)) + offset
    estimator = FederatedClustering(3, method=method, settings={"vectors": {"scale": "none"}})
    estimator.fit(points, clients=np.arange(60) // 20)
    assert adjusted_rand_score(classes, estimator.labels_) == 1
    estimator.save(tmp_path / "model")
    again = FederatedClustering.load(tmp_path / "model")
    assert np.array_equal(again.predict(points), estimator.labels_)
    assert estimator.transform(points).min(axis=1).max() < 10
    assert estimator.outlier_factor(points).max() < 5


@pytest.mark.parametrize("scale", ["none", "unit"])
def test_a_network_does_not_take_vectors_far_from_zero(scale: str) -> None:
    points = np.random.default_rng(0).normal(0, 1, (60, 4))
    settings = {"vectors": {"scale": scale}, "scan": {"steps": 2, "steps_per_round": 2}}
    estimator = FederatedClustering(3, method="fed-scan", settings=settings)
    assert estimator.fit(points).n_clusters_ == 3
    with pytest.raises(UsageError, match=r"times as far from 0 as they differ.*--scale standard"):
        estimator.fit(points + 1.7e9)
    assert FederatedClustering(1, method="fed-scan", settings=settings).fit(points * 0 + 9)


@pytest.mark.parametrize("clusters", [6, "auto"])
@pytest.mark.parametrize("method", ["fed-em", "fed-km"])
def test_fewer_clusters_than_were_asked_for_are_a_warning(method: str, clusters: Any) -> None:
    points = np.repeat(np.arange(3.0)[:, None] if clusters == 6 else np.ones((3, 1)), 40, axis=0)
    wanted = rf"clusters \({3 if clusters == 6 else 1}\) found smaller than n_clusters \({clusters}"
    with pytest.warns(ConvergenceWarning, match=wanted):
        FederatedClustering(clusters, method=method).fit(points)
