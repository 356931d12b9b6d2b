"""A clustering without labels: from pooled sums, and as the definitions have it."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from sklearn.metrics import davies_bouldin_score
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.evaluation.epilogue import ClusteringEpilogue
from ccfcpp.clustering.evaluation.evaluator import cluster_sizes
from ccfcpp.clustering.evaluation.server import EvaluationMessage, EvaluationState, initial_cells
from ccfcpp.clustering.evaluation.summary_text import NOT_EVALUATED, evaluation_rows
from ccfcpp.clustering.run import clustering_run
from ccfcpp.core.config_layers import resolve
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import Nothing, Task
from ccfcpp.reports.run_reader import read_run
from tests.support.command import TINY, succeeded
from tests.support.finished_runs import points_of


class Lying:
    """A system whose points and clusters are given: an image's first pixels."""

    by_angle = False
    final_model_type = Nothing

    def represent(self, model: object, client: Client) -> Tensor:
        return client.images[:, 1:].double() / 8

    def assign_by_model(self, model: object, client: Client) -> Tensor:
        return client.images[:, 0].long()


def found_of(points: Tensor, clusters: Tensor, owners: Tensor, k: int) -> dict[str, Any]:
    """The measures."""
    return judging_of(k).describe(judged(points, clusters, owners, k))


def judged(points: Tensor, clusters: Tensor, owners: Tensor, k: int) -> EvaluationState:
    """What is told where each client sends sums of its own points."""
    judging = judging_of(k)
    images = torch.cat([clusters[:, None], points], dim=1).double()
    clients = [Client(int(n), "", images[owners == n]) for n in torch.unique(owners)]
    works = judging.client_works(ClientContext.of(clients))
    known = EvaluationState(None, points.shape[1], k)
    for work in judging.works(known):
        if not work.is_due(known):
            continue
        message = work.broadcast(known)
        task = Task("test", work.exchange.name, 0, 0)
        updates = works[work.exchange.name].local_updates(task, message, clients, Randomness(0, 0))
        for update, client in zip(updates, clients, strict=True):
            work.check(message, update, [client.member])
        known, _ = work.aggregate(known, updates, Randomness(0, 0))
    return known


def judging_of(k: int) -> ClusteringEpilogue:
    return ClusteringEpilogue(Lying(), k)  # type: ignore[arg-type]


def slow_silhouette(points: Tensor, clusters: Tensor) -> float:
    """The mean over all points of (b − a) / max(a, b), one point after the other."""
    names = torch.unique(clusters).tolist()
    means = {name: points[clusters == name].mean(dim=0) for name in names}
    found = []
    for point, own in zip(points, clusters.tolist(), strict=True):
        a = float((point - means[own]).norm())
        b = min(float((point - means[name]).norm()) for name in names if name != own)
        alone = int((clusters == own).sum()) == 1
        found.append(0.0 if alone or max(a, b) == 0 else (b - a) / max(a, b))
    return sum(found) / len(found)


POINT = st.tuples(
    st.integers(0, 3), st.integers(0, 4), st.integers(0, 40), st.integers(0, 40), st.integers(0, 40)
)


@with_settings(deadline=None)
@given(st.lists(POINT, min_size=3, max_size=30))
def test_pooled_sums_give_the_measures_of_all_points(drawn: list[tuple[int, ...]]) -> None:
    rows = torch.tensor(drawn)
    owners, clusters, points = rows[:, 0], rows[:, 1], rows[:, 2:]
    found = found_of(points, clusters, owners, 6)
    there = len(torch.unique(clusters))
    stability = found.pop("stability")
    assert stability is None or 0 <= stability <= 1
    assert found.pop("cluster_sizes") == clusters.bincount(minlength=6).tolist()
    assert found.pop("clusters_found") == there
    if there == 1:
        assert (found, stability) == ({"silhouette": None, "davies_bouldin": None}, None)
        return
    scaled = points.double() / 8
    assert found["silhouette"] == pytest.approx(slow_silhouette(scaled, clusters), abs=1e-9)
    if there < len(points):  # scikit-learn's own bound
        expected = davies_bouldin_score(scaled.numpy(), clusters.numpy())
        assert found["davies_bouldin"] == pytest.approx(expected, abs=1e-9)


