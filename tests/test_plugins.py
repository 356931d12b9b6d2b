"""A stranger's package adds systems, a method and a data set: docs/example, which a page shows."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ccfcpp.plugin
from tests.support import plugin
from tests.support.forks import Fork
from tests.support.pages import DOCS, blocks

REPOSITORY = Path(__file__).parent.parent


nightly = pytest.mark.nightly(
    *("docs/example", "docs/extending.md", "ccfcpp/plugin.py", "ccfcpp/core/registry.py"),
    *("ccfcpp/clustering", "ccfcpp/engine", "ccfcpp/studies", "ccfcpp/reports"),
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plugin.install(tmp_path_factory.mktemp("strangers"))


NAMES = """
AffineViewsConfig Aggregation AnyServerWork Broadcast CentroidState ClassifyConfig Client
ClientContext ClientSide ClientWork ClusterConfig ClusteringAlgorithm ComputeConfig
ContrastiveClustering ContrastiveConfig Count DataSet Exchange FederationError ImageData Images
InitState IntensityViewsConfig KeyValue LocalContext LocalMethod LocalUpdate Mean Member Method
Metrics ModelState Nothing Objective Opaque PixelClustering PixelsConfig Pool Positive
PositiveNumber PositiveShare PrecisionConfig Problem Program Randomness RefusedUpdateError Rows
Section ServerState ServerWork Share Sharing Spec Sum SummedWork SumsConfig SumsSystem System Task
Unused UpdateFormat UsageError Votes Weight apply_pooled assign_points check_counts format_of pack
require require_other required_centroids sum_by_group sum_updates unpack
"""


def test_the_names_that_packages_may_use() -> None:
    assert ccfcpp.plugin.__all__ == NAMES.split()
    page = (DOCS / "extending.md").read_text()
    assert [name for name in NAMES.split() if f"`{name}`" not in page] == []


def test_the_page_shows_the_package() -> None:
    shown = dict(block.text.split("\n", 1) for block in blocks("extending.md"))
    files = {f"# {path}": (plugin.EXAMPLE / path).read_text() for path in plugin.shown()}
    assert {first: text for first, text in shown.items() if first in files} == files


def test_the_package_imports_from_nowhere_else() -> None:
    found = {
        name
        for path in (plugin.EXAMPLE / "strangers").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [node.names[0].name])
    }
    assert {n for n in found if n and n.startswith(("ccfcpp", "supervised"))} == {"ccfcpp.plugin"}
    assert {str(n).partition(".")[0] for n in found} <= sys.stdlib_module_names | {
        "torch",
        "ccfcpp",
    }


def test_its_own_test_passes(installed: Path) -> None:
    options = ("-q", "-p", "no:cacheprovider", "-c", plugin.EXAMPLE / "pyproject.toml")
    finished = run(installed, "-m", "pytest", *options, plugin.EXAMPLE)
    assert "3 passed" in finished.stdout, finished.stdout


def run(installed: Path, *command: object) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(installed), str(REPOSITORY)])
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "200"}
    arguments = [*map(str, command)]
    process = Fork(arguments, environment)
    stdout, stderr = process.communicate()
    return subprocess.CompletedProcess(arguments, process.wait(), stdout, stderr)


def shown_by(installed: Path, *arguments: object) -> str:
    finished = run(installed, "-m", "ccfcpp", *arguments)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def summary_of(installed: Path, *arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shown_by(installed, *arguments, "--json"))
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


HELP = (
    "import sys; from ccfcpp.cli.app import main; sys.argv = ['ccfcpp', '{command}', '--help']\n"
    "try: main()\n"
    "except SystemExit: print('strangers' in sys.modules or 'ccfcpp.plugin' in sys.modules)\n"
)


@pytest.mark.parametrize(
    ("command", "name"), [("cluster", "fed-lloyd"), ("classify", "slow-server")]
)
def test_its_names_are_in_the_help_which_imports_nothing_of_it(
    installed: Path, command: str, name: str
) -> None:
    found = run(installed, "-c", HELP.format(command=command)).stdout
    assert name in found
    assert found.endswith("False\n")


def test_its_data_set_is_listed(installed: Path) -> None:
    assert "stripes" in shown_by(installed, "datasets")


def test_its_system_clusters_its_data_set_and_is_resumed(installed: Path, tmp_path: Path) -> None:
    run_ = ("cluster", "--method", "fed-lloyd", "--dataset", "stripes", "--p", 0.5, "--clients", 4)
    failures = ("--disconnection-rate", 0.25, "--dropout-rate", 0.2, "--rounds", 4)
    whole = summary_of(installed, *run_, *failures, "--out", tmp_path / "whole")
    assert (whole["rounds"], whole["connected"], whole["sends"]) == (4, 3, "sums over samples")
    assert whole["nmi"] > 0.5
    config = (tmp_path / "whole" / "config.yaml").read_text()
    assert "sums:\n  rounds: 4" in config

    assert resumed(installed, tmp_path)["nmi"] == whole["nmi"]


TWINS = (
    *("cluster", "--method", "fed-twins", "--dataset", "digits", "--set", "data.images=300"),
    *("--rounds", 4, "--set", "twins.steps=3", "--secure-sums", "--dropout-rate", 0.2),
)


@nightly
def test_its_network_learns_with_secure_sums_and_failures_and_is_resumed(
    installed: Path, tmp_path: Path
) -> None:
    whole = summary_of(installed, *TWINS, "--out", tmp_path / "whole")
    assert (whole["rounds"], whole["privacy"]["secure_sums"]) == (4, True)
    assert whole["nmi"] > 0.2
    assert resumed(installed, tmp_path)["nmi"] == whole["nmi"]


OVER_BYTES = """
import sys
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

