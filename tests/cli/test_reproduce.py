"""The command ``ccfcpp reproduce``, on an item of two runs that take a moment."""

import csv
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest

from ccfcpp.core.errors import StoppedError
from ccfcpp.studies.reproduction.paper_items import ITEMS, Item
from ccfcpp.studies.study import Study
from tests.support.command import Result, ccfcpp, refused

CELLS: dict[str, list[object]] = {
    "dataset": ["digits"],
    "method": ["ccfc", "ccfc++"],
    "data.images": [160],
    "partition.p": [0.75],
    "partition.clients": [4],
    "training.pretrain_rounds": [2],
    "training.rounds": [6],
    "model.widths": [[4, 6]],
    "model.projector_width": [12],
    "model.latent": [8],
    "model.predictor_width": [4],
    "centroids.restarts": [1],
}
RUNNER = "ccfcpp.studies.parallel.run_in_processes"
TITLES = {"tiny": "A paper, Table 1: NMI", "tiny-kappa": "A paper, Table 2: Kappa"}
TITLE = TITLES["tiny"]


def tiny(title: str, measure: str) -> Item:
    """A table beside the paper's, and one that is drawn, which takes less time than theirs."""
    by_p = {"axis": "p", "place": "{partition.p}", "system": "{method}"}
    score = {"title": measure, "measure": measure.lower(), "published": measure.lower()}
    rank = {"title": "effective rank", "measure": "effective_rank"}
    return Item.model_validate(
        {
            "title": title,
            "command": "cluster",
            "base": {"preset": "published"},
            "full": [{"grid": [CELLS]}],
            "quick": [{"grid": [CELLS]}],
            "tables": {"score": by_p | score | {"drawn": False}, "rank": by_p | rank},
            "claims": [{"say": "the term raises it", "higher": [["CCFC++", "CCFC"]]}],
        }
    )


@pytest.fixture(scope="module", autouse=True)
def tiny_items() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for (name, title), measure in zip(TITLES.items(), ("NMI", "Kappa"), strict=True):
            patch.setitem(ITEMS, name, tiny(title, measure))
        patch.setattr(RUNNER, run_here)
        yield


def run_here(
    study: Study[Any],
    jobs: int,
    look: Callable[[], None],
    should_stop: Callable[[], bool],
) -> None:
    """In place of processes, each of which takes seconds to begin."""
    for planned in study.runs:
        if not study.is_finished(planned):
            run, folder = study.open_run(planned)
            run.run(folder, should_stop=should_stop)
            look()


def reproduce(*arguments: object) -> Result:
    return ccfcpp("reproduce", *arguments, "--jobs", 1)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole") / "a folder"


@pytest.fixture(scope="module")
def whole(out: Path) -> Result:
    """Both runs, from nothing to the table."""
    return reproduce("tiny", "--quick", "--out", out)


def table(out: Path) -> list[dict[str, str]]:
    with (out / "tiny-quick" / "table-1.csv").open() as file:
        return list(csv.DictReader(file))


def nmi_of(out: Path) -> list[float]:
    """As the runs' summaries have them, the run of CCFC first."""
    folders = sorted((out / "runs").iterdir(), key=lambda path: path.name.startswith("ccfc++"))
    return [json.loads((folder / "summary.json").read_text())["nmi"] for folder in folders]


