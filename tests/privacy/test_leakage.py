"""Attacks on finished runs, against their definitions and on runs that are known to leak or not."""

import itertools
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccfcpp.clustering.algorithm import ClusteringAlgorithm
from ccfcpp.clustering.kmeans.config import CentroidConfig
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.leakage import leakage
from ccfcpp.clustering.systems.ccfc.centroids import CentroidRule
from ccfcpp.clustering.systems.ccfc.messages import refinement_exchange
from ccfcpp.clustering.systems.fed_scan.messages import CENTRES
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.exchange import Exchange, RefusedUpdateError, Task
from ccfcpp.privacy.leakage import (
    SIZES,
    measure_inversion,
    measure_membership,
    path_losses,
    reconstruction_losses,
    shift_images,
)
from ccfcpp.reports.contents import Contents
from ccfcpp.reports.page import page
from ccfcpp.reports.run_reader import read_run
from ccfcpp.reports.summary_tables import leakage_tables
from tests.support.clustering import clients_of_sizes, digits, made, tiny
from tests.support.command import TINY, TINY_SCAN, ccfcpp, refused, set_options, succeeded

losses = st.lists(st.integers(0, 8).map(float), min_size=2, max_size=14)


@given(losses, losses)
def test_membership_is_as_it_is_defined(inside: list[float], outside: list[float]) -> None:
    found = measure_membership(torch.tensor(inside), torch.tensor(outside))
    wins = [(m < o) + (m == o) / 2 for m in inside for o in outside]
    assert found.auc == pytest.approx(sum(wins) / len(wins))
    rates = []
    for first in (0, 1):
        best, gain = -math.inf, 0.0
        for threshold in sorted({*inside[first::2], *outside[first::2]}):
            hits, alarms = (
                sum(x <= threshold for x in half[first::2]) / len(half[first::2])
                for half in (inside, outside)
            )
            if hits - alarms > gain + 1e-12:
                best, gain = threshold, hits - alarms
        rates.append(
            [
                sum(x <= best for x in half[1 - first :: 2]) / len(half[1 - first :: 2])
                for half in (inside, outside)
            ]
        )
    advantage = (rates[0][0] + rates[1][0]) / 2 - (rates[0][1] + rates[1][1]) / 2
    assert found.advantage == pytest.approx(advantage)
    lowest = min(outside)  # of so few others none may be taken for a member
    assert found.found == pytest.approx(sum(m < lowest for m in inside) / len(inside))


def test_what_is_apart_is_told_and_what_is_alike_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(2, 2000, generator=generator)
    apart = measure_membership(drawn[0], drawn[1] + 1)
    assert apart.advantage > 0.99
    assert apart.auc == 1
    assert apart.found == 1
    alike = measure_membership(drawn[0], drawn[1])
    assert abs(alike.advantage) < 3 * alike.error + 0.01
    assert alike.error == pytest.approx(math.sqrt(0.5 / 2000), rel=0.5)
    assert alike.found == pytest.approx(0.01, abs=0.01)
    with pytest.raises(ValueError, match="two images"):
        measure_membership(drawn[0], drawn[1, :1])


def test_neighbours_are_moved_by_a_pixel() -> None:
    image = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4)
    moved = shift_images(image)
    assert moved.shape == (8, 1, 1, 4, 4)
    expected = []
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            rows = [min(max(r + down, 0), 3) for r in range(4)]
            columns = [min(max(c + right, 0), 3) for c in range(4)]
            if (down, right) != (0, 0):
                expected.append([[4 * r + c for c in columns] for r in rows])
    assert moved[:, 0, 0].tolist() == expected


