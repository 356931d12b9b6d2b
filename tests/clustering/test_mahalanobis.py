"""How far samples are from what a run has seen, from pooled sums, and as the definition has it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor

from ccfcpp import FederatedClustering, load_model
from ccfcpp.clustering.evaluation.server import EvaluationMessage, EvaluationState, SpreadSums
from ccfcpp.clustering.mahalanobis import (
    MOST_DIMENSIONS,
    SampleDistribution,
    model_tensors,
    split_model,
)
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import Task
from tests.clustering.test_judging import POINT, judged, judging_of
from tests.support.command import succeeded


def slow_distances(points: Tensor, clusters: Tensor, told: Tensor) -> Tensor:
    """√((z − μ)ᵀ S⁻¹ (z − μ)), S shrunk towards a sphere, over its root mean square.

    The points that are ``told`` of give S; means are over all.
    """
    n, d = int(told.sum()), points.shape[1]
    means = {c: points[clusters == c].mean(dim=0) for c in clusters.tolist()}
    offsets = [z - means[c] for z, c in zip(points, clusters.tolist(), strict=True)]
    products = [torch.outer(o, o) for o, t in zip(offsets, told.tolist(), strict=True) if t]
    covariance = sum(products, torch.zeros(d, d).double()) / n
    sphere = torch.eye(d).double() * covariance.trace() / d
    inverse = torch.linalg.inv((n * covariance + d * sphere) / (n + d))
    squares = torch.stack([o @ inverse @ o for o in offsets])
    return (squares / squares[told].mean()).sqrt()


@with_settings(deadline=None)
@given(st.lists(POINT, min_size=3, max_size=30))
def test_pooled_sums_give_the_distances_of_the_definition(drawn: list[tuple[int, ...]]) -> None:
    rows = torch.tensor(drawn)
    owners, clusters, points = rows[:, 0], rows[:, 1], rows[:, 2:]
    typical = judged(points, clusters, owners, 6).typical
    scaled = points.double() / 8
    # A client of fewer points than dimensions tells nothing of them.
    told = owners.bincount()[owners] >= 3
    means = torch.stack([scaled[clusters == c].mean(dim=0) for c in clusters])
    if not bool(((scaled - means)[told].abs() > 1e-9).any()):
        assert typical is None
        return
    assert typical is not None
    found = typical.distances(scaled, clusters)
    expected = slow_distances(scaled, clusters, told)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert float((found[told] ** 2).mean()) == pytest.approx(1)


def test_probabilities_are_those_of_a_mixture_with_one_covariance_at_a_temperature() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    clusters = torch.arange(60) % 2
    points[:, 0] += 3 * clusters
    typical = judged(8 * points, clusters, torch.arange(60) % 3, 3).typical
    assert typical is not None
    found = typical.probabilities(points)
    # Of two clusters; the third one is empty.
    own = [typical.distances(points, torch.full((60,), c)) for c in (0, 1)]
    expected = torch.stack([torch.exp(-(m**2) * 4**0.5 / 2) for m in own], dim=1)
    torch.testing.assert_close(found[:, :2], expected / expected.sum(dim=1, keepdim=True))
    assert not found[:, 2].any()


def test_a_client_adds_nothing_of_a_cluster_of_which_it_holds_too_few() -> None:
    """Three images in cluster 0, one in cluster 1, where a sum is over two at least."""
    points = torch.tensor([[0, 8], [8, 0], [0, 0], [8, 8]])
    clusters = torch.tensor([0, 0, 0, 1])
    judging, known = judging_of(2), judged(points, clusters, torch.zeros(4), 2)
    client = Client(0, "", torch.cat([clusters[:, None], points], dim=1).to(torch.uint8))
    work = judging.client_works(ClientContext(4, 1, least=2))["spreads"]
    message = EvaluationMessage(None, known.members)
    (told,) = work.local_updates(Task("t", "spreads", 0, 0), message, [client], Randomness(0, 0))
    assert isinstance(told, SpreadSums)
    assert told.counts.tolist() == [3, 0]
    offsets = points[:3].double() / 8
    offsets -= offsets.mean(dim=0)
    torch.testing.assert_close(told.scatter, offsets.T @ offsets)


def test_points_of_very_many_dimensions_are_not_multiplied() -> None:
    assert SpreadSums.none(3, MOST_DIMENSIONS + 1).scatter.shape == (0, 0)
    assert EvaluationState(None, 3, 2).typical is None


def test_a_file_keeps_what_is_typical_beside_the_model() -> None:
    typical = SampleDistribution(torch.zeros(2, 3).double(), torch.ones(2).double(), torch.eye(3))
    model = {"weight": torch.ones(2), "typically": torch.zeros(1)}
    rest, again = split_model(model_tensors(model, typical))
    assert rest.keys() == model.keys()
    assert again is not None
    torch.testing.assert_close(again.whitener, typical.whitener)
    assert split_model(model_tensors(model, None)) == (model, None)


@pytest.mark.parametrize("method", ["fed-scan", "fed-km"])
def test_a_run_tells_which_images_are_far_from_all_that_it_has_seen(
    method: str, tmp_path: Path
) -> None:
    """Noise in place of digits; the same numbers in the run's files and by its model."""
    run = tmp_path / "run"
    few = ("--set", "scan.steps=30") if method == "fed-scan" else ()
    small = ("--clients", 3, "--set", "data.images=600", *few)
    succeeded("cluster", "--method", method, *small, "--out", run)
    arrays = np.load(run / "assignments.npz")
    held = arrays["client"] >= 0
    assert float(np.mean(arrays["outlier"][held] ** 2)) == pytest.approx(1, rel=1e-3)
    columns = (run / "clusters.csv").read_text().splitlines()[0].split(",")
    assert {"probability", "distance", "outlier"} < set(columns)
    summary = json.loads((run / "summary.json").read_text())
    assert 0 <= summary["calibration_error"] < 0.5
    model = load_model(run)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (100, 1, 8, 8), generator=generator, dtype=torch.uint8)
    far = model.examine(noise)["outlier"].numpy()
    truth = np.r_[np.zeros(held.sum()), np.ones(100)]
    assert roc_auc_score(truth, np.r_[arrays["outlier"][held], far]) > 0.9
    d = model.typical.whitener.shape[0] if model.typical else 0
    assert summary["bytes_delivered"] > 4 * d * d > 0


def test_the_estimator_tells_how_far_samples_are_also_once_it_is_loaded(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0, 0], [9, 9, 9]])
    X = np.concatenate([c + rng.normal(size=(60, 3)) * [1, 2, 0.1] for c in centres])
    estimator = FederatedClustering(2).fit(X, clients=np.arange(120) % 4)
    found = estimator.outlier_factor(X)
    assert float(np.mean(found**2)) == pytest.approx(1)
    # As far away as others are usual, but where nothing is.
    near, far = estimator.outlier_factor(centres + np.array([[0, 2, 0], [0, 0, 2]]))
    assert near < 1.5
    assert far > 5
    estimator.save(tmp_path / "saved")
    again = FederatedClustering.load(tmp_path / "saved")
    np.testing.assert_allclose(again.outlier_factor(X), found)


def test_nothing_is_known_of_samples_that_are_all_the_same() -> None:
    estimator = FederatedClustering(1).fit(np.ones((6, 2)))
    with pytest.raises(UsageError, match="does not know what is usual"):
        estimator.outlier_factor(np.ones((1, 2)))
