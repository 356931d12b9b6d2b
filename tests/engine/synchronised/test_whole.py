"""Whole steps of a process that holds all clients, recorded, against steps that take trips."""

from typing import Any

import pytest
import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.run import clustering_run
from ccfcpp.clustering.systems.ccfc.algorithm import CCFC
from ccfcpp.clustering.systems.fed_emp.algorithm import FedEmp
from ccfcpp.clustering.systems.fed_scan.algorithm import FedScan
from ccfcpp.core.config import Tree
from ccfcpp.data import ImageData
from ccfcpp.engine.payload import pack
from ccfcpp.engine.synchronised.descent import Descent
from ccfcpp.engine.synchronised.tape import Tape, all_trips
from tests.support.clustering import digits, made, tiny
from tests.support.recording import META, CapturedError, Recorder, watch

RECORDER = "ccfcpp.engine.synchronised.descent.recorder_of"
SYNCHRONISED: Tree = {
    "training": {"steps": "synchronised", "synchronised_batch": 30, "rounds": 2, "local_epochs": 4},
    "model": {"initialization": "common"},
    "loss": {"lam": 0.0},
}
LONG: dict[str, Tree] = {
    "fed-scan": {"scan": {"steps": 40, "steps_per_round": 10, "mine_every": 20}},
    "fed-emp": {"crops": {"steps": 40, "steps_per_round": 20}},
    "ccfc++": SYNCHRONISED,
}


def config_of(method: str, *trees: Tree) -> ClusterConfig:
    partition: Tree = {"kind": "iid", "clients": 4}
    return tiny(method, LONG[method], {"dataset": "digits", "partition": partition}, *trees)


def trained(config: ClusterConfig) -> dict[str, Tensor]:
    images, labels = digits()
    data = ImageData("digits", images[:120], labels[:120], tuple("0123456789"))
    state, _ = clustering_run(config, data).trained()
    return pack(state)


@pytest.mark.parametrize("method", LONG)
def test_recorded_steps_give_the_same_bits(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    expected = trained(config_of(method))
    monkeypatch.setattr(RECORDER, lambda device: recorder)
    found = trained(config_of(method))
    assert found.keys() == expected.keys()
    for name, entry in expected.items():
        assert torch.equal(found[name], entry), name
    assert recorder.records > 0
    assert recorder.replays > 20


@pytest.mark.cuda
@pytest.mark.parametrize("method", LONG)
def test_on_a_gpu_captured_steps_give_the_same_bits(
    method: str, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device is here")
    config = config_of(method, {"device": "cuda"})
    found = trained(config)
    assert not [str(each.message) for each in recwarn if "CUDA graph" in str(each.message)]
    monkeypatch.setattr(RECORDER, lambda device: None)
    expected = trained(config)
    for name, entry in expected.items():
        assert torch.equal(found[name], entry), name


@pytest.mark.parametrize(
    "setting",
    [
        {"availability": {"dropout_rate": 0.2}},
        {"privacy": {"secure_sums": True}},
        {"attack": {"kind": "noise", "attackers": 0.25}},
        {"defence": {"rule": "bound"}},
    ],
)
def test_where_sums_are_not_those_of_all_clients_steps_take_their_trips(
    setting: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    monkeypatch.setattr(RECORDER, lambda device: recorder)
    trained(config_of("fed-scan", setting))
    assert recorder.records == 0


def descents_of(algorithm: ClusteringAlgorithm[Any]) -> list[Descent]:
    if isinstance(algorithm, CCFC):
        training = algorithm.synchronised
        assert training is not None
        return [training.pretraining, training.contrast, training.predictor]
    if isinstance(algorithm, FedEmp):
        return [algorithm.phase.descent]
    assert isinstance(algorithm, FedScan)
    return [algorithm.descent]


@pytest.mark.parametrize("method", LONG)
def test_a_graph_can_do_all_of_a_step(method: str) -> None:
    for descent in descents_of(made(config_of(method), device=META)):

        def step(own: Descent = descent) -> None:
            all_trips(Tape(own.rehearsal(), own.parameters))

        with pytest.raises(CapturedError):
            watch(step)
