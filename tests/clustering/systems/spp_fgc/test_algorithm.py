"""SPP-FGC: each equation against an obvious version, and whole runs on the digits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

from ccfcpp import FederatedClustering, load
from ccfcpp.clustering.systems.spp_fgc import prototypes, structure
from ccfcpp.clustering.systems.spp_fgc.algorithm import GRAPHS, GraphUpdate, client_graph, cut
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.exchange import Nothing
from tests.support.clustering import answers, clients_of_sizes, made, tiny
from tests.support.command import ccfcpp, succeeded
from tests.support.federation import refusal

SEEDS = st.integers(0, 10**6)


def normal(seed: int, *shape: int) -> Tensor:
    generator = Randomness(seed).generator("points")
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def groups(distance: float, *sizes: int) -> Tensor:
    """Gaussian groups in the plane, on a line."""
    centres = [torch.tensor([distance * i, 0.0]).expand(n, 2) for i, n in enumerate(sizes)]
    return normal(0, sum(sizes), 2) + torch.cat(centres)


@given(st.integers(3, 12), st.integers(1, 12), SEEDS)
def test_the_weights_of_neighbours_are_those_of_the_equation(n: int, m: int, seed: int) -> None:
    distances = structure.squared_distances(normal(seed, n, 2))
    found, m = structure.neighbour_graph(distances, m), min(m, n - 2)
    for i in range(n):
        d = sorted((float(distances[i, j]), j) for j in range(n) if j != i)
        below = m * d[m][0] - sum(one for one, _ in d[:m])
        expected = {j: (d[m][0] - one) / below for one, j in d[:m]}
        row = [expected.get(j, 0) for j in range(n)]
        np.testing.assert_allclose(found[i].numpy(), row, atol=1e-9)


def test_equal_and_few_records_have_equal_weights() -> None:
    same = structure.neighbour_graph(torch.zeros(5, 5, dtype=torch.float64), 2)
    assert same.sum(dim=1).tolist() == [1] * 5
    assert set(same.flatten().tolist()) == {0, 0.5}
    for n, expected in ((1, [[0]]), (2, [[0, 1], [1, 0]])):
        zeros = torch.zeros(n, n, dtype=torch.float64)
        assert structure.neighbour_graph(zeros, 4).tolist() == expected


@given(st.integers(1, 5), SEEDS)
def test_the_projection_is_the_nearest_point_of_the_simplex(d: int, seed: int) -> None:
    row = normal(seed, 1, d)
    found = structure.project_on_simplex(row)[0].numpy()
    assert found.sum() == pytest.approx(1)
    # Of all points of the simplex, its corners are on no other side of the plane through it.
    for corner in np.eye(d):
        assert (row[0].numpy() - found) @ (corner - found) <= 1e-9


@given(st.integers(2, 8), SEEDS)
def test_the_eigenvectors_minimise_the_trace(n: int, seed: int) -> None:
    graph = normal(seed, n, n).abs()
    found = structure.smallest_eigenvectors(graph, 2)
    torch.testing.assert_close(found.T @ found, torch.eye(2, dtype=torch.float64))
    # Σ_ij s_ij ‖f_i - f_j‖² / 2 is the trace of FᵀLF, and that the sum of the eigenvalues.
    trace = (graph * structure.squared_distances(found)).sum() / 2
    mean = (graph + graph.T) / 2
    values = np.linalg.eigvalsh((torch.diag(mean.sum(dim=1)) - mean).numpy())
    assert float(trace) == pytest.approx(values[:2].sum(), abs=1e-8)


@pytest.mark.parametrize("wanted", [2, 3, 5])
def test_a_client_cuts_its_graph_into_as_many_components_as_asked(wanted: int) -> None:
    graph = client_graph(groups(3.0, 20, 20, 20), 5, wanted)
    mean = ((graph + graph.T) / 2).numpy()
    laplacian = np.diag(mean.sum(axis=1)) - mean
    assert np.linalg.matrix_rank(laplacian, tol=1e-9) == 60 - wanted


def test_the_server_cuts_at_weak_edges_and_merges_what_lies_near() -> None:
    points, owners = groups(10.0, 15, 15, 15), torch.arange(3).repeat_interleave(15)
    joined = structure.neighbour_graph(structure.squared_distances(points), 5) + 0.001
    labels = cut(joined / joined.sum(dim=1, keepdim=True), points, 3)
    assert normalized_mutual_info_score(owners, labels) == pytest.approx(1)
    apart = (owners == owners.unsqueeze(1)).double() / 15
    points[30:] += 100
    merged = cut(apart, points, 2)
    assert normalized_mutual_info_score(owners >= 2, merged) == pytest.approx(1)


@given(st.integers(3, 30), st.integers(1, 4), SEEDS)
def test_the_spread_is_that_of_the_covariance_about_the_means(n: int, d: int, seed: int) -> None:
    points = normal(seed, n, d)
    owners, means, spread = prototypes.fit_prototypes(points, 3, 0.0, Randomness(seed))
    rest = (points - means[owners]).numpy()
    covariance = rest.T @ rest / n
    expected = [np.trace(covariance), np.trace(covariance @ covariance)]
    np.testing.assert_allclose(spread.numpy(), expected, atol=1e-9)


@given(st.integers(1, 30), st.integers(0, 9), SEEDS)
def test_prototypes_are_of_as_many_records_as_an_owner_wants(n: int, least: int, seed: int) -> None:
    """None of them is a record, however few a client has."""
    system, clients = made(tiny("spp-fgc")), clients_of_sizes(n)
    (update,) = answers(system, GRAPHS, Nothing(), clients, Randomness(seed, 0), least)
    if n < max(2, least):
        assert f"it has fewer than {max(2, least)} records" in str(update)
        return
    assert isinstance(update, GraphUpdate)
    sizes = update.owners.bincount(minlength=3)
    assert (sizes[sizes > 0] >= least).all()
    assert (update.centroids[sizes == 0] == 0).all() or least == 0
    records = clients[0].images.flatten(1).double() / 255
    assert torch.cdist(update.centroids, records).min() > 0


@given(st.floats(0.1, 10), st.integers(1, 9), SEEDS)
def test_links_are_those_of_the_divergence_of_gaussians(v: float, d: int, seed: int) -> None:
    """N(μ, v) and N(ν, v) in d dimensions have tr C = d v and tr C² = d v²."""
    means, sizes = normal(seed, 3, 2), torch.tensor([1, 2, 4])
    found = prototypes.links_between(means, sizes, torch.tensor([d * v, d * v**2]).double())
    for p in range(3):
        for q in range(3):
            divergence = float((means[p] - means[q]).square().sum()) / (2 * v)
            assert float(found[p, q]) == pytest.approx(np.exp(-divergence) / float(sizes[q]), 1e-4)


def test_noise_has_the_scale_that_was_asked_for() -> None:
    points = normal(1, 400, 50)
    _, plain, spread = prototypes.fit_prototypes(points, 20, 0.0, Randomness(0, 0, 1))
    noisy = [prototypes.fit_prototypes(points, 20, 0.5, Randomness(0, 0, 1))[1] for _ in range(2)]
    assert torch.equal(*noisy)
    # The mean of |x| is the scale.
    scale = 0.5 * float(spread[0] / 50) ** 0.5
    assert float((noisy[0] - plain).abs().mean()) == pytest.approx(scale, rel=0.1)


def test_what_a_client_cannot_have_sent_is_refused() -> None:
    system = made(tiny("spp-fgc"))
    (update,) = answers(system, GRAPHS, Nothing(), clients_of_sizes(20), Randomness(0, 0))
    assert isinstance(update, GraphUpdate)
    (server,) = system.exchanges(0, system.initial_state(Randomness(0)))
    assert refusal(server, system.initial_state(Randomness(0)), update, 20) is None
    for field, value in (("neighbours", 20), ("owners", 3), ("weights", -1.0), ("weights", 2.0)):
        spoilt = {**vars(update), field: torch.full_like(getattr(update, field), value)}
        assert refusal(server, None, GraphUpdate(**spoilt), 20) is not None
    assert "the client holds 21" in str(refusal(server, None, update, 21))


def test_more_records_than_the_graph_may_have_are_one_line(tmp_path: Path) -> None:
    few = ("--set", "data.images=60", "--set", "spp.records=50")
    result = ccfcpp("cluster", "--method", "spp-fgc", *few, "--out", tmp_path / "run")
    assert result.code == 2
    assert "\nerror: spp.records = 50 is fewer than the clients' 60 records" in result.stderr
    assert "give --set data.images=50, or with" in result.stderr.splitlines()[-1]


def test_clients_of_one_record_send_nothing(tmp_path: Path) -> None:
    few = ("--set", "data.images=10", "--clients", "10", "--partition", "iid")
    result = ccfcpp("cluster", "--method", "spp-fgc", *few, "--out", tmp_path / "run")
    assert result.code == 1
    assert "it has fewer than 2 records" in result.stderr


def test_a_run_on_the_digits_finds_them_and_predict_does(tmp_path: Path) -> None:
    """Orders of clients, interruptions and absent clients are tried with all systems."""
    data, run = load("digits"), tmp_path / "run"
    assert data.labels is not None
    few = ("--set", "data.images=400", "--p", 0.75, "--clients", 5)
    succeeded("cluster", "--method", "spp-fgc", "--dataset", "digits", *few, "--out", run)
    model = FederatedClustering(10, method="spp-fgc", device="cpu")
    images = np.asarray(data.images)[:400, 0]
    model.fit(images, clients=np.arange(400) % 4)
    assert normalized_mutual_info_score(data.labels[:400], model.labels_) > 0.55
    assert (model.predict(images) == model.labels_).all()
    np.savez(tmp_path / "new.npz", x=images[:9])
    found = succeeded("predict", run, tmp_path / "new.npz", "--out", tmp_path / "new.csv")
    assert "9 images in" in found.stdout
