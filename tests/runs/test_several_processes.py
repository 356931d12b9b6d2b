"""A run in several processes is the run in one: equal to the bit, but for the order of sums."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ccfcpp.engine.client import Member
from ccfcpp.engine.distributed import share_out
from scripts.digests import commands
from tests.support.ranks import run_commands

STEPS = "fed-scan", "fed-emp"
"""Systems whose steps double what the order of sums changes: their first round is compared."""
ROUNDING = 1e-9
"""Largest relative difference of models whose sums are in float64."""
ROUNDING_OF_STEPS = 1e-4
"""Largest relative difference of the loss of a first round, whose sums are in float32."""
COMMANDS = commands()
FEW = ["--set", "data.images=300"]
SECURE = ["cluster", "--p", "0.5", "--method", "fed-km", "--secure-sums", "--rounds", "2", *FEW]
HOSTILE = [
    *("classify", "--alpha", "0.1", "--method", "fedavg", "--rounds", "2", "--local-epochs", "1"),
    *("--set", "attack.kind=sign-flip", "--set", "defence.rule=median"),
]


def _compare(folder: Path, lines: dict[str, list[str]], processes: int) -> dict[str, float]:
    """Run commands in one process and in several, and return the largest relative differences."""
    folders = [folder / str(count) for count in (1, processes)]
    for place in folders:
        run_commands(
            folder / "commands.json",
            [
                [*line, "--device", "cpu", "--out", str(place / name.replace(" ", "-"))]
                for name, line in lines.items()
            ],
            int(place.name),
        )
    return {
        name: (_of_first_round if name in STEPS else _difference)(
            *(place / name.replace(" ", "-") for place in folders)
        )
        for name in lines
    }


def _of_first_round(one: Path, several: Path) -> float:
    """Return the relative difference of the first round's loss."""
    first, other = (
        float(json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])["figures"]["loss"])
        for folder in (one, several)
    )
    return abs(first / other - 1)


def _difference(one: Path, several: Path) -> float:
    models = [load_file(folder / "model.safetensors") for folder in (one, several)]
    assert models[0].keys() == models[1].keys()
    rounds = [(folder / "metrics.jsonl").read_text().splitlines() for folder in (one, several)]
    for mine, others in zip(*rounds, strict=True):
        told, other = json.loads(mine), json.loads(others)
        for facts in ("round", "clients", "refused", "bytes_down", "bytes_up"):
            assert told[facts] == other[facts]
    return max(
        float((a.double() - b.double()).abs().max() / a.double().abs().max().clamp_min(1e-12))
        for a, b in ((models[0][name], models[1][name]) for name in models[0])
        if a.numel()
    )


def test_some_systems_in_two_processes(tmp_path: Path) -> None:
    lines = {
        "ccfc++": [*COMMANDS["ccfc++ global"], *FEW],
        "k-fed": [*COMMANDS["k-fed"], *FEW],
        "fed-em": [*COMMANDS["fed-em"], *FEW],
        "fed-scan": [*COMMANDS["fed-scan"], *FEW, "--set", "scan.steps=4"],
        "scaffold": COMMANDS["scaffold"],
        "secure": SECURE,
        "hostile": HOSTILE,
    }
    found = _compare(tmp_path, lines, 2)
    assert found.pop("fed-scan") < ROUNDING_OF_STEPS
    assert found.pop("fed-em") < ROUNDING
    assert found == dict.fromkeys(found, 0.0)


@pytest.mark.nightly("ccfcpp/engine", "ccfcpp/runs")
@pytest.mark.parametrize("processes", [2, 3])
def test_every_system_in_several_processes(tmp_path: Path, processes: int) -> None:
    lines = {
        name: [*line, *(FEW if line[0] == "cluster" else [])] for name, line in COMMANDS.items()
    }
    found = _compare(tmp_path, lines, processes)
    steps = {name: found.pop(name) for name in STEPS}
    pooled = {n: found.pop(n) for n in ("feddp-kmeans", "fed-fcm", "fed-em", "fed-km")}
    assert max(steps.values()) < ROUNDING_OF_STEPS, steps
    assert max(pooled.values()) < ROUNDING, pooled
    assert found == dict.fromkeys(found, 0.0)


def test_clients_are_dealt_by_size() -> None:
    sizes = torch.randint(1, 100, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    owners = share_out([Member(n, "", size) for n, size in enumerate(sizes)], 3)
    loads = [sum(sizes[n] for n, owner in owners.items() if owner == each) for each in range(3)]
    assert max(loads) - min(loads) <= max(sizes)
    assert owners.keys() == set(range(40))


def _torchrun(*line: str, processes: int = 2) -> list[str]:
    launch = ["torch.distributed.run", "--nproc-per-node", str(processes)]
    return [sys.executable, "-m", *launch, "-m", "--", "ccfcpp", *line]


def test_a_run_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    line = [*COMMANDS["scaffold"], "--rounds", "8", "--device", "cpu"]
    run_commands(tmp_path / "lines", [[*line, "--out", str(tmp_path / "whole")]], 1)
    metrics, place = tmp_path / "run" / "metrics.jsonl", str(tmp_path / "run")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    begun = subprocess.Popen(
        _torchrun(*line, "--out", place), env=environment, stderr=subprocess.PIPE, text=True
    )
    while begun.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.01)
    begun.send_signal(signal.SIGINT)
    assert "go on with" in begun.communicate(timeout=100)[1]
    assert not (tmp_path / "run" / "summary.json").exists()
    run_commands(tmp_path / "lines", [["classify", "--out", place, "--resume"]], 3)
    assert _difference(tmp_path / "whole", tmp_path / "run") == 0.0


def test_bad_input_is_told_once(tmp_path: Path) -> None:
    line = _torchrun("cluster", "--dataset", "digits", "--p", "2", "--out", str(tmp_path / "run"))
    ended = subprocess.run(line, capture_output=True, text=True, timeout=100)
    assert ended.stderr.count("error: ") == 1
    assert ended.returncode != 0
