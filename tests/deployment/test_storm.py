"""A federation to which much goes wrong ends as if only those updates had been missing."""

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from ccfcpp.clustering.mahalanobis import model_tensors
from ccfcpp.engine.payload import pack
from tests.support.command import set_options
from tests.support.processes import replayed, tensors_of
from tests.support.storm import Sea, Storm, Weather, sea

SHORT = Weather(
    clients=4,
    steps=7,
    faults={
        "client killed": 1,
        "client stalls": 1,
        "wrong bytes": 1,
        "repeat": 1,
        "twice": 1,
        "late": 1,
        "clock jumps": 1,
        "the server is killed": 1,
        "the server stalls": 1,
        "the gate is killed": 1,
        "the server's clock jumps": 1,
    },
    limit=4,
)
LONG = Weather(
    clients=50,
    steps=75,
    faults={
        "client killed": 30,
        "client stalls": 16,
        "wrong bytes": 30,
        "repeat": 12,
        "twice": 8,
        "late": 6,
        "clock jumps": 12,
        "the server is killed": 4,
        "the server stalls": 4,
        "the gate is killed": 6,
        "the server's clock jumps": 4,
    },
    limit=20,
    share=0.2,
)
TRIPS = 4
"""Exchanges of a step."""


def settings(weather: Weather) -> tuple[str, ...]:
    """Fed-SCAN in steps of four exchanges, each of which is a round."""
    return set_options(
        *("dataset=digits", "device=cpu", "seed=3", "method=fed-scan", "clusters=4"),
        *("scan.stem=0", "scan.widths=[8]", "scan.hidden=8", "scan.latent=6", "scan.neighbours=3"),
        *(f"scan.batch={5 * weather.clients}", f"availability.sample_fraction={weather.share}"),
        *("scan.mine_every=4", "scan.steps_per_round=1"),
        *(f"scan.steps={weather.steps}", "scan.lagged=false", "evaluate_every=100000"),
    )


def digest(tensors: Mapping[str, Any], lines: list[dict[str, Any]]) -> str:
    """Of a run's last state, and of what its rounds report."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.numpy().tobytes())
    for line in lines:
        told = {key: line.get(key) for key in ("round", "clients", "refused", "absent", "figures")}
        found.update(json.dumps(told, sort_keys=True).encode())
    return found.hexdigest()


def weathered(here: Sea) -> dict[str, Any]:
    """Run through the storm, and return what happened."""
    weather, began = here.weather, time.monotonic()
    words = settings(weather)
    here.begin(*words)
    here.gather()
    storm = Storm(here)
    storm.blow()
    summary = here.end()
    minutes = (time.monotonic() - began) / 60
    rounds = here.rounds()
    # Nothing is lost: each round is there once, and in the end everybody has the model.
    assert [line["round"] for line in rounds] == list(range(weather.steps))
    here.wait_for_models()
    state, lines, _ = replayed(here)
    assert digest(tensors_of(here.out), rounds) == digest(model_tensors(pack(state), None), lines)
    return {
        "exchanges": TRIPS * weather.steps + 1,
        "clients": weather.clients,
        "minutes": round(minutes, 1),
        "faults": dict(storm.happened),
        "without anybody": sum(not line["clients"] for line in rounds),
        "absent": sum(len(line.get("absent", {})) for line in rounds),
        "refused": summary["refused_updates"],
    }


@pytest.mark.nightly("ccfcpp/deployment", "tests/support/storm.py", "tests/support/processes.py")
def test_a_run_survives_some_faults(tmp_path: Path) -> None:
    with sea(tmp_path, SHORT) as here:
        found = weathered(here)
    assert found["faults"] == SHORT.faults


@pytest.mark.nightly  # Half an hour: too long for a change.
def test_a_run_survives_a_storm(tmp_path: Path) -> None:
    with sea(tmp_path, LONG) as here:
        found = weathered(here)
    print(json.dumps(found))
    assert found["exchanges"] >= 300
    assert sum(found["faults"].values()) >= 100
