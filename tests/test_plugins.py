"""A stranger's package adds a system, a method and a data set: that of docs/extending.md."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import plugin
from tests.support.forks import Fork

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plugin.install(tmp_path_factory.mktemp("strangers"))


def run(installed: Path, *command: object) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(installed), str(REPOSITORY)])
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "200"}
    arguments = [*map(str, command)]
    process = Fork(arguments, environment)
    stdout, stderr = process.communicate()
    return subprocess.CompletedProcess(arguments, process.wait(), stdout, stderr)


def ccfcpp(installed: Path, *arguments: object) -> str:
    finished = run(installed, "-m", "ccfcpp", *arguments)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def summary_of(installed: Path, *arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ccfcpp(installed, *arguments, "--json"))
    return found


STOPPED = (
    "import sys\nfrom pathlib import Path\nfrom ccfcpp.core.errors import StoppedError\n"
    "from ccfcpp.clustering.config import ClusterConfig\n"
    "from ccfcpp.clustering.run import clustering_run\n"
    "from ccfcpp.runs.folder import RunFolder\n"
    "config = RunFolder(Path(sys.argv[1])).saved_config(ClusterConfig)\n"
    "stops = iter([False, True])\n"
    "try: clustering_run(config).run(\n"
    "    RunFolder.create(Path(sys.argv[2]), config), should_stop=lambda: next(stops))\n"
    "except StoppedError: print('stopped')\n"
)
"""Runs what a finished run was, and stops it after two rounds."""


def resumed(installed: Path, folder: Path) -> dict[str, Any]:
    """Run ``whole`` in ``folder`` again, stopped and resumed: it ends with the same model."""
    stopped = run(installed, "-c", STOPPED, folder / "whole", folder / "parts")
    assert stopped.stdout == "stopped\n", stopped.stderr
    found = summary_of(installed, "cluster", "--out", folder / "parts", "--resume")
    whole, parts = ((folder / n / "model.safetensors").read_bytes() for n in ("whole", "parts"))
    assert whole == parts
    return found


def test_its_names_are_in_the_help(installed: Path) -> None:
    assert "fed-lloyd" in ccfcpp(installed, "cluster", "--help")
    assert "slow-server" in ccfcpp(installed, "classify", "--help")
    assert "stripes" in ccfcpp(installed, "datasets")


def test_its_system_clusters_its_data_set_and_is_resumed(installed: Path, tmp_path: Path) -> None:
    run_ = ("cluster", "--method", "fed-lloyd", "--dataset", "stripes", "--p", 0.5, "--clients", 4)
    failures = ("--disconnection-rate", 0.25, "--dropout-rate", 0.2, "--rounds", 4)
    whole = summary_of(installed, *run_, *failures, "--out", tmp_path / "whole")
    assert (whole["rounds"], whole["connected"], whole["sends"]) == (4, 3, "sums, counts")
    assert whole["nmi"] > 0.5
    config = (tmp_path / "whole" / "config.yaml").read_text()
    assert "lloyd:\n  rounds: 4" in config

    assert resumed(installed, tmp_path)["nmi"] == whole["nmi"]


TWINS = (
    *("cluster", "--method", "fed-twins", "--dataset", "digits", "--set", "data.images=300"),
    *("--rounds", 4, "--set", "twins.steps=3", "--secure-sums", "--dropout-rate", 0.2),
)


def test_its_network_learns_with_secure_sums_and_failures_and_is_resumed(
    installed: Path, tmp_path: Path
) -> None:
    whole = summary_of(installed, *TWINS, "--out", tmp_path / "whole")
    assert (whole["rounds"], whole["privacy"]["secure_sums"]) == (4, True)
    assert whole["nmi"] > 0.2
    assert resumed(installed, tmp_path)["nmi"] == whole["nmi"]


OVER_BYTES = """
import torch
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config_layers import resolve
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.exchange import ClientSide
from ccfcpp.engine.federation import Federation
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.payload import pack
from ccfcpp.engine.transport import InProcess
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.protection import Protection
from ccfcpp.engine.algorithm import ClientContext
from tests.support.clustering import clients_of_sizes, made
from tests.support.federation import CPU, Wire

tree = {"method": "fed-twins", "twins": {"rounds": 2, "steps": 2}}
config = resolve(ClusterConfig, "cluster", tree)
clients = clients_of_sizes(40, 30, 20)
states = []
for far in (False, True):
    here, there = (made(config, samples=90) for _ in range(2))
    works, members = there.client_side(ClientContext.of(clients)).works, [c.member for c in clients]
    exchanges = [work.exchange for work in works.values()]
    privacy = PrivacyConfig(secure_sums=True)
    protection = Protection(privacy, "fed-twins", exchanges, len(clients))
    side, seed = ClientSide(protection.works(works)), Randomness(0)
    transport = InProcess(clients, side, ClientMemories(CPU, 10**9), seed, merges=False)
    transport = Wire(transport, side) if far else transport
    federation = Federation(
        "fed-twins", here, members, Availability(), seed, transport, [protection.stage]
    )
    for state, report in federation.run(here.initial_state(seed)):
        assert not report.refused, report.refused
    states.append(pack(state))
