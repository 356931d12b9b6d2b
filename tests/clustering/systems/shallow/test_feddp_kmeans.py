"""FedDP-KMeans beside k-means in one place, obvious loops, scipy's transform and dp-accounting."""

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.fft import dctn
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from torch import Tensor

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.kmeans.centroids import ClusterSums
from ccfcpp.clustering.run import ClusteringRun, clustering_run
from ccfcpp.clustering.systems.shallow.config import PixelsConfig
from ccfcpp.clustering.systems.shallow.feddp_kmeans import (
    FedDPKMeans,
    FedDPState,
    MoveFedDPCentroids,
    WeighPoints,
)
from ccfcpp.clustering.systems.shallow.feddp_sums import (
    LLOYD,
    MEAN,
    PRODUCTS,
    WEIGHTS,
    AddClearMembers,
    AddMoments,
    Centres,
    CountNearest,
    ServerPoints,
    Weights,
)
from ccfcpp.clustering.systems.shallow.pixels import PixelRule
from ccfcpp.clustering.systems.shallow.subspaces import (
    Frame,
    flatten_symmetric,
    low_frequencies,
    top_subspace,
    unflatten_symmetric,
    whole_space,
)
from ccfcpp.core.config import Tree
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.open import load
from ccfcpp.deployment.server.enrolment import first_spec
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import AbsentClientError, AnyExchange, Task
from ccfcpp.engine.payload import pack
from ccfcpp.engine.update_format import format_of
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.mechanism import client_bounds, image_bounds
from ccfcpp.privacy.noise.per_image_clipping import bounding_of
from ccfcpp.privacy.sums.aggregation import Addition
from tests.support.clustering import clients_of_sizes, digits, made, run_tiny, tiny
from tests.support.federation import CPU, Faulty, federated, refusal

NAME = "feddp-kmeans"
RULE = PixelRule(PixelsConfig(), (1, 8, 8))
FRAME = low_frequencies((1, 8, 8), 4)
needs_accountant = pytest.mark.skipif(
    find_spec("dp_accounting") is None, reason="dp-accounting is an extra: ccfcpp[privacy]"
)
sizes = st.lists(st.integers(1, 60), min_size=1, max_size=6).filter(lambda own: sum(own) >= 60)


def rows(clients: Sequence[Client], frame: Frame) -> Tensor:
    return frame.coordinates(RULE.points(torch.cat([client.images for client in clients])))


def states(clients: Sequence[Client], **settings: Any) -> list[FedDPState]:
    """After each round."""
    algorithm = made(tiny(NAME, {"feddp": settings}), samples=sum(map(len, clients)))
    federation = federated(NAME, algorithm, clients)
    return [state for state, _ in federation.run(algorithm.initial_state(Randomness(0)))]


def sent(work: Any, message: Any, client: Client) -> Any:
    return work.local_updates(Task(NAME, "", 0, 0), message, [client], Randomness(0))[0]


# --- without noise: as if all images lay in one place -------------------------------------------


@settings(max_examples=10, deadline=None)
@given(sizes, st.sampled_from(["subspace", "whole"]), st.sampled_from([None, 5]))
def test_its_steps_are_those_of_k_means_over_all_images(
    own: list[int], sums: str, frequencies: int | None
) -> None:
    clients = clients_of_sizes(*own)
    first, *_, last = states(clients, rounds=5, sums=sums, frequencies=frequencies)
    frame = first.sums_in or first.frame
    start = frame.coordinates(first.frame.to_points(first.coordinates))
    everything = rows(clients, frame).numpy()
    found = KMeans(3, init=start.numpy(), n_init=1, max_iter=4, tol=0, algorithm="lloyd")
    found.fit(everything)
    np.testing.assert_allclose(last.coordinates, found.cluster_centers_, atol=1e-6)
    assert last.centroids is not None
    labels = RULE.assign(torch.cat([client.images for client in clients]), last.centroids)
    nearest = np.square(everything[:, None] - found.cluster_centers_).sum(axis=2)
    chosen = nearest[np.arange(len(everything)), labels]
    np.testing.assert_allclose(chosen, nearest.min(axis=1), atol=1e-5)