def slow_stability(points: Tensor, clusters: Tensor, owners: Tensor) -> float | None:
    """k-means of either half's codebook in one place, and all pairs of a cluster counted."""
    source = Randomness(0, 0)
    half = torch.empty(len(points), dtype=torch.int64)
    for owner in torch.unique(owners).tolist():
        generator = source.of_client(owner).generator("halves")
        held = owners == owner
        own = torch.randperm(int(held.sum()), generator=generator) % 2
        swapped = bool(torch.randint(2, (1,), generator=generator)) and len(own) % 2 == 1
        half[held] = 1 - own if swapped else own
    members = [points[clusters == name] for name in torch.unique(clusters)]
    means = torch.stack([own.mean(dim=0) for own in members])
    apart = [(own - m).norm(dim=1).mean() for own, m in zip(members, means, strict=True)]
    cells = initial_cells(means, torch.stack(apart), source.generator("cells of halves"))
    centroids = []
    for number in (0, 1):
        own, codebook = points[half == number], cells[number]
        for _ in range(3):
            near = torch.tensor([int((p - codebook).norm(dim=1).argmin()) for p in own])
            codebook = torch.stack(
                [
                    own[near == n].mean(dim=0) if (near == n).any() else cell
                    for n, cell in enumerate(codebook)
                ]
            )
        counts = near.bincount(minlength=len(codebook))
        if int((counts > 0).sum()) < len(means):
            return None
        chosen, seed = counts > 0, source.integer(f"centroids of half {number}")
        if int(chosen.sum()) == len(means):
            centroids.append(codebook[chosen])
            continue
        found = KMeans(len(means), n_init=10, random_state=seed % 2**32)
        found.fit(codebook[chosen].numpy(), sample_weight=counts[chosen].double().numpy())
        centroids.append(torch.from_numpy(found.cluster_centers_))
    by = [[int((p - own).norm(dim=1).argmin()) for p in points] for own in centroids]
    strengths: list[float] = []
    for number in (0, 1):
        inside = (half == number).nonzero().flatten().tolist()
        shares = {}
        for name in {by[number][n] for n in inside}:
            pairs = itertools.combinations([n for n in inside if by[number][n] == name], 2)
            together = [by[1 - number][a] == by[1 - number][b] for a, b in pairs]
            if together:
                shares[name] = sum(together) / len(together)
        if not shares:
            return None
        strengths.append(min(shares.values()))
    return sum(strengths) / 2


@with_settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(4, 60), st.integers(1, 3), st.integers(2, 5))
def test_halves_are_compared_as_in_one_place(seed: int, n: int, clients: int, k: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    clusters = torch.randint(k, (n,), generator=generator)
    centres = 6 * torch.randn(k, 3, generator=generator, dtype=torch.float64)
    points = centres[clusters] + torch.randn(n, 3, generator=generator, dtype=torch.float64)
    owners = torch.randint(clients, (n,), generator=generator)
    found = found_of(8 * points, clusters, owners, k)["stability"]
    if len(torch.unique(clusters)) == 1:
        assert found is None
        return
    expected = slow_stability(points, clusters, owners)
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-9))


def test_no_count_of_either_half_is_of_fewer_images_than_allowed() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(60, 2, generator=generator)
    message = EvaluationMessage(None, halves=torch.rand(2, 3, 1, generator=generator).double() / 8)
    tables = []
    for least in (0, 5):
        work = judging_of(3).client_works(ClientContext(60, 1, least=least))["halves"]
        task, client = Task("", "halves", 0, 0), Client(0, "", drawn.double())
        told: Any = work.local_updates(task, message, [client], Randomness(0))
        assert torch.equal(told[0].counts, told[0].sums.sum(dim=1))
        tables.append(told[0].sums)
    assert torch.equal(tables[1], torch.where(tables[0] < 5, 0, tables[0]))
    assert tables[1].any()
    assert not torch.equal(*tables)


def test_clients_that_hold_one_image_each_are_halved_too() -> None:
    points, clusters = make_blobs(90, 2, centers=3, cluster_std=0.3, random_state=0)
    found = found_of(torch.tensor(points), torch.tensor(clusters), torch.arange(90), 3)
    assert found["stability"] == pytest.approx(1)


@pytest.mark.parametrize("true", [3, 4])
def test_the_number_of_clusters_that_there_are_is_the_largest_stable_one(true: int) -> None:
    """On blobs, for numbers of clusters around the true one; in many dimensions, too."""
    for dimensions in (4, 64):
        points, _ = make_blobs(600, dimensions, centers=true, cluster_std=1.5, random_state=true)
        strengths = {}
        for k in (true, true + 1, true + 2):
            clusters = KMeans(k, n_init=5, random_state=0).fit(points).labels_
            owners = torch.arange(600) % 3
            found = found_of(torch.tensor(points), torch.tensor(clusters), owners, k)
            strengths[k] = found["stability"]
        assert strengths[true] == pytest.approx(1, abs=0.02)
        assert all(own < 0.8 for k, own in strengths.items() if k > true), strengths