print(all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items()))
"""


def test_its_network_goes_over_bytes(installed: Path) -> None:
    finished = run(installed, "-c", OVER_BYTES)
    assert finished.stdout == "True\n", finished.stderr


def test_its_network_takes_eighty_lines() -> None:
    source = plugin.files()["strangers/fed_twins.py"]
    assert len(source.splitlines()) <= 80


def test_it_stands_beside_the_others_without_a_published_value(
    installed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "comparison"
    shown = json.loads(
        ccfcpp(
            installed, "compare", "--methods", "fed-lloyd,k-fed", "--dataset", "stripes", "--p", 0,
            "--clients", 3, "--out", out, "--json",
        )
    )  # fmt: skip
    rows = {row["method"]: row for row in shown["table"]}
    assert rows.keys() == {"fed-lloyd", "k-fed"}
    assert rows["fed-lloyd"]["nmi published"] is None
    assert "Fed-Lloyd" in (out / "table.md").read_text()


def test_its_run_has_a_report(installed: Path, tmp_path: Path) -> None:
    run_ = tmp_path / "run"
    ccfcpp(
        installed, "cluster", "--method", "fed-lloyd", "--dataset", "stripes", "--clients", 4,
        "--set", "lloyd.rounds=2", "--set", "evaluate_every=1", "--out", run_,
    )  # fmt: skip
    found = json.loads(ccfcpp(installed, "report", run_, "--json"))
    assert {"scores", "confusion", "loss"} <= {*found["figures"]}
    assert "Fed-Lloyd" in (run_ / "report.html").read_text()


def test_the_estimator_takes_it(installed: Path) -> None:
    program = (
        "import numpy as np; from ccfcpp import FederatedClustering, load\n"
        "data = load('stripes')\n"
        "images, owners = data.images.numpy()[:, 0], np.arange(len(data)) % 3\n"
        "model = FederatedClustering(4, method='fed-lloyd', settings={'lloyd': {'rounds': 3}})\n"
        "model.fit(images, clients=owners)\n"
        "same = (model.predict(images) == model.labels_).all()\n"
        "print(model.n_iter_, model.cluster_centers_.shape, same)\n"
    )
    assert run(installed, "-c", program).stdout == "3 (4, 64) True\n"


def test_its_method_classifies(installed: Path, tmp_path: Path) -> None:
    summary = summary_of(
        installed, "classify", "--method", "slow-server", "--dataset", "stripes", "--alpha", 1,
        "--clients", 2, "--rounds", 2, "--local-epochs", 1, "--set", "slow.rate=0.25",
        "--set", "partition.min_samples=2", "--out", tmp_path / "run",
    )  # fmt: skip
    assert summary["method"] == "slow-server"
    assert "rate: 0.25" in (tmp_path / "run" / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--set", "lloyd.rounds=0"], "lloyd.rounds = 0 is refused"),
        (["--set", "lloyd.round=1"], "did you mean 'lloyd.rounds'?"),
        (["--eta", "1"], "--eta 1 has no effect on fed-lloyd"),
        (["--cohort", "2"], "--cohort 2 has no effect on fed-lloyd"),
        (
            ["--set", "lloyd.spread=0.2"],
            "lloyd.spread = 0.2 has no effect: it needs lloyd.start = grey; give that, or leave it",
        ),
    ],
)
def test_its_settings_are_checked_as_ours_are(
    installed: Path, arguments: list[str], complaint: str
) -> None:
    finished = run(installed, "-m", "ccfcpp", "cluster", "--method", "fed-lloyd", *arguments)
    assert finished.returncode == 2
    assert complaint in finished.stderr
    assert len(finished.stderr.splitlines()) == 1


def test_a_package_cannot_take_a_name_of_ours(tmp_path: Path) -> None:
    info = tmp_path / "rude-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rude\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ccfcpp.methods]\nk-fed = rude:K_FED\n")
    assert "k-fed" in ccfcpp(tmp_path, "cluster", "--help")
    out = tmp_path / "run"
    assert summary_of(tmp_path, "cluster", "--method", "k-fed", "--out", out)["nmi"] > 0.4


def test_without_the_package_there_is_no_such_method() -> None:
    finished = run(REPOSITORY, "-m", "ccfcpp", "cluster", "--method", "fed-lloyd")
    assert finished.returncode == 2
    assert "--method fed-lloyd is refused" in finished.stderr
