"""What ``ccfcpp serve`` says and chooses, without its processes."""

import re
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ccfcpp.cli.bind_address import ServerOptions
from ccfcpp.cli.participants import Attendance
from ccfcpp.cli.serve import describe_deployed_run, missing_rows, with_suited_settings
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.systems.fed_scan.config import ScanConfig
from ccfcpp.core.config_layers import resolve
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.deployment.server.dry_run import dry_run
from ccfcpp.engine.client import Member
from ccfcpp.runs.pipeline import Opening
from tests.deployment.test_experiment import experiment_on, grid_of
from tests.support.classification import labelled_clients
from tests.support.clustering import tiny
from tests.support.command import ccfcpp

MEMBERS = [Member(0, "ward-a", 1200), Member(1, "ward-b", 60)]


def test_the_command_to_go_on_by_has_the_options_of_the_server() -> None:
    assert ServerOptions().typed == ""
    server = ServerOptions(Path("my keys"), listen="127.0.0.1:9", insecure=True, limit=5.0)
    assert server.typed == " --keys 'my keys' --listen 127.0.0.1:9 --insecure --limit 5.0"


def fitted_to(samples: int, shape: tuple[int, ...], *layers: Mapping[str, Any]) -> ScanConfig:
    given = [{"dataset": "somewhere/else"}, *map(dict, layers)]
    config = resolve(ClusterConfig, "cluster", *given)
    opening = Opening(Path("run"), config, layers=[*given, {}])
    spec = RunSpec(command="cluster", config={}, image_shape=shape, samples=samples)
    return with_suited_settings(opening, spec).config.section(ScanConfig)


def test_steps_over_a_network_are_few_and_large() -> None:
    scan = fitted_to(70_000, (1, 28, 28))
    assert (scan.steps, scan.lagged, scan.exact_steps) == (120, True, 20)
    assert scan.batch == 2334  # as many images in all as in the 140 steps of 2,000 in one process
    few = fitted_to(60, (1, 28, 28))
    assert (few.batch, few.steps, few.exact_steps) == (60, 60, 10)
    # What the user gave lies over them; so does what belongs to a named data set.
    assert fitted_to(60, (1, 28, 28), {"scan": {"steps": 3}}).steps == 3
    assert fitted_to(60, (1, 28, 28), {"dataset": "mnist"}).steps == 120


@pytest.mark.parametrize("method", METHODS)
def test_the_header_counts_exchanges(method: str, tmp_path: Path) -> None:
    clients = labelled_clients(40, 30)
    grid = grid_of(clients, tmp_path)
    experiment = experiment_on(grid, tiny(method, {"clusters": 3, "device": "cpu"}))
    grid.requests.clear()
    said = describe_deployed_run(experiment, seconds=30.0)
    federation = experiment.federation()
    for _, _report in federation.run(experiment.algorithm.initial_state(experiment.randomness), 0):
        pass
    exchanges = len(grid.requests) // len(clients)
    assert "70 images of 8x8 pixels; 2 clients" in said
    found = re.search(r"about (\d+) exchanges?: (\d+):(\d+) min", said)
    assert found is not None
    number, minutes, seconds = map(int, found.groups())
    # A system may know only later that it can spare one.
    assert exchanges <= number <= exchanges + 1
    assert 60 * minutes + seconds == 30 * number


def attendance(terminal: bool) -> Attendance:
    console = Console(file=StringIO(), width=80, force_terminal=terminal)
    return Attendance(console, [member.name for member in MEMBERS])


def printed(shown: Attendance) -> str:
    assert isinstance(shown.console.file, StringIO)
    return shown.console.file.getvalue()


def test_a_terminal_shows_how_each_client_fares() -> None:
    shown = attendance(terminal=True)
    shown.on_answer("ward-b", "cannot take part: it holds no image")
    shown.console.print(shown)
    assert "not there yet" in printed(shown)
    shown.begin(MEMBERS[:1])
    shown.on_standing(MEMBERS[0], "waiting", "training")
    shown.console.print(shown)
    row = next(line for line in printed(shown).splitlines() if "1,200" in line)
    assert "ward-a" in row
    assert "at work" in row
    assert "cannot take part: it holds no image" in printed(shown)
    shown.on_standing(MEMBERS[0], "training", "late")
    assert str(next(iter(shown.__rich__().columns[2].cells))) == "late"


