"""CCFC and CCFC++ as an algorithm of the engine."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.ccfc import representations
from ccfcpp.clustering.ccfc.centroids import CentroidRule, CentroidUpdate
from ccfcpp.clustering.ccfc.local_training import contrast_learning_rate
from ccfcpp.clustering.ccfc.messages import CCFCState, LloydStep, Training, TrainingUpdate
from ccfcpp.clustering.ccfc.representations import represent
from ccfcpp.clustering.kmeans.clients import kmeans_each
from ccfcpp.core.errors import FederationError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import RefusedUpdateError
from ccfcpp.engine.federation import check_update
from ccfcpp.models.initialisation import build
from ccfcpp.models.stack.stacked import ModelStack
from tests.support.clustering import (
    CPU,
    clients_of_sizes,
    digits,
    run_small,
    small_algorithm,
    small_config,
    small_federation,
)

OPTIONS = (
    ("model.initialization", "common"),
    ("centroids.encoder", "global"),
    ("centroids.server_weights", "sizes"),
    ("centroids.refine_steps", "2"),
    ("centroids.assignment", "euclidean"),
    ("training.keep_optimizer", "false"),
    ("training.local_epochs", "2"),
    ("loss.pretrain_eta", "0"),
    ("loss.lam", "0"),
    ("loss.min_cluster_size", "1"),
    ("training.schedule", "cosine"),
)


def assert_equal_states(first: CCFCState, second: CCFCState) -> None:
    assert first.model.keys() == second.model.keys()
    assert all(torch.equal(first.model[name], second.model[name]) for name in first.model)
    assert first.centroids is not None
    assert second.centroids is not None
    assert torch.equal(first.centroids, second.centroids)


def test_the_order_of_the_clients_does_not_matter() -> None:
    first, _ = run_small(small_config(), clients_of_sizes(40, 30, 50))
    second, _ = run_small(small_config(), clients_of_sizes(40, 30, 50)[::-1])
    assert_equal_states(first, second)


def test_the_same_seed_gives_the_same_run_and_another_gives_another() -> None:
    first, _ = run_small(small_config(), clients_of_sizes(40, 40))
    again, _ = run_small(small_config(), clients_of_sizes(40, 40))
    other, _ = run_small(small_config("seed=1"), clients_of_sizes(40, 40))
    assert_equal_states(first, again)
    assert any(not torch.equal(first.model[name], other.model[name]) for name in first.model)


@pytest.mark.parametrize(("key", "value"), OPTIONS)
def test_every_option_takes_effect_and_gives_a_whole_run(key: str, value: str) -> None:
    plain, _ = run_small(small_config(), clients_of_sizes(40, 45))
    state, reports = run_small(small_config(f"{key}={value}"), clients_of_sizes(40, 45))
    assert all(torch.isfinite(tensor).all() for tensor in state.model.values())
    assert not any(report.refused for report in reports)
    assert all("loss" in report.figures for report in reports)
    assert plain.centroids is not None
    assert state.centroids is not None
    assert state.centroids.shape == (3, 12)
    assert not torch.equal(state.centroids, plain.centroids)


def test_ccfc_is_ccfcpp_without_decorrelation() -> None:
    no_weight = ["loss.eta=0", "loss.pretrain_eta=0"]
    ccfc, _ = run_small(small_config("method=ccfc", *no_weight), clients_of_sizes(40, 40))
    plus, _ = run_small(small_config("method=ccfc++", *no_weight), clients_of_sizes(40, 40))
    with_term, _ = run_small(small_config(), clients_of_sizes(40, 40))
    assert_equal_states(ccfc, plus)
    assert any(not torch.equal(ccfc.model[name], with_term.model[name]) for name in ccfc.model)


def exchange_names(*settings: str) -> list[list[str]]:
    algorithm = small_algorithm(small_config(*settings))
    state = CCFCState({}, centroids=torch.zeros(3, 12))
    names = []
    for number in range(algorithm.rounds):
        exchanges = algorithm.exchanges(number, state)
        names.append(
            [
                e.name + "+centroids" * (isinstance(e, Training) and e.with_centroids)
                for e in exchanges
            ]
        )
    return names


def test_the_exchanges_of_each_round() -> None:
    assert exchange_names() == [
        ["pre-training"],
        ["pre-training+centroids"],
        ["cluster contrast+centroids"],
        ["cluster contrast+centroids"],
    ]
    assert exchange_names("centroids.encoder=global", "centroids.refine_steps=2") == [
        ["pre-training"],
        ["pre-training", "centroids", "refinement", "refinement"],
        ["cluster contrast", "centroids", "refinement", "refinement"],
        ["cluster contrast", "centroids", "refinement", "refinement"],
    ]


def test_without_pretraining_the_first_round_finds_centroids_first() -> None:
    algorithm = small_algorithm(small_config("training.pretrain_rounds=0"))
    names = [e.name for e in algorithm.exchanges(0, CCFCState({}))]
    assert names == ["centroids", "cluster contrast"]


def test_without_centroids_cluster_training_says_so() -> None:
    algorithm = small_algorithm(small_config())
    train = algorithm.exchanges(3, CCFCState({}))[-1]
    with pytest.raises(FederationError, match="no client has delivered centroids"):
        train.local_updates(CCFCState({}), clients_of_sizes(5), Randomness(0))


# --- awkward clients ---------------------------------------------------------------------------


@pytest.mark.parametrize("encoder", ["local", "global"])
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((40, 2), id="a client with fewer samples than k"),
        pytest.param((40, 1), id="a client with one sample, on which BatchNorm cannot train"),
        pytest.param((33, 40), id="a last batch of one sample"),
        pytest.param((40,), id="one client alone"),
        pytest.param((1, 1, 1), id="nobody can train"),
    ],
)
def test_awkward_clients_do_not_stop_a_run(sizes: tuple[int, ...], encoder: str) -> None:
    clients = clients_of_sizes(*sizes)
    state, reports = run_small(small_config(f"centroids.encoder={encoder}"), clients)
    assert all(report.clients == list(range(len(sizes))) for report in reports)
    assert not any(report.refused for report in reports)
    assert all(torch.isfinite(tensor).all() for tensor in state.model.values())
    assert state.centroids is not None
    assert len(state.centroids) == 3


def test_fewer_centroids_than_k_label_all_the_same() -> None:
    state, _ = run_small(small_config(), clients_of_sizes(2))
    assert state.centroids is not None
    assert len(state.centroids) == 2
    labels = small_algorithm(small_config()).assign(state, clients_of_sizes(50)[0])
    assert set(labels.tolist()) <= {0, 1}


# --- options, each against its definition ------------------------------------------------------


def training(config_settings: tuple[str, ...], number: int) -> tuple[Training, CCFCState]:
    algorithm = small_algorithm(small_config(*config_settings))
    state = algorithm.initial_state(Randomness(0))
    exchange = algorithm.exchanges(number, CCFCState({}, centroids=torch.zeros(3, 12)))[0]
    assert isinstance(exchange, Training)
    return exchange, state


def only_update(
    exchange: Training, state: CCFCState, clients: list[Client], randomness: Randomness
) -> TrainingUpdate:
    (update,) = exchange.local_updates(state, clients, randomness)
    assert isinstance(update, TrainingUpdate)
    return update


@pytest.mark.parametrize("initialization", ["common", "separate"])
def test_where_a_client_starts(initialization: str) -> None:
    """A client that cannot train sends the weights it started from."""
    exchange, state = training((f"model.initialization={initialization}",), 0)
    clients, randomness = clients_of_sizes(1), Randomness(0, 0)
    sent = only_update(exchange, state, clients, randomness).model
    source = randomness.of_client(0).generator("model")
    own = build(small_algorithm(small_config()).make_model, source)
    expected = state.model if initialization == "common" else own.state_dict()
    assert all(torch.equal(sent[name], expected[name]) for name in expected)
    later = only_update(exchange, CCFCState(state.model, version=1), clients, randomness).model
    assert all(torch.equal(later[name], state.model[name]) for name in later)


def test_local_centroids_are_those_of_the_trained_model_in_evaluation_mode() -> None:
    exchange, state = training((), 1)
    clients, randomness = clients_of_sizes(60), Randomness(0, 1)
    update = only_update(exchange, state, clients, randomness)
    model = ModelStack(small_algorithm(small_config()).make_model, 1, CPU)
    model.load(0, update.model)
    latents = F.normalize(represent(model, clients[0].images).latents, dim=1)
    seed = randomness.of_client(0).integer("k-means")
    (expected,) = kmeans_each([latents], 3, seeds=[seed], restarts=2, iterations=10)
    assert update.local is not None
    assert torch.equal(update.local.centroids, expected.centroids)
    assert torch.equal(update.local.sizes, expected.sizes)
    assert update.local.sizes.sum() == 60


def test_the_server_may_weigh_centroids_by_size() -> None:
    updates = [
        CentroidUpdate(torch.tensor([[0.0], [8.0]]), torch.tensor([3.0, 1.0])),
        CentroidUpdate(torch.tensor([[4.0]]), torch.tensor([4.0])),
    ]
    plain = CentroidRule(small_config().centroids, clusters=1)
    weighted = CentroidRule(small_config("centroids.server_weights=sizes").centroids, clusters=1)
    assert plain.global_centroids(updates, Randomness(0)).tolist() == [[4.0]]
    assert weighted.global_centroids(updates, Randomness(0)).tolist() == [[3.0]]


def test_assignment_by_cosine_and_by_distance() -> None:
    centroids = torch.tensor([[1.0, 0.0], [10.0, 10.0]])
    point = torch.tensor([[1.0, 1.0]])
    cosine = CentroidRule(small_config().centroids, 2)
    euclidean = CentroidRule(small_config("centroids.assignment=euclidean").centroids, 2)
    assert cosine.assign(point, centroids).tolist() == [1]
    assert euclidean.assign(point, centroids).tolist() == [0]


def lloyd(centroids: Tensor, sizes: tuple[int, ...]) -> tuple[CCFCState, Tensor]:
    """One federated Lloyd step, and all clients' points."""
    algorithm = small_algorithm(small_config())
    state = CCFCState(algorithm.initial_state(Randomness(0)).model, centroids=centroids)
    step = LloydStep(algorithm.trainer, algorithm.rule)
    clients = clients_of_sizes(*sizes)
    updates = step.local_updates(state, clients, Randomness(0))
    for update in updates:
        check_update(step, state, update)
    seen = algorithm.trainer.global_model.representations(
        state.model, -1, Client(-1, "all", digits()[0][: sum(sizes)])
    )
    after, _ = step.aggregate(state, updates, Randomness(0))
    return after, algorithm.rule.points(seen.latents)


