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
from ccfcpp.core.config_layers import merge
from ccfcpp.data.images import ImageData
from ccfcpp.engine.payload import pack
from ccfcpp.engine.synchronised.descent import Descent
from ccfcpp.engine.synchronised.tape import Tape, run_all_exchanges
from ccfcpp.models.steps import CudaGraphs
from tests.support.clustering import digits, made, tiny
from tests.support.recording import META, CapturedError, Recorder, watch

RECORDER = "ccfcpp.engine.synchronised.descent.make_recorder"
SYNCHRONISED: Tree = {
    "training": {
        "steps": "synchronised", "synchronised_batch": 30, "rounds": 2, "local_epochs": 4,
        "predictor_steps": 12,
    },
    "model": {"initialization": "common"},
    "loss": {"lam": 0.0},
}  # fmt: skip
SCAN: Tree = {"method": "fed-scan", "scan": {"steps": 40, "steps_per_round": 10, "mine_every": 20}}
LONG: dict[str, Tree] = {
    "fed-scan": SCAN,
    "merged": merge(SCAN, {"scan": {"overclustering": 2, "merged_from": 0.25}}),
    "fed-emp": {"method": "fed-emp", "crops": {"steps": 40, "steps_per_round": 20}},
    "ccfc++": SYNCHRONISED | {"method": "ccfc++"},
}
DESCENTS = {"ccfc++": 3}
"""Networks, or parts of one, that are trained one after the other; one where nothing is said."""


def config_of(name: str, *trees: Tree) -> ClusterConfig:
    partition: Tree = {"kind": "iid", "clients": 4}
    settings: Tree = {"dataset": "digits", "partition": partition}
    return tiny(str(LONG[name]["method"]), LONG[name], settings, *trees)


def trained(config: ClusterConfig) -> dict[str, Tensor]:
    images, labels = digits()
    data = ImageData("digits", images[:120], labels[:120], tuple("0123456789"))
    state, _ = clustering_run(config, data).train()
    return pack(state)


@pytest.mark.parametrize("name", LONG)
def test_recorded_steps_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorders = list[Recorder]()

    def make_recorder(device: torch.device) -> Recorder:
        recorders.append(Recorder())
        return recorders[-1]

    expected = trained(config_of(name))
    monkeypatch.setattr(RECORDER, make_recorder)
    found = trained(config_of(name))
    assert found.keys() == expected.keys()
    for part, entry in expected.items():
        assert torch.equal(found[part], entry), part
    assert len(recorders) == DESCENTS.get(name, 1)
    assert all(recorder.replays > recorder.records > 0 for recorder in recorders)


def test_of_many_shapes_the_first_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """All give the same bits."""
    recorder = Recorder()
    monkeypatch.setattr("ccfcpp.engine.synchronised.cuda_graphs._MOST_STEPS", 1)
    expected = trained(config_of("fed-scan"))
    monkeypatch.setattr(RECORDER, lambda device: recorder)
    found = trained(config_of("fed-scan"))
    assert all(torch.equal(found[part], entry) for part, entry in expected.items())
    assert recorder.records == 1


@pytest.mark.cuda
@pytest.mark.parametrize("name", LONG)
def test_on_a_gpu_captured_steps_give_the_same_bits(
    name: str, monkeypatch: pytest.MonkeyPatch, captures: list[CudaGraphs]
) -> None:
    """A second run, while graphs of the first one die, too."""
    config = config_of(name, {"device": "cuda"})
    found = [trained(config) for _ in range(2)]
    assert len(captures) >= 2 * DESCENTS.get(name, 1)
    monkeypatch.setattr(RECORDER, lambda device: None)
    expected = trained(config)
    for part, entry in expected.items():
        assert all(torch.equal(each[part], entry) for each in found), part


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


@pytest.mark.parametrize("name", LONG)
def test_a_graph_can_do_all_of_a_step(name: str) -> None:
    for descent in descents_of(made(config_of(name), device=META)):

        def step(own: Descent = descent) -> None:
            run_all_exchanges(Tape(own.rehearsal(), own.parameters))

        with pytest.raises(CapturedError):
            watch(step)
