"""CCFC and CCFC++ as an algorithm of the engine: whole runs."""

import pytest
import torch

from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.systems.ccfc.server import ModelAggregation
from ccfcpp.engine.threads import Cohort
from tests.support.clustering import (
    clients_of_sizes,
    run_small,
    small_algorithm,
    small_config,
)
from tests.support.recording import Recorder

OPTIONS = (
    ("model.initialization", "common"),
    ("centroids.encoder", "global"),
    ("centroids.first_encoder", "global"),
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


def assert_equal_states(first: EncoderState, second: EncoderState) -> None:
    assert first.model.keys() == second.model.keys()
    assert all(torch.equal(first.model[name], second.model[name]) for name in first.model)
    assert first.centroids is not None
    assert second.centroids is not None
    assert torch.equal(first.centroids, second.centroids)


def test_the_same_seed_gives_the_same_run_and_another_gives_another() -> None:
    first, _ = run_small(small_config(), clients_of_sizes(40, 40))
    again, _ = run_small(small_config(), clients_of_sizes(40, 40))
    other, _ = run_small(small_config("seed=1"), clients_of_sizes(40, 40))
    assert_equal_states(first, again)
    assert any(not torch.equal(first.model[name], other.model[name]) for name in first.model)


@pytest.mark.nightly(
    "ccfcpp/models", "ccfcpp/clustering/systems/ccfc", "tests/support/recording.py"
)
def test_captured_steps_of_clients_side_by_side_give_the_same_bits(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on an accelerator: four trainers take turns, and their steps are recorded."""
    settings = ("training.local_epochs=4", "training.batch_size=8")
    clients = clients_of_sizes(40, 33, 50, 17)
    with monkeypatch.context() as plain:
        plain.setattr(
            "ccfcpp.clustering.systems.ccfc.local_training.make_recorder", lambda device: None
        )
        expected, _ = run_small(small_config(*settings), clients)
    monkeypatch.setattr(
        "ccfcpp.clustering.systems.ccfc.algorithm.choose_cohort",
        lambda *given: Cohort(1, len(clients)),
    )
    found, _ = run_small(small_config(*settings), clients_of_sizes(40, 33, 50, 17))
    assert_equal_states(found, expected)
    # Pre-training and cluster contrast of each trainer.
    assert recorder.records == 2 * len(clients)
    assert recorder.replays > 50


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
    state = EncoderState({}, centroids=torch.zeros(3, 12))
    names = []
    for number in range(algorithm.rounds):
        works = algorithm.exchanges(number, state)
        names.append(
            [
                w.exchange.name
                + "+centroids" * (isinstance(w, ModelAggregation) and w.with_centroids)
                for w in works
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


def test_the_first_centroids_may_be_those_of_the_averaged_model() -> None:
    first = "centroids.first_encoder=global"
    assert exchange_names(first) == [
        ["pre-training"],
        ["pre-training", "centroids"],
        ["cluster contrast+centroids"],
        ["cluster contrast+centroids"],
    ]
    clients = clients_of_sizes(40, 45)
    begun, _ = run_small(small_config(first, "training.rounds=0"), clients)
    of_global = small_config("centroids.encoder=global", "training.rounds=0")
    expected, _ = run_small(of_global, clients_of_sizes(40, 45))
    assert_equal_states(begun, expected)


def test_without_pretraining_the_first_round_finds_centroids_first() -> None:
    algorithm = small_algorithm(small_config("training.pretrain_rounds=0"))
    names = [work.exchange.name for work in algorithm.exchanges(0, EncoderState({}))]
    assert names == ["centroids", "cluster contrast"]


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