def test_a_federated_lloyd_step_is_one_over_all_samples() -> None:
    _, points = lloyd(torch.zeros(3, 12), (40, 1, 25))
    start = points[[0, 10, 20]]
    state, _ = lloyd(start, (40, 1, 25))
    labels = (points @ start.T).argmax(dim=1)
    expected = torch.stack([points[labels == c].mean(dim=0) for c in range(3)])
    assert state.centroids is not None
    torch.testing.assert_close(state.centroids, expected)


def test_a_cluster_that_nobody_assigns_to_keeps_its_centroid() -> None:
    _, points = lloyd(torch.zeros(3, 12), (30,))
    # The opposite of the mean direction is the last choice of every point.
    far = -10 * points.mean(dim=0)
    start = torch.stack([points[0], points[1], far])
    state, _ = lloyd(start, (30,))
    assert state.centroids is not None
    assert torch.equal(state.centroids[2], far)
    assert not torch.equal(state.centroids[:2], start[:2])


def test_the_learning_rate_of_each_cluster_round() -> None:
    constant = small_config("training.rounds=4").training
    cosine = small_config("training.rounds=4", "training.schedule=cosine").training
    assert [contrast_learning_rate(constant, number) for number in range(2, 6)] == [1e-3] * 4
    rates = [contrast_learning_rate(cosine, number) for number in range(2, 6)]
    half = 0.5**0.5 / 2
    assert rates == pytest.approx([1e-3, 1e-3 * (0.5 + half), 5e-4, 1e-3 * (0.5 - half)])