method, *sections = sys.argv[1:]
tree = {"method": method, "twins": {"rounds": 2, "steps": 2}, "sums": {"rounds": 3}}
tree = {name: tree[name] for name in ("method", *sections)}
config = resolve(ClusterConfig, "cluster", tree)
clients = clients_of_sizes(40, 30, 20)
states = []
for far in (False, True):
    here, there = (made(config, samples=90) for _ in range(2))
    works, members = there.client_side(ClientContext.of(clients)).works, [c.member for c in clients]
    exchanges = [work.exchange for work in works.values()]
    privacy = PrivacyConfig(secure_sums=True)
    protection = Protection(privacy, method, exchanges, len(clients))
    side, seed = ClientSide(protection.works(works)), Randomness(0)
    transport = InProcess(clients, side, ClientMemories(CPU, 10**9), seed, merges=False)
    transport = Wire(transport, side) if far else transport
    federation = Federation(
        method, here, members, Availability(), seed, transport, [protection.stage]
    )
    for state, report in federation.run(here.initial_state(seed)):
        assert not report.refused, report.refused
    states.append(pack(state))
print(all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items()))
"""


@pytest.mark.parametrize(("method", "section"), [("fed-twins", "twins"), ("fed-lloyd", "sums")])
def test_it_goes_over_bytes(installed: Path, method: str, section: str) -> None:
    finished = run(installed, "-c", OVER_BYTES, method, section)
    assert finished.stdout == "True\n", finished.stderr


ON_OTHER_MACHINES = """
import sys
from pathlib import Path
from ccfcpp.core.randomness import Randomness
from tests.support.clustering import clients_of_sizes, made, tiny
from tests.support.deployment import deployed, one_by_one, spec_of
from tests.support.federation import assert_same_bits

for method, section in [("fed-lloyd", "sums"), ("fed-mixture", "mix"), ("fed-votes", "votes")]:
    config = tiny(method, {section: {"rounds": 3}, "seed": 5})
    clients = clients_of_sizes(40, 30, 20)
    spec = spec_of(config, clients, clusters=3)
    there, _ = deployed(spec, made(config, samples=90), clients, Path(sys.argv[1]) / method)
    here = one_by_one(spec, made(config, samples=90), clients)
    state = here.algorithm.initial_state(Randomness(5))
    found = list(there.run(state))
    assert not any(report.refused or report.absent for _, report in found)
    assert_same_bits(found, list(here.run(state)))
    print(method, len(found))
