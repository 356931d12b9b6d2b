"""What clients learn together is what is learnt of all images in one place."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.prepared import Prepared, made
from ccfcpp.clustering.scan.neighbours import first_features, gradients
from ccfcpp.clustering.transform.features import DIMENSIONS, THRESHOLD, Transform, features
from ccfcpp.clustering.transform.lessons import transform_stage
from ccfcpp.core.config import Tree
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Crew
from ccfcpp.engine.client import Client
from ccfcpp.engine.payload import added_up, pack, unpack
from ccfcpp.engine.synchronised.contract import Contribution, Own
from tests.clustering.transform.test_features import some_images
from tests.support.clustering import digits, tiny
from tests.support.federation import CPU, assert_same_bits, federated, over_a_wire

ATOMS = 24
TREE: Tree = {
    "scan": {
        "first_neighbours": "transform",
        "atoms": ATOMS,
        "steps": 4,
        "steps_per_round": 2,
        "mine_every": 2,
        "first_weight": 0.5,
    }
}


def config_of(*trees: Tree) -> ClusterConfig:
    return tiny("fed-scan", TREE, *trees)


def algorithm_of(config: ClusterConfig, samples: int = 63) -> ClusteringAlgorithm[Any]:
    return made(Problem(config, (1, 8, 8), 3, CPU, samples))


def clients_of(*sizes: int) -> list[Client]:
    parts = torch.split(digits()[0][: sum(sizes)], list(sizes))
    return [Client(number, f"client {number}", part) for number, part in enumerate(parts)]


def all_patches(images: Tensor) -> Tensor:
    """Of shape (samples, places, values), by slices."""
    height, width = images.shape[2:]
    found = torch.stack(
        [
            images[:, :, row : row + 6, column : column + 6].double().flatten(1) / 255
            for row in range(height - 5)
            for column in range(width - 5)
        ],
        dim=1,
    )
    return found - found.mean(dim=2, keepdim=True)


def learnt_in_one_place(images: Tensor, start: Tensor) -> Transform:
    """The lessons, slowly. All patches serve each of them, as those of small images do."""
    rows = all_patches(images)
    flat = rows.flatten(0, 1)
    covariance = sum(torch.outer(row, row) for row in flat) / len(flat)
    assert isinstance(covariance, Tensor)
    variances, vectors = torch.linalg.eigh(covariance)
    whitening = vectors @ torch.diag((variances.clamp(min=0) + 1e-3) ** -0.5) @ vectors.T
    points, atoms = F.normalize(rows @ whitening, dim=2), start.double()
    for _ in range(10):
        nearest = (points.flatten(0, 1) @ atoms.T).argmax(dim=1)
        for number in range(len(atoms)):
            if bool((nearest == number).any()):
                atoms[number] = points.flatten(0, 1)[nearest == number].mean(dim=0)
        atoms = F.normalize(atoms, dim=1)
    codes = (points @ atoms.T >= THRESHOLD).double()
    b = sum(torch.outer(code, code) for code in codes.flatten(0, 1))
    c = sum(torch.outer(code.sum(dim=0), code.sum(dim=0)) for code in codes)
    assert isinstance(b, Tensor)
    assert isinstance(c, Tensor)
    sizes, axes = torch.linalg.eigh(b)
    there = sizes > 1e-6 * sizes[-1]
    root = axes[:, there] @ torch.diag(sizes[there] ** -0.5) @ axes[:, there].T
    leading = torch.linalg.eigh(root @ c @ root)[1].flip(1)[:, 1 : 1 + DIMENSIONS]
    return Transform(whitening.float(), atoms.float(), (root @ leading).float())


def learnt_by(clients: Sequence[Client], tree: Tree, channels: int = 1) -> tuple[Transform, Tensor]:
    """What clients learn by the stage's exchanges, and the directions where atoms begin."""
    config, samples = config_of(tree), sum(map(len, clients))
    shape = channels, *clients[0].images.shape[2:]
    stage = transform_stage(Problem(config, shape, 3, CPU, samples))
    known, start = Transform(), torch.empty(0)
    for lesson in stage.lessons:
        work = lesson.work(Crew.of(clients))
        task: Any = None
        answers = [work.local_sum(task, known, [client], Randomness(0)) for client in clients]
        known = lesson.learn(known, added_up(answers), Randomness(0))
        if start.numel() == 0:
            assert known.dictionary is not None
            start = known.dictionary
    return known, start


@settings(max_examples=6, deadline=None)
@given(st.sampled_from([1, 3]), st.integers(8, 10), st.integers(0, 10**6))
def test_it_is_that_of_all_images_in_one_place(channels: int, side: int, seed: int) -> None:
    images = some_images(30, channels, side, side, seed)
    clients = [Client(n, f"{n}", part) for n, part in enumerate(torch.split(images, [17, 1, 12]))]
    found, start = learnt_by(clients, {}, channels)
    expected = learnt_in_one_place(images, start)
    assert found.whitening is not None
    assert found.dictionary is not None
    assert expected.whitening is not None
    assert expected.dictionary is not None
    torch.testing.assert_close(found.whitening, expected.whitening, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.dictionary, expected.dictionary, rtol=1e-3, atol=1e-3)
    # Axes of an embedding may be turned: what counts is how alike images are.
    one, other = features(found, images), features(expected, images)
    torch.testing.assert_close(one @ one.T, other @ other.T, rtol=1e-2, atol=1e-2)


