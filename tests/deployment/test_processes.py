"""Real processes of Flower, on this machine: a server and three clients.

It takes minutes, and is asked for with ``CCFCPP_PROCESSES=1``.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config_layers import parse_assignments, resolve
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.payload import pack
from tests.support.clustering import digits, made
from tests.support.deployment import charter_of, one_by_one

pytestmark = pytest.mark.skipif(
    "CCFCPP_PROCESSES" not in os.environ, reason="real processes: set CCFCPP_PROCESSES=1"
)
NAMES, SIZES = ("a", "b", "c"), (60, 40, 30)
SETTINGS = (
    "dataset=digits", "method=ccfc", "clusters=4",
    "model.widths=[4,6]", "model.projector_width=12", "model.latent=8",
    "model.predictor_width=4", "training.rounds=2", "training.pretrain_rounds=1", "device=cpu",
    "centroids.restarts=2", "compute.cohort=1", "seed=3",
)  # fmt: skip


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    from ccfcpp.deployment.keys import make_authority, make_client, make_server

    folder = tmp_path / "keys"
    make_authority(folder, 2)
    make_server(folder, "127.0.0.1", 2)
    for name in NAMES:
        make_client(folder, name)
    return folder


def clients() -> list[Client]:
    images, labels = digits()
    parts = torch.split(torch.arange(sum(SIZES)), list(SIZES))
    return [Client(n, NAMES[n], images[p], labels[p]) for n, p in enumerate(parts)]


@contextmanager
def command(log: Path, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "ccfcpp", *map(str, arguments)]
    with log.open("wb") as file:
        process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def test_a_deployed_run_has_the_bits_of_one_process(keys: Path, tmp_path: Path) -> None:
    from contextlib import ExitStack

    from ccfcpp.deployment.processes import free_port

    port = free_port()
    where = f"127.0.0.1:{port}"
    values = [word for setting in SETTINGS for word in ("--set", setting)]
    out = tmp_path / "run"
    with ExitStack() as stack:
        server = stack.enter_context(
            command(
                tmp_path / "serve.log",
                *("serve", "--keys", keys, "--listen", where, "--out", out, "--limit", 200),
                *values,
            )
        )
        for client in clients():
            file = tmp_path / f"{client.name}.npz"
            assert client.labels is not None
            np.savez(file, images=client.images.squeeze(1).numpy(), labels=client.labels.numpy())
            stack.enter_context(
                command(
                    tmp_path / f"{client.name}.log",
                    *("join", "--server", where, "--key", keys / "clients" / f"{client.name}.key"),
                    *("--authority", keys / "ca.crt", "--data", file, "--allow", "counts"),
                )
            )
        assert server.wait(540) == 0, (tmp_path / "serve.log").read_text()
    config = resolve(ClusterConfig, "cluster", {}, parse_assignments(SETTINGS))
    charter = charter_of(config, clients(), clusters=4)
    here = one_by_one(charter, made(config, clusters=4, samples=sum(SIZES)), clients())
    state = here.algorithm.initial_state(Randomness(3))
    for after, _ in here.run(state):
        state = after
    found = load_file(out / "model.safetensors")
    expected = pack(state)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["counted_clients"] == [0, 1, 2]
    assert summary["refused_updates"] == 0