"""
"""Runs with clients as they are on other machines, and in one process: the same bits."""


def test_its_systems_run_on_other_machines(installed: Path, tmp_path: Path) -> None:
    finished = run(installed, "-c", ON_OTHER_MACHINES, tmp_path)
    expected = ["fed-lloyd 3", "fed-mixture 3", "fed-votes 3"]
    assert finished.stdout.splitlines() == expected, finished.stderr


def test_its_network_and_its_sums_are_short() -> None:
    assert lines_of("fed_twins") <= 80
    assert lines_of("fed_lloyd") <= 75


def lines_of(module: str) -> int:
    return len((plugin.EXAMPLE / "strangers" / f"{module}.py").read_text().splitlines())


@nightly
def test_it_stands_beside_the_others_without_a_published_value(
    installed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "comparison"
    shown = json.loads(
        shown_by(
            installed, "compare", "--methods", "fed-lloyd,k-fed", "--dataset", "stripes", "--p", 0,
            "--clients", 3, "--out", out, "--json",
        )
    )  # fmt: skip
    rows = {row["method"]: row for row in shown["table"]}
    assert rows.keys() == {"fed-lloyd", "k-fed"}
    assert rows["fed-lloyd"]["nmi published"] is None
    assert "Fed-Lloyd" in (out / "table.md").read_text()


@nightly
def test_its_run_has_a_report(installed: Path, tmp_path: Path) -> None:
    run_ = tmp_path / "run"
    shown_by(
        installed, "cluster", "--method", "fed-lloyd", "--dataset", "stripes", "--clients", 4,
        "--rounds", 2, "--set", "evaluate_every=1", "--out", run_,
    )  # fmt: skip
    found = json.loads(shown_by(installed, "report", run_, "--json"))
    assert {"scores", "confusion", "loss"} <= {*found["figures"]}
    assert "Fed-Lloyd" in (run_ / "report.html").read_text()


def test_the_estimator_takes_it(installed: Path) -> None:
    program = (
        "import numpy as np; from ccfcpp import FederatedClustering, load\n"
        "data = load('stripes')\n"
        "images, owners = data.images.numpy()[:, 0], np.arange(len(data)) % 3\n"
        "model = FederatedClustering(4, method='fed-lloyd', settings={'sums': {'rounds': 3}})\n"
        "model.fit(images, clients=owners)\n"
        "same = (model.predict(images) == model.labels_).all()\n"
        "print(model.n_iter_, model.cluster_centers_.shape, same)\n"
    )
    assert run(installed, "-c", program).stdout == "2 (4, 64) True\n"


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
        (["--set", "votes.rounds=0"], "votes.rounds = 0 is refused"),
        (["--set", "votes.round=1"], "did you mean 'votes.rounds'?"),
        (["--eta", "1"], "--eta 1 has no effect on fed-votes"),
        (["--cohort", "2"], "--cohort 2 has no effect on fed-votes"),
        (
            ["--set", "votes.spread=0.2"],
            "votes.spread = 0.2 has no effect: it needs votes.start = grey; give that, or leave it",
        ),
        (
            ["--method", "fed-km", "--set", "votes.rounds=2"],
            "votes.rounds = 2 has no effect on fed-km: leave it out, or take one of fed-votes",
        ),
    ],
)
def test_its_settings_are_checked_as_ours_are(
    installed: Path, arguments: list[str], complaint: str
) -> None:
    finished = run(installed, "-m", "ccfcpp", "cluster", "--method", "fed-votes", *arguments)
    assert finished.returncode == 2
    assert complaint in finished.stderr
    assert len(finished.stderr.splitlines()) == 1


def test_a_comparison_takes_its_settings(installed: Path, tmp_path: Path) -> None:
    found = summary_of(
        installed, "compare", "--methods", "fed-votes,k-fed", "--p", "0", "--set",
        "votes.rounds=1,2", "--set", "data.images=100", "--out", tmp_path / "study",
    )  # fmt: skip
    assert [row.get("votes.rounds") for row in found["table"]] == [1, 2, None]


def test_its_data_set_says_who_holds_what(installed: Path, tmp_path: Path) -> None:
    found = summary_of(
        installed, "cluster", "--method", "fed-lloyd", "--dataset", "stripes", "--partition",
        "folders", "--out", tmp_path / "run",
    )  # fmt: skip
    assert [each["name"] for each in found["participants"]] == ["north", "south", "west"]


@pytest.mark.parametrize("level", ["client", "image"])
def test_its_sums_have_differential_privacy(installed: Path, tmp_path: Path, level: str) -> None:
    found = summary_of(
        installed, "cluster", "--method", "fed-lloyd", "--dataset", "stripes", "--p", 0,
        "--clients", 4, "--rounds", 2, "--secure-sums", "--set", f"privacy.level={level}",
        # Much, since noise is drawn anew each time, and with four clients it may leave no centroid.
        "--set", "privacy.epsilon=1000", "--out", tmp_path / "run",
    )  # fmt: skip
    assert (found["privacy"]["level"], found["privacy"]["secure_sums"]) == (level, True)
    assert 0 < found["privacy"]["epsilon"] <= 1000


@pytest.mark.parametrize(
    ("module", "right", "wrong", "complaint"),
    [
        (
            "fed_votes", "def update_format(", "def shape(",
            "method 'fed-votes' fails (TypeError: Can't inst",
        ),
        (
            "fed_votes", '"counts": Count()', '"count": Count()',
            "method 'fed-votes': exchange 'votes' declares a part 'count', and LocalCentroids has "
            "no such field: it has centroids, counts",
        ),
        (
            "fed_votes", "return CentroidState(drawn.to(self.problem.device))", "return self",
            "method 'fed-votes': its state has no field 'centroids': add it; it is None until",
        ),
        (
            "fed_votes", "ClientSide.of(SendCentroids(self))", "ClientSide.of()",
            "method 'fed-votes': client_side() has no work for exchange 'votes'",
        ),
        (
            "fed_votes", "[update.counts for", "[update.count for",
            "method 'fed-votes' fails in fed_votes.py, line 161 (AttributeError: 'LocalCentroids' "
            "object has no attribute 'count'): mend its package",
        ),
        (
            "fed_lloyd", "(InitState):", ":",
            "method 'fed-lloyd' cannot be imported from strangers.fed_lloyd:FED_LLOYD (Fed-Lloyd: "
            "Centroids, which init() returns, has no centroids: derive it from",
        ),
        (
            "fed_lloyd", "moved: float | None = None", "moved: object = ()",
            "Fed-Lloyd: init() fails (TypeError: field 'moved' holds a tuple, which cannot be",
        ),
        (
            "fed_lloyd", "total.counts.un", "total.count.un",
            "Fed-Lloyd: update() fails in fed_lloyd.py, line 51 (AttributeError: 'Sums' object has",
        ),
        (
            "fed_lloyd", "return Sums(sums,", "return Sums(sums / 0,",
            "Fed-Lloyd: local() gives NaN or Inf in 'sums' for client 0",
        ),
        (
            "stripes", '"falling", "rising"', '"falling",',
            "data set 'stripes' fails in stripes.py, line 24 (ValueError: labels must lie in",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(
    tmp_path: Path, module: str, right: str, wrong: str, complaint: str
) -> None:
    place = plugin.install(tmp_path)
    path = place / "strangers" / f"{module}.py"
    assert right in path.read_text()
    path.write_text(path.read_text().replace(right, wrong))
    method = "fed-votes" if module == "fed_votes" else "fed-lloyd"
    asked = ("--method", method, "--dataset", "stripes", "--clients", 3, "--out", tmp_path / "run")
    finished = run(place, "-m", "ccfcpp", "cluster", *asked)
    assert finished.returncode == 2, finished.stderr
    assert finished.stderr.splitlines()[-1].startswith(f"error: {complaint}"), finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_package_cannot_take_a_name_of_ours(tmp_path: Path) -> None:
    plugin.write_metadata(tmp_path, "rude", {"ccfcpp.methods": {"k-fed": "rude:K_FED"}})
    assert "k-fed" in shown_by(tmp_path, "cluster", "--help")
    out = tmp_path / "run"
    assert summary_of(tmp_path, "cluster", "--method", "k-fed", "--out", out)["nmi"] > 0.4


def test_without_the_package_there_is_no_such_method() -> None:
    finished = run(REPOSITORY, "-m", "ccfcpp", "cluster", "--method", "fed-lloyd")
    assert finished.returncode == 2
    assert "--method fed-lloyd is refused" in finished.stderr
