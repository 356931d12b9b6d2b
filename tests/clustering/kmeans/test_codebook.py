"""Codebooks: cells are split, k-means of them, and the number of clusters that they show."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_iris, load_wine, make_blobs
from sklearn.preprocessing import StandardScaler

from ccfcpp.clustering.kmeans.centroids import sums_by
from ccfcpp.clustering.kmeans.codebook import Codebook, codebook_kmeans, split
from tests.support.vectors import experiment

seeds = st.integers(0, 10**6)
some = settings(max_examples=25)


@given(seed=seeds, most=st.integers(1, 30))
@some
def test_a_split_keeps_the_mean_and_the_number_of_cells(seed: int, most: int) -> None:
    source = torch.Generator().manual_seed(seed)
    cells = torch.randn(8, 3, generator=source, dtype=torch.float64)
    counts = torch.arange(8, dtype=torch.float64)
    scatter = torch.rand(8, generator=source, dtype=torch.float64)
    found = split(Codebook(cells, counts, scatter), most, source)
    splittable = int((counts >= 4).sum())
    assert len(found) == 8 + min(splittable, max(0, most - 8))
    whole = found[: 8 - (len(found) - 8)]
    halves = found[len(whole) :]
    centres = torch.cat([whole, halves.view(2, -1, 3).mean(dim=0)])
    assert torch.allclose(centres.sum(dim=0), cells.sum(dim=0))


def test_a_codebook_with_few_cells_is_the_start() -> None:
    cells = torch.eye(3, dtype=torch.float64)
    assert torch.equal(codebook_kmeans(cells, torch.ones(3), 5, 0), cells)
    weights = torch.tensor([1.0, 1.0, 98.0], dtype=torch.float64)
    (one,) = codebook_kmeans(cells, weights, 1, 0)
    assert torch.allclose(one, torch.tensor([0.01, 0.01, 0.98], dtype=torch.float64))


@given(seed=seeds, clusters=st.integers(2, 5))
@some
def test_the_evidence_is_the_simplified_silhouette_of_all_points(seed: int, clusters: int) -> None:
    source = torch.Generator().manual_seed(seed)
    cells = torch.randn(9, 3, generator=source, dtype=torch.float64)
    counts = torch.randint(1, 9, (9,), generator=source).double()
    scatter = torch.rand(9, generator=source, dtype=torch.float64)
    book = Codebook(cells, counts, scatter)
    found = book.evidence(2, 12, seed)
    assert found.shape == (11,)
    assert not bool(found[8:].any())  # There are nine cells.
    centroids, total = book.kmeans(clusters, seed).tolist(), 0.0
    sizes = [0.0] * clusters
    nearest = [[float(np.sum((np.array(c) - m) ** 2)) for m in centroids] for c in cells.tolist()]
    for own, count in zip(nearest, counts.tolist(), strict=True):
        sizes[own.index(min(own))] += count
    for own, count, around in zip(nearest, counts.tolist(), scatter.tolist(), strict=True):
        a, b, *_ = sorted((square + around / count) ** 0.5 for square in own)
        alone = sizes[own.index(min(own))] == 1
        total += 0.0 if alone else count * (b - a) / b
    assert float(found[clusters - 2]) == pytest.approx(total / float(counts.sum()))


SETS = {
    "iris": (StandardScaler().fit_transform(load_iris().data), {2, 3}),
    "wine": (StandardScaler().fit_transform(load_wine().data), {3}),
    "seven blobs": (make_blobs(2000, 5, centers=7, cluster_std=1.5, random_state=3)[0], {7}),
    "twenty blobs": (make_blobs(3000, 10, centers=20, random_state=4)[0], {20}),
}


@pytest.mark.parametrize("method", ["fed-km", "fed-em"])
@pytest.mark.parametrize("name", SETS)
def test_a_number_that_nobody_knows_is_found(method: str, name: str) -> None:
    points, right = SETS[name]
    owners = np.arange(len(points)) % 3
    run = experiment(method, points, owners, 0, {"clusters": "auto", "seed": 5})
    state, _ = run.trained()
    found = run.algorithm.found(state)
    assert found["clusters"] in right
    assert found["clusters"] == len(state.centroids)
    evidence = found["clusters_evidence"]
    assert isinstance(evidence, dict)
    assert evidence[str(found["clusters"])] == max(evidence.values())


def test_far_from_the_origin_it_is_the_same() -> None:
    points = SETS["seven blobs"][0]
    owners = np.arange(len(points)) % 3
    told = []
    for offset in (0.0, 1e8):
        run = experiment("fed-km", points + offset, owners, 0, {"clusters": "auto", "seed": 5})
        state, _ = run.trained()
        judging = run.epilogue
        assert judging is not None
        known = judging.begin(state)
        assert known is not None
        federation, after = run.federation(), run.algorithm.rounds
        known, _ = federation.run_works(judging.works(known), known, after)
        told.append((run.algorithm.found(state)["clusters"], judging.describe(known)["silhouette"]))
    assert told[0] == pytest.approx(told[1], abs=1e-5)
    assert told[0][0] == 7


def test_points_that_are_all_alike_are_one_cluster() -> None:
    run = experiment("fed-km", np.ones((120, 3)), np.arange(120) % 2, 0, {"clusters": "auto"})
    assert run.algorithm.found(run.trained()[0]) == {"clusters": 1}


@given(seed=seeds)
@some
def test_sums_by_label_are_those_of_the_obvious_loop(seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    rows = torch.randn(20, 3, generator=source)
    labels = torch.randint(0, 4, (20,), generator=source)
    slow = torch.zeros(5, 3, dtype=torch.float64)
    for label, row in zip(labels.tolist(), rows, strict=True):
        slow[label] += row.double()
    assert torch.allclose(sums_by(labels, rows, 5), slow, rtol=0, atol=1e-14)