def test_moments_are_kept_within_a_phase_and_forgotten_after_it() -> None:
    def steps(*settings: str) -> dict[str, float]:
        federation = small_federation(small_config(*settings), clients_of_sizes(64))
        list(federation.run(federation.algorithm.initial_state(Randomness(0))))
        memory = federation.transport.memories.take(0)
        return {name: t.item() for name, t in memory.items() if name.endswith("step")}

    assert steps("training.rounds=0") == {"pretraining/step": 4.0}  # 2 rounds of 2 batches
    assert steps("training.rounds=3") == {"contrast/step": 6.0}
    assert steps("training.keep_optimizer=false") == {}


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        ((), 2),  # labels in each of 2 rounds
        # Labels of a cluster round come from the pass that gave the round before its centroids.
        (("centroids.encoder=global", "centroids.refine_steps=3"), 3),
    ],
)
def test_the_frozen_model_sees_unchanged_images_once_a_round(
    monkeypatch: pytest.MonkeyPatch,
    settings: tuple[str, ...],
    passes: int,
) -> None:
    calls = []

    def counting(*arguments: Any) -> representations.Representations:
        calls.append(arguments)
        return represent(*arguments)

    monkeypatch.setattr(representations, "represent", counting)
    run_small(small_config(*settings), clients_of_sizes(40))
    assert len(calls) == passes


# --- updates that must be refused --------------------------------------------------------------


def good_update() -> tuple[Training, CCFCState, TrainingUpdate]:
    exchange, state = training((), 1)
    return exchange, state, only_update(exchange, state, clients_of_sizes(40), Randomness(0))


def spoilt(update: TrainingUpdate, what: str) -> TrainingUpdate:
    assert update.local is not None
    model, centroids, sizes = update.model, update.local.centroids, update.local.sizes
    samples = update.samples
    if what == "model entry":
        model = model | {"projector.0.bias": torch.zeros(3)}
    elif what == "NaN":
        model = model | {"projector.0.bias": torch.full((16,), float("nan"))}
    elif what == "centroids are":
        centroids = centroids[:, :5]
    elif what == "sizes":
        sizes = sizes * 0
    elif what == "samples":
        samples = 0
    local = None if what == "missing" else CentroidUpdate(centroids, sizes)
    return TrainingUpdate(model, samples, update.loss, local)


@pytest.mark.parametrize(
    "what", ["model entry", "NaN", "centroids are", "sizes", "samples", "missing"]
)
def test_an_update_that_would_spoil_the_average_is_refused(what: str) -> None:
    exchange, state, update = good_update()
    check_update(exchange, state, update)
    with pytest.raises(RefusedUpdateError, match=what):
        check_update(exchange, state, spoilt(update, what))