def test_the_order_of_clients_and_their_processes_do_not_matter() -> None:
    clients = clients_of(30, 21, 12)
    found, _ = learnt_by(clients, {})
    other, _ = learnt_by(clients[::-1], {})
    assert found.embedding is not None
    assert other.embedding is not None
    one, two = features(found, clients[0].images), features(other, clients[0].images)
    torch.testing.assert_close(one @ one.T, two @ two.T, rtol=1e-3, atol=1e-3)


def test_first_features_are_the_transform_beside_gradients() -> None:
    algorithm, clients = algorithm_of(config_of()), clients_of(30, 21, 12)
    run = federated("fed-scan", algorithm, clients)
    state, _ = run.run_round(algorithm.initial_state(Randomness(0)), 0)
    assert isinstance(algorithm, Prepared)
    images = clients[1].images
    holder = algorithm.holder(state, Client(1, "client 1", images))
    found = first_features("transform", holder)
    expected = torch.cat([features(state.preparation, images), 0.5 * gradients(images)], dim=1)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("other", [{}, {"clusters": "2-3"}])
def test_over_a_wire_every_bit_is_that_of_one_process(other: Tree) -> None:
    config = config_of({"compute": {"cohort": 1}}, other)
    whole = federated("fed-scan", algorithm_of(config), clients_of(30, 21, 12))
    wired = over_a_wire(
        "fed-scan", algorithm_of(config), algorithm_of(config), clients_of(30, 21, 12)
    )
    state = whole.algorithm.initial_state(Randomness(0))
    expected, found = list(whole.run(state)), list(wired.run(state))
    assert_same_bits(found, expected)
    assert not any(report.refused for _, report in found)
    assert found[0][1].bytes_up > found[1][1].bytes_up


def test_a_state_that_was_packed_goes_on() -> None:
    """As after an interruption."""
    algorithm = algorithm_of(config_of())
    state = algorithm.initial_state(Randomness(0))
    for number in range(2):
        whole, _ = federated(
            "fed-scan", algorithm_of(config_of()), clients_of(30, 21, 12)
        ).run_round(state, number)
        again = unpack(algorithm.state_type, pack(state))
        run = federated("fed-scan", algorithm, clients_of(30, 21, 12))
        state, report = run.run_round(again, number)
        assert report.refused == {}
        assert all(torch.equal(state.model[name], part) for name, part in whole.model.items())


def test_a_client_that_comes_late_knows_the_transform() -> None:
    config, clients = config_of(), clients_of(30, 21, 12)
    algorithm = algorithm_of(config)
    early = federated("fed-scan", algorithm, clients[:2])
    state, _ = early.run_round(algorithm.initial_state(Randomness(0)), 0)
    state, report = federated("fed-scan", algorithm, clients_of(30, 21, 12)).run_round(state, 1)
    assert report.refused == {}
    assert len(report.clients) == 3


def test_atoms_of_few_images_and_small_clients_tell_nothing() -> None:
    clients = clients_of(30, 4)
    stage = transform_stage(Problem(config_of(), (1, 8, 8), 3, CPU, 34))
    known, task = Transform(), None
    crew = Crew.of(clients, least=5)
    for lesson in stage.lessons[:2]:
        work: Any = lesson.work(crew)
        small = work.local_sum(task, known, clients[1:], Randomness(0))
        assert not any(part.any() for part in pack(small).values())
        total = work.local_sum(task, known, clients[:1], Randomness(0))
        before, known = known, lesson.learn(known, total, Randomness(0))
    whitening, dictionary = before.whitening, before.dictionary
    assert whitening is not None
    assert dictionary is not None
    points = F.normalize(all_patches(clients[0].images).float() @ whitening, dim=2)
    nearest = (points @ dictionary.T).argmax(dim=2)
    have = torch.stack([(nearest == number).any(dim=1).sum() for number in range(ATOMS)])
    assert 0 < int((have < 5).sum()) < ATOMS
    assert torch.equal(total.counts > 0, have >= 5)


def test_absent_clients_parts_count_on_as_without_the_transform() -> None:
    """The server knows whose part is whose."""
    algorithm = algorithm_of(config_of())
    state: Any = algorithm.initial_state(Randomness(0))
    first = next(work for work in algorithm.exchanges(0, state) if "step" in work.exchange.name)
    assert first.attributed(Contribution(), [2]) == Own(client=2)


def test_models_are_described_as_without_the_transform() -> None:
    config = tiny("ccfc++", TREE, {"training": {"pretraining": "neighbours"}})
    algorithm = algorithm_of(config)
    assert isinstance(algorithm, Prepared)
    assert algorithm.by_model is not None
    assert algorithm.by_model == algorithm.inner.by_model


def test_small_images_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 8 pixels a side, and these have 7 by 12"):
        made(Problem(config_of(), (1, 7, 12), 3, CPU, 20))


def test_vectors_are_refused() -> None:
    with pytest.raises(UsageError, match="transform looks at images, and the data are vectors"):
        made(Problem(config_of(), (5,), 3, CPU, 20))