@settings(max_examples=15, deadline=None)
@given(sizes)
def test_its_subspace_is_that_of_all_images_principal_components(own: list[int]) -> None:
    clients = clients_of_sizes(*own)
    (state,) = states(clients, rounds=1, dimensions=4, frequencies=None)
    points = rows(clients, whole_space(64)).numpy()
    expected = PCA(4, svd_solver="full").fit(points)
    np.testing.assert_allclose(state.frame.origin, points.mean(axis=0), atol=1e-9)
    projector = state.frame.axes.T @ state.frame.axes
    np.testing.assert_allclose(projector, expected.components_.T @ expected.components_, atol=1e-6)
    values, vectors = np.linalg.eigh(np.cov(points.T, bias=True))
    spread = (state.frame.axes.numpy() @ vectors) ** 2 @ values
    np.testing.assert_allclose(spread, values[::-1][:4], atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(st.integers(5, 60), st.floats(0.1, 1), st.integers(0, 99))
def test_sums_are_those_of_an_obvious_loop(samples: int, margin: float, seed: int) -> None:
    (client,) = clients_of_sizes(samples)
    points = rows([client], FRAME)
    centres = points[torch.randperm(samples, generator=torch.Generator().manual_seed(seed))[:4]]
    message = Centres(FRAME, centres, margin)
    found = sent(AddClearMembers(LLOYD, ClientContext(samples, 1), RULE), message, client)
    sums, counts = torch.zeros(4, 15).double(), [0] * 4
    for point in points:
        distances = [math.dist(point, centre) for centre in centres]
        order = sorted(range(4), key=distances.__getitem__)
        if distances[order[0]] <= margin * distances[order[1]] or margin == 1:
            sums[order[0]] += point
            counts[order[0]] += 1
    torch.testing.assert_close(found.sums, sums, atol=1e-7, rtol=0)
    assert found.counts.tolist() == counts
    weights = sent(
        CountNearest(WEIGHTS, ClientContext(samples, 1), RULE), ServerPoints(FRAME, centres), client
    )
    nearest = torch.cdist(points, centres).argmin(dim=1)
    assert weights.counts.tolist() == [int((nearest == n).sum()) for n in range(4)]


def test_the_servers_points_stand_for_images_by_their_weights() -> None:
    """Points in two places, one of which has the images of two clusters."""
    points = torch.tensor([[0.0, 0], [0, 0.1], [5, 5], [5, 5.1], [9, 0]]).double()
    state = FedDPState(Frame(torch.zeros(2).double(), torch.eye(2).double()), points, points[:2])
    counts = torch.tensor([30.0, 10, 0, 0, 20]).double()
    state, _ = WeighPoints(2).aggregate(state, [Weights(counts)], Randomness(0))
    assert sorted(state.coordinates.round(decimals=4).tolist()) == [[0.0, 0.025], [9.0, 0.0]]


# --- what clients and images may add ------------------------------------------------------------

WORKS = [
    (AddMoments(MEAN, ClientContext(9, 9), RULE), FRAME),
    (AddMoments(PRODUCTS, ClientContext(9, 9), RULE), FRAME),
    (CountNearest(WEIGHTS, ClientContext(9, 9), RULE), ServerPoints(FRAME, torch.eye(15).double())),
    (AddClearMembers(LLOYD, ClientContext(9, 9), RULE), Centres(FRAME, torch.eye(15).double()[:3])),
]


@pytest.mark.parametrize(("work", "message"), WORKS)
def test_where_clients_count_alike_each_sends_means(work: Any, message: Any) -> None:
    (client,) = clients_of_sizes(17)
    whole = pack(sent(work, message, client))
    alike = replace(work, context=ClientContext(17, 1, alike=True))
    for name, part in pack(sent(alike, message, client)).items():
        torch.testing.assert_close(17 * part, whole[name])


@pytest.mark.parametrize(("work", "message"), WORKS)
@pytest.mark.parametrize("clip", [0.05, 0.6])
def test_an_image_adds_its_bound_at_most(work: Any, message: Any, clip: float) -> None:
    """A client with one image more, and the sum of images that each are by themselves."""
    asked = PrivacyConfig(level="image", clip=clip, reproducible_noise=True)
    bounded = replace(work, context=ClientContext(12, 1, bounding=bounding_of(asked)))
    bounds = image_bounds(asked, work.exchange)
    (client,) = clients_of_sizes(12)
    singles = [pack(sent(bounded, message, replace(client, images=x[None]))) for x in client.images]
    loose = [pack(sent(work, message, replace(client, images=x[None]))) for x in client.images]
    for name, total in pack(sent(bounded, message, client)).items():
        torch.testing.assert_close(total, sum(single[name] for single in singles))
        if name != "images":
            norms = [float(single[name].norm()) for single in singles]
            expected = [min(bounds.of(name), float(single[name].norm())) for single in loose]
            assert norms == pytest.approx(expected, abs=1e-9)


def test_bounds_count_in_what_is_usual_and_one_of_a_part_is_taken_as_it_is() -> None:
    config = PrivacyConfig(level="client", clip=3.0, clips={"counts": 0.7})
    bounds = client_bounds(config, LLOYD)
    assert [bounds.of("sums"), bounds.of("counts")] == pytest.approx([0.45, 0.7])
    bounds = image_bounds(PrivacyConfig(level="image", clip=3.0), LLOYD)
    assert [bounds.of("sums"), bounds.of("counts")] == pytest.approx([1.8, 1.0])


def test_the_number_of_images_is_public_and_gets_no_noise() -> None:
    (client,) = clients_of_sizes(9)
    update = sent(AddMoments(MEAN, ClientContext(9, 1), RULE), FRAME, client)
    form = format_of(pack(update))
    plain, noised = Addition(MEAN, FRAME), Addition(MEAN, FRAME, alike=True)
    assert plain.parts(update).keys() == {"moments", "images"}
    assert noised.parts(update).keys() == noised.zeros(form).keys() == {"moments"}
    whole: Any = noised.whole(form, noised.parts(update), contributors=45.0)
    assert float(whole.images) == 45.0
    torch.testing.assert_close(whole.mean, update.moments / 45)


@pytest.mark.parametrize(
    ("work", "message", "size"),
    [(WORKS[0][0], FRAME, 4), (WORKS[1][0], FRAME, len(FRAME.axes))],
    ids=["mean", "products"],
)
def test_a_sum_over_fewer_images_than_allowed_is_not_sent(
    work: Any, message: Any, size: int
) -> None:
    (client,) = clients_of_sizes(size)
    for least, held in ((size, size), (size + 1, 0)):
        found = sent(replace(work, context=ClientContext(size, 1, least=least)), message, client)
        assert float(found.images) == held
        assert bool(found.moments.any()) == (held > 0)


@pytest.mark.parametrize(("least", "held"), [(0, 14), (1, 14), (2, 0)])
def test_no_products_of_fewer_images_than_dimensions_are_sent(least: int, held: int) -> None:
    (client,) = clients_of_sizes(len(FRAME.axes) - 1)
    work: Any = WORKS[1][0]
    few = replace(work, context=ClientContext(14, 1, least=least))
    assert float(sent(few, FRAME, client).images) == held


@given(st.integers(0, 12), st.integers(0, 100))
@settings(max_examples=10, deadline=None)
def test_a_point_that_is_nearest_to_few_images_has_no_count(least: int, seed: int) -> None:
    """A server could otherwise ask by its points where a single image lies."""
    (client,) = clients_of_sizes(12)
    rows = FRAME.coordinates(RULE.points(client.images))
    points = rows[torch.randperm(12, generator=torch.Generator().manual_seed(seed))[:5]]
    nearest = torch.cdist(rows, points).argmin(dim=1).tolist()
    expected = [nearest.count(place) for place in range(5)]
    work = CountNearest(WEIGHTS, ClientContext(12, 1, least=least), RULE)
    found = sent(work, ServerPoints(FRAME, points), client)
    assert found.counts.tolist() == [count if count >= least else 0 for count in expected]


def test_updates_that_cannot_be_are_refused() -> None:
    algorithm = made(tiny(NAME))
    state = algorithm.initial_state(Randomness(0))
    (*first, weights), (lloyd,) = algorithm.plan(state)[:2]
    (client,) = clients_of_sizes(5)
    works = algorithm.client_side(ClientContext.of([client])).works
    for work in (*first, weights, lloyd):
        update = sent(works[work.exchange.name], work.broadcast(state), client)
        assert refusal(work, state, update, samples=5) is None
        assert refusal(work, state, update, samples=4) is not None
    assert refusal(weights, state, Weights(-torch.eye(20)[0].double()), 9) is not None


def test_one_frequency_of_grey_images_is_refused() -> None:
    """Of images in colour it leaves how the channels differ."""
    config = tiny(NAME, {"feddp": {"frequencies": 1}})
    with pytest.raises(UsageError, match=r"feddp\.frequencies = 1 leaves nothing of grey images"):
        clustering_run(config)
    colour = FedDPKMeans(Problem(config, (3, 8, 8), 4, CPU))
    state = colour.initial_state(Randomness(0))
    assert len(state.frame.axes) == 2


# --- noise --------------------------------------------------------------------------------------


def test_what_noise_makes_of_counts_is_mended() -> None:
    message: Any = None
    counts = torch.tensor([10.0, 1, -3, 12]).double()
    assert WeighPoints(2).project_noisy(message, Weights(counts)).counts.tolist() == [10, 1, 0, 12]
    sums = torch.ones(4, 2).double()
    found = MoveFedDPCentroids(LLOYD).project_noisy(message, ClusterSums(sums, counts))
    # The mean count is 5.75, of which 1 is less than a fifth.
    assert found.counts.tolist() == [10, 0, 0, 12]
    assert found.sums[:, 0].tolist() == [1, 0, 0, 1]
    state = FedDPState(whole_space(2), sums, torch.full((4, 2), 7.0).double())
    after, _ = MoveFedDPCentroids(LLOYD).aggregate(state, [found], Randomness(0))
    assert after.coordinates[:, 0].tolist() == pytest.approx([0.1, 7, 7, 1 / 12])


def private(level: str, **more: Any) -> ClusteringRun:
    privacy = {"level": level, "reproducible_noise": True, **more}
    tree: Tree = {"clusters": 10, "partition": {"clients": 100}, "privacy": privacy}
    return clustering_run(tiny(NAME, tree, {"feddp": {"points": 200}}))


@needs_accountant
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("level", ["client", "image"])
@pytest.mark.parametrize(("rounds", "margin", "sums"), [(2, None, 4), (4, 0.5, 7)])
def test_epsilon_is_that_of_as_many_gaussians(
    level: str, secure: bool, rounds: int, margin: float | None, sums: int
) -> None:
    from dp_accounting.dp_event import GaussianDpEvent
    from dp_accounting.rdp import RdpAccountant

    tree: Tree = {"feddp": {"rounds": rounds, "margin": margin}, "partition": {"clients": 9}}
    privacy: Tree = {"privacy": {"level": level, "secure_sums": secure, "epsilon": 3.0}}
    privacy["privacy"]["accountant"] = "rdp"
    experiment = clustering_run(tiny(NAME, tree, privacy, {"data": {"images": 200}}))
    assert experiment.protection is not None
    mechanism = experiment.protection.mechanism
    assert mechanism is not None
    direct = RdpAccountant()
    direct.compose(GaussianDpEvent(mechanism.budget.noise), sums)
    expected = direct.get_epsilon(1e-5)
    assert mechanism.planned.spent == pytest.approx(expected)
    assert 2.9 < expected <= 3.0


@needs_accountant
@pytest.mark.parametrize(("level", "least"), [("client", 0.42), ("image", 0.5)])
def test_a_run_with_privacy_finds_the_digits(level: str, least: float) -> None:
    """100 clients at ε = 8. An untrained network has an NMI of 0.19."""
    experiment = private(level)
    federation = experiment.federation()
    rounds = list(federation.run(experiment.algorithm.initial_state(experiment.randomness)))
    assert rounds[-1][1].figures["epsilon"] <= 8
    state = rounds[-1][0]
    assert federation.is_over(state, len(rounds))
    clusters = experiment.algorithm.assign(state, Client(-1, "all", experiment.data.values))
    from sklearn.metrics import normalized_mutual_info_score

    assert normalized_mutual_info_score(digits()[1], clusters.cpu()) > least


def test_clients_with_huge_or_wrong_numbers_add_no_more_than_others() -> None:
    work: AnyExchange = LLOYD
    bounds = client_bounds(PrivacyConfig(level="client"), work)
    found = bounds.clip_parts(
        {"sums": torch.full((3, 2), 1e9).double(), "counts": torch.tensor([math.nan]).double()}
    )
    assert float(found["sums"].norm()) == pytest.approx(0.15)
    assert found["counts"].tolist() == [0]


def test_a_sum_that_fails_leaves_points_to_go_on_from() -> None:
    """No answer to the first two exchanges; all that follow work."""
    clients = clients_of_sizes(30, 20)
    algorithm = made(tiny(NAME))
    whole = federated(NAME, algorithm, clients)
    failed: list[str] = []

    def fault(reply: Any) -> Any:
        if len(failed) < 2:
            failed.append("lost")
            return replace(reply, update=AbsentClientError("it did not answer"))
        return reply

    whole.transport = Faulty(whole.transport, {0: fault, 1: fault})  # type: ignore[assignment]
    state = algorithm.initial_state(Randomness(0))
    assert not algorithm.knows_clusters(state)
    state, report = whole.run_round(state, 0)
    assert report.absent
    assert state.centroids is not None
    assert bool(state.centroids.isfinite().all())


def test_a_round_in_which_nobody_took_part_is_repeated() -> None:
    config, clients = tiny(NAME, {"feddp": {"rounds": 40}}), clients_of_sizes(70)
    _, reports, _ = run_tiny(config, clients, Availability(dropout_rate=0.8))
    first, second, *_ = [report for report in reports if report.clients]
    assert first.round > 0
    assert first.figures["dimensions"] > 0
    assert list(second.figures) == ["moved"]


def test_a_run_ends_where_no_centroid_moves() -> None:
    _, reports, _ = run_tiny(tiny(NAME, {"feddp": {"rounds": 500}}), clients_of_sizes(40, 30))
    assert len(reports) < 100
    assert reports[-1].figures["moved"] == 0


def test_a_margin_that_no_image_is_within_does_not_end_the_run() -> None:
    tree: Tree = {"feddp": {"margin": 1e-9, "rounds": 3}}
    _, reports, _ = run_tiny(tiny(NAME, tree), clients_of_sizes(40, 30))
    assert reports[0].figures["moved"] == 0
    assert reports[1].figures["moved"] > 0


# --- the server's images ------------------------------------------------------------------------


def test_the_servers_images_are_the_points(tmp_path: Path) -> None:
    images = digits()[0][200:260]
    np.savez(tmp_path / "public.npz", images=images.numpy())
    server = str(tmp_path / "public.npz")
    (state,) = states(clients_of_sizes(50, 40), rounds=1, server=server, points=60)
    expected = state.frame.coordinates(RULE.points(images))
    torch.testing.assert_close(state.points, expected)
    (some,) = states(clients_of_sizes(50, 40), rounds=1, server=server, points=9)
    assert some.given is not None
    assert {tuple(row) for row in some.given.tolist()} < {
        tuple(row) for row in RULE.points(images).tolist()
    }
    np.savez(tmp_path / "public.npz", images=images[:2].numpy())
    with pytest.raises(UsageError, match=r"give at least 3 of shape \(1, 8, 8\)"):
        states(clients_of_sizes(50), server=server)
    with pytest.raises(UsageError, match="fewer than the 3 clusters"):
        states(clients_of_sizes(50), points=2)


def test_images_of_another_size_are_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits for a federation of larger images."""
    config = tiny(NAME, {"feddp": {"server": "digits", "points": 30}})
    from ccfcpp.clustering.algorithm import Problem
    from ccfcpp.clustering.systems.shallow.feddp_kmeans import FedDPKMeans

    problem = Problem(config, (1, 12, 12), 3, torch.device("cpu"))
    state = FedDPKMeans(problem).initial_state(Randomness(0))
    assert state.given is not None
    larger = PixelRule(PixelsConfig(), (1, 12, 12)).points(load("digits", image_size=12).images)
    assert {tuple(row) for row in state.given.tolist()} <= {tuple(row) for row in larger.tolist()}
    with pytest.raises(UsageError, match=r"feddp\.server = digits has 1797 images of shape"):
        FedDPKMeans(replace(problem, image_shape=(3, 8, 8))).initial_state(Randomness(0))


def test_clients_are_not_told_where_the_servers_images_are() -> None:
    spec = first_spec(tiny(NAME, {"feddp": {"server": "/srv/secret"}}))
    assert "secret" not in spec.model_dump_json()
    assert spec.config["feddp"]["points"] == 20


def test_half_of_what_is_sent_is_the_matrix() -> None:
    (client,) = clients_of_sizes(30)
    found = sent(AddMoments(PRODUCTS, ClientContext(30, 1), RULE), FRAME, client)
    points = rows([client], FRAME)
    torch.testing.assert_close(unflatten_symmetric(found.moments, 15), points.T @ points)


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 7), st.integers(1, 7), st.integers(1, 8), st.integers(0, 99)
)
def test_low_frequencies_are_those_of_the_transform(
    channels: int, height: int, width: int, most: int, seed: int
) -> None:
    frame, images = low_frequencies((channels, height, width), most), random(seed, 4, channels)
    images = random(seed, 4, channels, height, width)
    transformed = dctn(images.numpy(), axes=(1, 2, 3), norm="ortho")[:, :, :most, :most]
    expected = transformed.reshape(4, -1)[:, 1:]
    np.testing.assert_allclose(frame.coordinates(images.flatten(1)), expected, atol=1e-12)
    # A brighter image has the same coordinates.
    np.testing.assert_allclose(frame.coordinates(images.flatten(1) + 3), expected, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 8), st.integers(0, 99))
def test_half_a_matrix_has_its_norm_and_is_all_of_it(size: int, seed: int) -> None:
    matrix = random(seed, size, size)
    matrix = matrix + matrix.T
    assert float(flatten_symmetric(matrix).norm()) == pytest.approx(float(matrix.norm()))
    torch.testing.assert_close(unflatten_symmetric(flatten_symmetric(matrix), size), matrix)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(0, 99))
def test_the_subspace_is_that_of_principal_components(most: int, seed: int) -> None:
    points = random(seed, 60, 6) * torch.arange(1, 7).double()
    origin = points.mean(dim=0)
    variances, axes = top_subspace((points - origin).T @ (points - origin) / 60, most)
    expected = PCA(most).fit(points.numpy())
    np.testing.assert_allclose(variances, expected.explained_variance_ * 59 / 60)
    projector, other = axes.T @ axes, expected.components_.T @ expected.components_
    np.testing.assert_allclose(projector, other, atol=1e-9)
    frame = Frame(origin, axes)
    there = frame.coordinates(points)
    torch.testing.assert_close(frame.coordinates(frame.to_points(there)), there)


def test_directions_within_the_noise_are_left_out() -> None:
    """Of 30 dimensions 3 stand out of symmetric noise, whose largest eigenvalue is about 1."""
    noise = random(0, 30, 30) / (2 * 30**0.5)
    noise = (noise + noise.T) / 2**0.5
    matrix = noise + torch.diag(torch.tensor([9.0, 8.0, 7.0] + 27 * [0.0]).double())
    variances, axes = top_subspace(matrix, 10)
    assert 3 <= len(axes) <= 6
    assert float(axes[:3, :3].square().sum()) == pytest.approx(3, abs=0.1)
    assert bool((variances >= 0).all())
    # Nothing but noise leaves two, so that there is a plane to cluster in.
    assert len(top_subspace(-torch.eye(5).double(), 4)[1]) == 2
