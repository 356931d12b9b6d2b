"""Clients that come after the start, in one process."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.run import clustering_run
from ccfcpp.core.config import Tree
from ccfcpp.core.errors import StoppedError, UsageError
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.payload import pack
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.run import AnyLocalRun
from supervised.classification import classification_run
from tests.support.classification import small_config
from tests.support.clustering import tiny

_LATE: Tree = {"partition": {"clients": 4}, "availability": {"late": [1, 3]}}


def _in_rounds() -> list[str]:
    """Systems that have another round after the first."""
    return [name for name in METHODS.own() if clustering_run(tiny(name)).algorithm.rounds > 1]


def _by_hand(experiment: AnyLocalRun) -> Any:
    """Two federations, one after the other, with the same state and memories."""
    first = experiment.for_round(0)
    assert first is not None
    memories = ClientMemories(torch.device("cpu"), 10**9)
    state, report = first.federation(first.transport(memories)).run_round(first.initial_state, 0)
    assert report.clients == [0, 2]
    everyone = experiment.federation(experiment.transport(memories))
    for after, report in everyone.run(state, 1):
        state = after
        assert report.clients == [0, 1, 2, 3]
    return state


@pytest.mark.parametrize("method", _in_rounds())
def test_a_run_goes_on_with_those_that_come(method: str, tmp_path: Path) -> None:
    config = tiny(method, _LATE)
    experiment = clustering_run(config)
    summary = experiment.run(RunFolder.create(tmp_path / "run", config))
    assert (summary["connected"], summary["disconnected"]) == (4, 0)
    took = {one["client"]: one["rounds"] for one in summary["participants"]}
    rounds = summary["rounds"]
    assert took == {0: rounds, 1: rounds - 1, 2: rounds, 3: rounds - 1}
    found = load_file(tmp_path / "run" / "model.safetensors")
    for name, part in pack(_by_hand(experiment)).items():
        if name in found:
            assert torch.equal(found[name], part.cpu()), name


@pytest.mark.parametrize(
    ("method", "section"), [("fed-km", "means"), ("fed-em", "mixture"), ("ffcm-km", "ffcm")]
)
def test_a_run_that_has_converged_waits_for_those_that_come(
    method: str, section: str, tmp_path: Path
) -> None:
    own: Tree = {section: {"rounds": 9, "tolerance": 1e9}}
    config = tiny(method, _LATE, {"availability": {"late_rounds": 4}}, own)
    summary = clustering_run(config).run(RunFolder.create(tmp_path / "run", config))
    took = {one["client"]: one["rounds"] for one in summary["participants"]}
    assert took == {0: 5, 1: 1, 2: 5, 3: 1}


def test_it_can_be_stopped_after_each_round(tmp_path: Path) -> None:
    config = tiny("ccfc", _LATE, {"availability": {"late_rounds": 1}, "training": {"rounds": 2}})
    clustering_run(config).run(RunFolder.create(tmp_path / "whole", config))
    folder, stops = RunFolder.create(tmp_path / "broken", config), 0
    while True:
        try:
            clustering_run(config).run(folder, should_stop=lambda: True)
        except StoppedError:
            stops += 1
            continue
        break
    assert stops > 1
    whole, broken = (
        load_file(tmp_path / name / "model.safetensors") for name in ("whole", "broken")
    )
    assert all(torch.equal(part, broken[name]) for name, part in whole.items())


def test_classifiers_learn_from_those_that_come(tmp_path: Path) -> None:
    config = small_config("partition.clients=4", "availability.late=[1,3]", "training.rounds=2")
    summary = classification_run(config).run(RunFolder.create(tmp_path / "run", config))
    assert {one["client"]: one["rounds"] for one in summary["participants"]} == {
        0: 2, 1: 1, 2: 2, 3: 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"availability": {"late": [4]}}, "availability.late names client 4, and there is none"),
        ({"availability": {"late": [0, 1, 2, 3]}}, "leaves no client for the first round"),
        ({"availability": {"late_rounds": 9}}, "availability.late_rounds = 9 is refused: the run"),
        ({"privacy": {"level": "client"}}, "noise is for a fixed number of clients"),
    ],
)
def test_what_does_not_fit_is_refused(more: Tree, line: str, tmp_path: Path) -> None:
    config = tiny("fed-km", _LATE, more)
    with pytest.raises(UsageError, match=line):
        clustering_run(config).run(RunFolder.create(tmp_path / "run", config))


def test_a_run_in_memory_refuses_them() -> None:
    with pytest.raises(UsageError, match=r"availability\.late has no effect here"):
        clustering_run(tiny("fed-km", _LATE)).train()