def test_who_was_not_there_at_the_start_is_not_waited_for() -> None:
    shown = attendance(terminal=True)
    shown.begin(MEMBERS[:1])
    assert shown.standings == {"ward-a": "there", "ward-b": "not part of this run"}


def test_elsewhere_each_change_that_matters_is_a_line() -> None:
    shown = attendance(terminal=False)
    with shown.wait_for(shown.standings, None):
        shown.on_answer("ward-a", "1,200 images")
    for before, now in (("away", "waiting"), ("waiting", "training"), ("training", "late")):
        shown.on_standing(MEMBERS[0], before, now)  # type: ignore[arg-type]
    shown.on_standing(MEMBERS[0], "late", "waiting")
    assert printed(shown).splitlines() == [
        "waiting for 2 of 2 clients: ward-a and ward-b",
        "ward-a: 1,200 images; still missing: ward-b",
        "ward-a is there", "ward-a is late", "ward-a is there",
    ]  # fmt: skip


def test_the_end_says_who_is_without_the_model() -> None:
    shown = attendance(terminal=False)
    shown.on_linger(["ward-a", "ward-b"], 59.7)
    assert printed(shown) == "waiting up to 60 s to give the model to ward-a, ward-b\n"
    assert missing_rows({"without_model": {}}) == {}
    found = missing_rows({"without_model": {"ward-b": "it is not online", "ward-a": "late"}})
    assert [*found.values()] == ["ward-b (it is not online); ward-a (late)"]


def test_many_clients_fit_a_terminal() -> None:
    console = Console(file=StringIO(), width=80)
    shown = Attendance(console, [f"c{number}" for number in range(1000)])
    shown.standings |= {f"c{number}": "there" for number in range(999)}
    table = shown.__rich__()
    assert table.row_count == 31
    first, *_, last = map(str, table.columns[0].cells)
    assert (first, last) == ("c999", "and 970 more")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--method", "k-fed", "--rounds", 3], "--rounds 3 has no effect on k-fed"),
        (["--method", "fedavg"], "--method fedavg is refused"),
        (["--task", "classify", "--clusters", 3], "--clusters 3 is for clustering alone: leave"),
        (["--task", "classify", "--encoder", "a"], "--encoder a is for clustering alone: leave"),
        (["--listen", "9092"], "HOST:PORT"),
        (["--listen", "0.0.0.0:90920"], "HOST:PORT"),
    ],
)
def test_settings_without_effect_are_refused(
    arguments: list[object], complaint: str, tmp_path: Path
) -> None:
    result = ccfcpp("serve", *arguments, "--out", tmp_path / "run")
    assert result.code == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "clusters is not given: give --clusters"),
        (["--clusters", "3", "--skip", "5%"], "--skip 0.05 has no effect over a network"),
        (
            ["--clusters", 3, "--set", "data.newcomers=[new/]"],
            "data.newcomers is given by --from alone: leave it out",
        ),
        # What a preset has for other systems is no fault of its user.
        *(
            (["--config", "cluster/vectors", "--method", method], "clusters is not given: give")
            for method in ("fed-km", "fed-em", "fed-scan")
        ),
        (["--clusters", 3, "--secure-sums", "--method", "k-fed"], "--secure-sums: in k-fed's"),
        (["--clusters", 3, "--set", "defence.rule=multi-krum"], "defence.rule"),
        (["--clusters", 3, "--clients", 9], "--clients 9 is more than the 2 clients of the roster"),
        (
            ["--clusters", 3, "--method", "feddp-kmeans", "--set", "feddp.server=nothere/"],
            "nothere",
        ),
        (
            ["--clusters", 3, "--privacy", "client", "--set", "privacy.epsilon=1e-9"],
            "allows no run",
        ),
        (["--task", "classify", "--secure-sums", "--method", "fednova"], "--secure-sums"),
    ],
)
def test_what_fits_no_clients_is_refused_before_any_is_asked(
    arguments: list[object], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr")
    from ccfcpp.deployment.keys.local import make_local_keys

    monkeypatch.chdir(tmp_path)
    make_local_keys(tmp_path / "keys", 2)
    result = ccfcpp("serve", *arguments, "--listen", "127.0.0.1:0", "--out", "runs/x")
    assert result.code == 2, result.stderr
    assert complaint in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"keys"}


@pytest.mark.parametrize("method", METHODS)
def test_what_fits_some_clients_is_not_refused(method: str) -> None:
    dry_run(tiny(method, {"clusters": 3, "device": "cpu"}), clients=2)