def modified(out: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*")}


def test_an_item_is_run_and_its_table_and_verdict_are_printed(out: Path, whole: Result) -> None:
    assert whole.code == 0, whole.stderr
    assert whole.stderr.splitlines()[0] == TITLE
    assert "2 of 2 runs finished" in whole.stderr
    shown = " ".join(whole.stdout.split())
    assert f"{TITLE}. NMI: digits" in shown
    assert "2 runs on digits (160 images); 8 rounds; seed 0. Of " in shown
    assert "The term raises it:" in shown
    values = nmi_of(out)
    assert [row["system"] for row in table(out)] == ["CCFC", "CCFC++"]
    assert [float(row["NMI"]) for row in table(out)] == values
    assert all(f"{value:.3f}" in shown for value in values)


def test_results_name_command_and_machine_and_lie_beside_the_runs(out: Path, whole: Result) -> None:
    folder = out / "tiny-quick"
    assert f"also in {folder}/result.md" in whole.stdout
    text = (folder / "result.md").read_text()
    assert text.startswith(f"# {TITLE}\n\n`ccfcpp reproduce tiny --quick`\n")
    (session,) = json.loads(next(out.glob("runs/*/environment.json")).read_text())["sessions"]
    (line,) = text.split("Made by:\n\n")[1].splitlines()
    assert all(f"{fact} {session[fact]}" in line for fact in ("processor", "threads", "device"))
    assert {path.suffix for path in (folder / "figures").iterdir()} == {".svg", ".png", ".csv"}
    assert {path.name for path in out.iterdir()} >= {"runs", "tiny-quick"}


def test_what_is_finished_is_not_run_again(out: Path, whole: Result) -> None:
    before, text = modified(out), (out / "tiny-quick" / "result.md").read_text()
    again = reproduce("tiny", "--quick", "--out", out)
    assert (again.code, again.stdout) == (0, whole.stdout)
    assert modified(out) == before
    assert (out / "tiny-quick" / "result.md").read_text() == text


@pytest.mark.usefixtures("whole")
def test_items_share_runs_and_json_is_one_object(out: Path) -> None:
    before = modified(out)
    result = reproduce("tiny", "tiny-kappa", "--quick", "--out", out, "--json")
    assert result.code == 0, result.stderr
    assert result.stdout.count("\n") == 1
    first, second = json.loads(result.stdout)["items"]
    assert (first["item"], second["item"]) == ("tiny", "tiny-kappa")
    assert first["title"] == TITLE
    assert (first["out"], second["out"]) == (str(out / "tiny-quick"), str(out / "tiny-kappa-quick"))
    higher = first["claims"][0]
    without, with_term = nmi_of(out)
    assert (higher["held"], higher["of"], higher["paper"]) == (with_term > without, 1, [19, 20])
    assert first["verdict"].startswith("2 runs on digits")
    # Each item's page names the command of that item alone.
    for name in ("tiny", "tiny-kappa"):
        text = (out / f"{name}-quick" / "result.md").read_text()
        assert f"`ccfcpp reproduce {name} --quick`" in text
    assert modified(out) == before


@pytest.mark.usefixtures("whole")
def test_only_the_runs_on_one_data_set(out: Path) -> None:
    before = (out / "tiny-quick" / "result.md").read_text()
    result = reproduce("tiny", "--quick", "--dataset", "digits", "--out", out)
    assert result.code == 0, result.stderr
    text = (out / "tiny-quick-digits" / "result.md").read_text()
    assert "`ccfcpp reproduce tiny --quick --dataset digits`" in text
    assert (out / "tiny-quick" / "result.md").read_text() == before
    full = reproduce("tiny", "--dataset", "digits", "--out", out)
    assert full.code == 0, full.stderr
    assert (
        "`ccfcpp reproduce tiny --dataset digits`"
        in (out / "tiny-digits" / "result.md").read_text()
    )


@pytest.mark.usefixtures("whole")
def test_a_damaged_run_is_one_line(out: Path, tmp_path: Path) -> None:
    shutil.copytree(out / "runs", tmp_path / "out" / "runs")
    summary = next((tmp_path / "out" / "runs").glob("*/summary.json"))
    summary.write_text("[]")
    said = refused("reproduce", "tiny", "--quick", "--out", tmp_path / "out", "--jobs", 1)
    assert f"{summary} is damaged (no object): delete it to run this again" in said


# --- interruption -------------------------------------------------------------------------------


def stopping_after(rounds: int) -> Callable[..., object]:
    """In place of Ctrl-C: a stop is asked for after so many rounds."""
    left = iter([False] * (rounds - 1))

    @contextmanager
    def interruption(*_: object) -> Iterator[Callable[[], bool]]:
        yield lambda: next(left, True)

    return interruption


@pytest.mark.parametrize("rounds", [3, 11], ids=["in the first run", "in the second run"])
def test_what_was_stopped_goes_on_by_the_command_that_is_named(
    out: Path, whole: Result, tmp_path: Path, rounds: int
) -> None:
    broken = tmp_path / "another folder"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ccfcpp.cli.terminal.graceful_interruption", stopping_after(rounds))
        stopped = reproduce("tiny", "--quick", "--out", broken)
    assert (stopped.code, stopped.stdout) == (130, "")
    logs = sorted(broken.glob("runs/*/metrics.jsonl"), key=lambda log: log.stat().st_mtime_ns)
    assert [log.read_text().count("\n") for log in logs] == ([3] if rounds == 3 else [8, 3])
    assert not (broken / "tiny-quick").exists()
    before = {log: log.read_text() for log in logs}
    command = shlex.split(stopped.stderr.splitlines()[-1].partition("go on with: ccfcpp ")[2])
    assert command[:3] == ["reproduce", "tiny", "--quick"]
    resumed = ccfcpp(*command)
    assert resumed.code == 0, resumed.stderr
    assert all(log.read_text().startswith(text) for log, text in before.items())
    assert table(broken) == table(out)
    assert resumed.stdout == whole.stdout.replace(str(out), str(broken))


def test_runs_can_be_sent_to_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def send(study: Study[Any], jobs: int, *others: object) -> None:
        left = ForkingPickler.loads(ForkingPickler.dumps(study.runs))
        assert [run.folder for run in left] == [run.folder for run in study.runs]
        sent.append(jobs)
        raise StoppedError

    monkeypatch.setattr(RUNNER, send)
    for flags in (["--quick"], [], ["--jobs", 3], ["--quick", "--jobs", 2]):
        assert ccfcpp("reproduce", "tiny", *flags, "--out", tmp_path / "out").code == 130
    assert sent == [os.cpu_count(), 1, 3, 2]


def stop(*arguments: object) -> None:
    raise StoppedError


def test_the_command_to_go_on_by_has_all_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RUNNER, stop)
    given = (
        *("--dataset", "digits", "--jobs", "2", "--device", "cpu", "--cohort", "2"),
        *("--data-root", str(tmp_path / "my data"), "--out", str(tmp_path / "out")),
    )
    result = ccfcpp("reproduce", "tiny", "tiny-kappa", "--quick", *given)
    assert result.code == 130
    command = shlex.split(result.stderr.splitlines()[-1].partition("go on with: ")[2])
    assert command[:5] == ["ccfcpp", "reproduce", "tiny", "tiny-kappa", "--quick"]
    options = dict(zip(command[5::2], command[6::2], strict=True))
    assert options == dict(zip(given[::2], given[1::2], strict=True))


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "no item is given"),
        (("--quick",), "no item is given"),
        (("feddecorr-table11",), "item 'feddecorr-table11' is unknown: did you mean 'feddecorr-"),
        (("table1", "tiny"), "item 'table1' is unknown: did you mean "),
        (("tiny", "--quick", "--dataset", "mnist"), "--dataset mnist is none of this item's"),
        (("tiny", "--quick", "--device", "tpu"), "--device tpu is refused"),
        (("tiny", "--quick", "--cohort", "0"), "--cohort 0 is refused"),
        (("tiny", "--quick", "--jobs", "0"), "Invalid value for '--jobs'"),
        (("feddecorr-table6", "--quick", "--jobs", "2"), "--jobs 2: runs whose time is measured"),
        # At once, not when the items before it are done.
        (("tiny", "feddecorr-table6", "--quick", "--jobs", "2"), "--jobs 2: runs whose time is"),
        (("feddecorr-table3", "--data-root", "/nowhere"), "/nowhere/office-caltech10 is missing"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in refused("reproduce", *arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["tiny", "feddecorr-table3"])
def test_an_output_folder_that_is_a_file_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    path.write_text("kept")
    assert str(path) in refused("reproduce", name, "--quick", "--out", path, "--jobs", 1)
    assert path.read_text() == "kept"


def test_items_are_listed_with_their_titles() -> None:
    shown = ccfcpp("reproduce", "--list")
    assert shown.code == 0
    for name, item in ITEMS.items():
        assert name in shown.stdout
        assert item.title.partition(":")[0] in shown.stdout