@given(st.integers(1, 4), st.integers(1, 12), st.integers(0, 10**6))
def test_inversion_counts_the_averages_that_are_an_image(k: int, n: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(n, 3, generator=generator) + 0.1
    chosen = torch.randint(0, n, (k,), generator=generator)
    averages = torch.where(torch.rand(k, 1, generator=generator) < 0.5, points[chosen], 5.0)
    held = [0] * k
    for point in points.tolist():
        far = [math.dist(point, average) for average in averages.tolist()]
        held[far.index(min(far))] += 1
    nearest = [
        min(math.dist(p, a) / math.hypot(*p) for p in points.tolist()) for a in averages.tolist()
    ]
    found = measure_inversion([(averages, points)])
    for least, most in SIZES:
        here = [i for i in range(k) if least <= held[i] <= (n if most is None else most)]
        groups = [group for group in found if group.least == least]
        assert sum(group.averages for group in groups) == len(here)
        assert sum(group.exact for group in groups) == sum(nearest[i] < 1e-3 for i in here)


@given(st.integers(1, 3), st.integers(0, 10**6))
def test_paths_are_those_of_loops(n: int, seed: int) -> None:
    graph = torch.rand(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    graph = (graph + graph.T) * (graph + graph.T > 1)
    sums = [float(row.sum()) or 1.0 for row in graph]
    expected = torch.zeros_like(graph)
    for path in itertools.product(range(n), repeat=5):
        steps = [graph[i, j] / math.sqrt(sums[i] * sums[j]) for i, j in itertools.pairwise(path)]
        expected[path[0], path[-1]] -= math.prod(steps)
    torch.testing.assert_close(path_losses(graph), expected)


def test_a_decoder_that_memorises_is_found_and_another_one_is_not() -> None:
    """A linear decoder makes the points of a plane, and the nearest one is the projection."""
    drawn = torch.randn(4, 100, 9, generator=torch.Generator().manual_seed(0))
    members, others, strangers, plane = drawn
    basis = torch.linalg.qr(plane[:2].T).Q
    found = reconstruction_losses(lambda z: (z @ basis.T,), plane[:, :2], members)
    apart = (members - members @ basis @ basis.T).norm(dim=1)
    torch.testing.assert_close(found, apart, atol=0.01, rtol=0)
    for known, least, most in ((members, 0.9, 1.0), (strangers, -0.3, 0.3)):
        memory = partial(lambda x, z: ((9 * z).softmax(1) @ x,), known)
        both = (reconstruction_losses(memory, torch.eye(100), each) for each in (members, others))
        inside, outside = both
        assert least <= measure_membership(inside, outside).advantage <= most


# --- whole runs ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pixel_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("pixels") / "run"
    few = ("--set", "data.images=120", "--clients", 8)
    succeeded("cluster", "--method", "k-fed", "--out", run, *few)
    return run


def test_an_average_of_one_image_is_that_image(pixel_run: Path) -> None:
    told = json.loads(succeeded("leakage", pixel_run, "--json").stdout)
    assert told == json.loads((pixel_run / "leakage.json").read_text())
    alone = next(group for group in told["inversion"] if group["least"] == 1)
    assert alone["averages"] > 0
    assert alone["exact"] == alone["averages"]
    assert told["membership"]["members"] == 120
    assert told["membership"]["others"] == 1797 - 120
    shown = succeeded("leakage", pixel_run).stdout
    assert "advantage" in shown
    assert "that are one image" in shown
    html = page([read_run(pixel_run)], Contents(), {})
    assert "120 training images distinguished from 1,677 others" in html
    assert "averages of images that clients sent" in html


def test_no_average_of_few_images_is_sent(tmp_path: Path) -> None:
    run, least = tmp_path / "run", 5
    few = ("--set", "data.images=300", "--clients", 4, "--set", f"privacy.smallest_count={least}")
    succeeded("cluster", "--method", "k-fed", "--out", run, *few)
    groups = leakage(run)["inversion"]
    assert sum(group["averages"] for group in groups) > 0
    assert all(group["exact"] == 0 for group in groups)


def test_a_model_and_its_centroids_are_attacked(tmp_path: Path) -> None:
    for name, settings in (("ccfc", TINY), ("scan", TINY_SCAN)):
        run = tmp_path / name
        succeeded("cluster", "--out", run, *settings, "--set", "data.images=200")
        told = leakage(run)
        assert told["inversion"] is None
        assert set(told["membership"]["attacks"]) == {"distance", "calibrated distance", "views"}


def test_decoders_are_attacked_by_what_they_memorise(tmp_path: Path) -> None:
    """One that is not trained has memorised nothing."""
    same = ("--method", "fed-dcn", "--set", "data.images=120", "--clients", 3, "--rounds", 1)
    small = set_options("dcn.widths=[64]", "dcn.embedding=none", "dcn.synthetic=300")
    for epochs in (0, 80):
        given = set_options(f"dcn.pretrain_epochs={epochs}", "dcn.epochs=0", "dcn.batch_size=16")
        succeeded("cluster", *same, *small, *given, "--out", tmp_path / f"{epochs}")
        found = leakage(tmp_path / f"{epochs}")
        advantage = found["decoders"]["attacks"]["reconstruction"]["advantage"]
        assert (advantage > 0.4, found["decoders"]["nearer"] > 0.7) == (epochs > 0, epochs > 0)
        caption = "120 training images distinguished from 120 others by the client's decoder"
        assert any(caption in text for text in leakage_tables(found))


def test_graphs_tell_classes_that_lie_apart_and_no_others(tmp_path: Path) -> None:
    """Of vectors, which do not move by a pixel, membership has the distance alone."""
    points = np.random.default_rng(0).normal(size=(240, 4)) + 20 * (np.arange(240)[:, None] % 2)
    few = ("--label-column", "l", "--clients", 2, "--set", "data.images=160", "--method", "spp-fgc")
    for name, classes in (("apart", np.arange(240) % 2), ("mixed", np.arange(240) // 2 % 2)):
        data, rows = tmp_path / f"{name}.csv", np.column_stack([points, classes])
        np.savetxt(data, rows, delimiter=",", header="a,b,c,d,l", comments="")
        succeeded("cluster", "--dataset", data, *few, "--out", tmp_path / name)
        found = leakage(tmp_path / name)
        assert list(found["membership"]["attacks"]) == ["distance"]
        assert any("pairs of vectors of one class" in text for text in leakage_tables(found))
        expected = (1, 1) if name == "apart" else (0, found["graphs"]["alike"])
        advantage = found["graphs"]["attacks"]["paths"]["advantage"]
        assert (advantage, found["graphs"]["linked"]) == pytest.approx(expected, abs=0.1)


def test_what_has_nothing_to_attack_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "begun").mkdir()
    config = tmp_path / "begun" / "config.yaml"
    for method, deployed, said in (
        (None, False, "holds no run (no config.yaml)"),
        ("fedavg", False, "holds no run of clustering (method = fedavg)"),
        ("k-fed", False, "is not finished: go on with it by ccfcpp cluster --out"),
        ("k-fed", True, "are with its clients, on other machines"),
    ):
        if method:
            config.write_text(f"method: {method}\n")
        if deployed:
            (config.parent / "deployment.json").write_text("{}")
        assert said in refused("leakage", config.parent)
    run, images = tmp_path / "all", tmp_path / "few.npz"
    np.savez(images, images=digits()[0][:60].squeeze(1).numpy())
    few = ("--dataset", images, "--clients", 2, "--clusters", 3)
    succeeded("cluster", "--method", "k-fed", "--out", run, *few)
    line = refused("leakage", run)
    assert "cluster a part of it, such as --set data.images=40" in line
    with pytest.raises(UsageError, match=r"leakage\.json is damaged"):
        leakage_tables({"membership": 3})


# --- the smallest count -------------------------------------------------------------------------


def kept_back(least: int) -> dict[str, Any]:
    """A setting in which nothing is sent over fewer images."""
    return {"privacy": {"smallest_count": least}, "scan": {"overclustering": 1}}


def received(
    algorithm: ClusteringAlgorithm[Any], exchange: Exchange[Any, Any], message: object, least: int
) -> list[Any]:
    """What four small clients send."""
    clients = clients_of_sizes(9, 8, 7, 6)
    work = algorithm.client_side(ClientContext.of(clients, least=least)).works[exchange.name]
    task = Task("test", exchange.name, 0, 0)
    found = work.local_updates(task, message, clients, Randomness(0, 0))
    assert not any(isinstance(each, RefusedUpdateError) for each in found)
    return list(found)


@pytest.mark.parametrize("least", [0, 3])
def test_fuzzy_clusters_without_enough_support_say_nothing(least: int) -> None:
    algorithm = made(tiny("ffcm-avg", kept_back(least)))
    state = algorithm.initial_state(Randomness(0))
    (work,) = algorithm.exchanges(0, state)
    updates = received(algorithm, work.exchange, work.broadcast(state), least)
    supports = torch.cat([update.supports for update in updates])
    assert bool((supports < 3).any())
    assert bool((supports[supports < least] == 0).all())
    for update in updates:
        silent = update.supports == 0
        torch.testing.assert_close(update.centroids[silent], state.centroids[silent])


@pytest.mark.parametrize("method", ["ccfc++", "fed-scan"])
@pytest.mark.parametrize("least", [0, 3])
def test_sums_over_few_images_are_zeros(method: str, least: int) -> None:
    algorithm = made(tiny(method, kept_back(least)))
    model = algorithm.initial_state(Randomness(0)).model
    if method == "fed-scan":
        updates = received(
            algorithm, CENTRES, EncoderState(model, 1, groups=torch.arange(3)), least
        )
    else:
        seen = algorithm.represent(EncoderState(model, 1), clients_of_sizes(9)[0])
        assert seen is not None
        message = EncoderState(model, 1, seen[:3])
        updates = received(algorithm, refinement_exchange(True), message, least)
    counts = torch.stack([update.counts for update in updates])
    assert bool((counts[counts < least] == 0).all())
    assert bool(((counts > 0) & (counts < 3)).any()) == (least == 0)
    for update in updates:
        assert bool((update.sums[update.counts == 0] == 0).all())


def test_centroids_of_few_images_are_not_sent() -> None:
    points = torch.tensor([[0.0, 1], [0, 1.01], [0, 0.99], [9, 0]])
    sizes = {}
    for least in (0, 2, 9):
        rule = CentroidRule(CentroidConfig(assignment="euclidean"), 2)
        (own,) = rule.local_centroids([points], [Randomness(0)], least)
        sizes[least] = [] if isinstance(own, RefusedUpdateError) else sorted(own.sizes.tolist())
    assert sizes == {0: [1.0, 3.0], 2: [3.0], 9: []}


def test_a_client_whose_clusters_are_all_small_says_so(tmp_path: Path) -> None:
    result = ccfcpp(
        "cluster", "--method", "k-fed", "--out", tmp_path / "run", "--clients", 3,
        "--set", "data.images=60", "--set", "privacy.smallest_count=50",
    )  # fmt: skip
    assert result.code == 1
    assert "none of its clusters has 50 images" in result.stderr
    both = ("--set", "privacy.smallest_count=5", "--set", "privacy.level=image")
    line = refused("cluster", *both, "--out", tmp_path / "other")
    assert "one image would decide whether a whole sum is sent" in line