@pytest.mark.parametrize("method", ["k-fed", "km", "fed-scan", "ccfc++"])
def test_a_run_is_judged_by_what_it_clusters(method: str, tmp_path: Path) -> None:
    """Latents, or pixels; of unit length where images are assigned by angle."""
    run = tmp_path / "run"
    few = ("--set", "scan.steps=16") if method == "fed-scan" else ()
    small = TINY if method == "ccfc++" else ("--clients", 3, "--set", "data.images=150")
    succeeded("cluster", "--method", method, *small, *few, "--out", run)
    summary = json.loads((run / "summary.json").read_text())
    seen = read_run(run)
    points = points_of(run)
    points = F.normalize(points, dim=1) if seen.by_angle else points
    # An image that no client holds adds to no sum.
    held = np.load(run / "assignments.npz")["client"] >= 0
    inside, found = points[held], seen.labels[held]
    assert summary["silhouette"] == pytest.approx(slow_silhouette(inside, found), abs=1e-5)
    by_sklearn = davies_bouldin_score(inside.numpy(), found.numpy())
    assert summary["davies_bouldin"] == pytest.approx(by_sklearn, rel=1e-4)
    assert sum(summary["cluster_sizes"]) == len(points)
    of_clients = np.sum(summary["client_cluster_sizes"], axis=0)
    assert of_clients.tolist() == found.bincount(minlength=len(of_clients)).tolist()
    told = summary["epilogue"]
    assert told["clients"] == summary["connected"]
    # Each client sends k sums and counts of float64, twice; products of all dimensions; of 2k cells
    # of either half, three times; and the table of both halves.
    k, width = len(summary["cluster_sizes"]), points.shape[1]
    there = sum(size > 0 for size in found.bincount(minlength=k).tolist())
    numbers = (
        k * (width + 1 + 2 + 1)
        + width**2
        + 1
        + 3 * 4 * there * (width + 1)
        + 2 * there * (there + 1)
    )
    assert told["bytes_up"] == 8 * summary["connected"] * numbers
    assert 0 < summary["stability"] <= 1
    assert told["bytes_down"] > 0


def test_secure_sums_hide_the_clients_and_noise_leaves_the_measures_out(tmp_path: Path) -> None:
    plain, secure = tmp_path / "plain", tmp_path / "secure"
    few = ("--method", "feddp-kmeans", "--clients", 3, "--set", "data.images=300")
    succeeded("cluster", *few, "--out", plain)
    succeeded("cluster", *few, "--secure-sums", "--out", secure)
    first, second = (json.loads((p / "summary.json").read_text()) for p in (plain, secure))
    assert second["silhouette"] == pytest.approx(first["silhouette"], abs=1e-3)
    assert second["stability"] == pytest.approx(first["stability"], abs=1e-3)
    assert second["epilogue"]["bytes_up"] > first["epilogue"]["bytes_up"]


def test_differential_privacy_leaves_the_measures_out() -> None:
    private = {"method": "fed-scan", "privacy": {"level": "client"}, "scan": {"overclustering": 1}}
    experiment = clustering_run(resolve(ClusterConfig, "cluster", private))
    assert experiment.epilogue is None
    rows = evaluation_rows(
        {"clusters": 3, "cluster_sizes": [4, 5, 0], "privacy": {"level": "client"}}
    )
    assert rows == {"images in each cluster": "4, 5, 0", "without labels": NOT_EVALUATED}
    assert evaluation_rows({"accuracy": 0.5}) == {}


def test_scores_of_k_means_on_the_pixels_stand_beside_them() -> None:
    earlier = {"clusters": 3, "nmi_of_pixels": 0.5}
    row = "k-means on the pixels"
    assert evaluation_rows(earlier)[row] == "NMI 0.5000, with all images in one place"
    now = evaluation_rows(earlier | {"kappa_of_pixels": 0.25})[row]
    assert now == "NMI 0.5000, Kappa 0.2500, with all images in one place"


def test_sizes_count_all_images_and_those_of_clients() -> None:
    owners, clusters = torch.tensor([0, 0, 2, -1]), torch.tensor([1, 1, 0, 2])
    assert cluster_sizes(owners, clusters, 3, 4) == {
        "clusters_found": 3,
        "cluster_sizes": [1, 2, 1, 0],
        "client_cluster_sizes": [[0, 2, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]],
    }
