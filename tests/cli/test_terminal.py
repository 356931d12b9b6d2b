"""What commands share: flags as a tree, errors of files, and how to go on."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from rich.console import Console

from ccfcpp.cli.options import RunOptions
from ccfcpp.cli.terminal import (
    EmbeddingProgress,
    print_rows,
    progress_console,
    resumable,
    resume_command,
    run_to_end,
    usage_errors,
)
from ccfcpp.core.errors import StoppedError, UsageError
from ccfcpp.engine.client import Member


def test_flags_lie_over_files_and_beside_single_settings(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("seed: 1\n")
    named = {"seed": "2", "partition.p": "0.5", "rounds": "4"}
    found = RunOptions(named, [file], settings=["clusters=3"]).layers()
    flags = {"seed": "2", "partition": {"p": "0.5"}, "rounds": "4"}
    assert found == [{"seed": 1}, {**flags, "clusters": 3}]
    with pytest.raises(UsageError, match="seed = 2 and --set seed=3 set the same: give one"):
        RunOptions(named, [file], settings=["seed=3"]).layers()


def test_a_file_that_cannot_be_used_is_the_users_to_mend() -> None:
    with pytest.raises(UsageError, match="/nowhere/x cannot be used"), usage_errors():
        Path("/nowhere/x").read_bytes()


def test_an_error_without_a_file_keeps_its_words() -> None:
    with (
        pytest.raises(UsageError, match=r"^x cannot be written: the disk is full$"),
        usage_errors(),
    ):
        raise OSError("x cannot be written: the disk is full")


def test_the_command_to_go_on_by_can_be_pasted() -> None:
    assert resume_command("cluster", Path("a b")) == "ccfcpp cluster --out 'a b' --resume"
    assert resume_command("cluster", Path("a"), "b.pt").endswith("--resume --encoder b.pt")
    assert resume_command("cluster", Path("a"), "b.onnx").endswith("--resume")


@pytest.mark.parametrize(
    ("error", "is_there", "said"),
    [
        (StoppedError, True, "stopped; go on with: ccfcpp go-on"),
        (KeyboardInterrupt, True, "came after the last checkpoint is lost; go on with: ccfcpp"),
        (KeyboardInterrupt, None, "came after the last checkpoint is lost; go on with: ccfcpp"),
        (KeyboardInterrupt, False, "nothing of it is kept, since no round has ended; begin again"),
    ],
)
def test_a_stop_says_what_is_kept_and_how_to_go_on(
    tmp_path: Path, error: type[BaseException], is_there: bool | None, said: str
) -> None:
    console = Console(record=True, width=200)
    checkpoint = None if is_there is None else tmp_path / "latest"
    if is_there:
        (tmp_path / "latest").touch()
    with (
        pytest.raises(typer.Exit) as stopped,
        resumable("ccfcpp go-on", console, checkpoint),
    ):
        raise error
    assert stopped.value.exit_code == 130
    assert said in console.export_text()


def test_names_of_columns_are_broken_and_not_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    names = ("partition.classes_per_client", "effective_rank", "tail_share", "accuracy")
    print_rows("a study", [dict.fromkeys(names, "0.8250")])
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 60
    for word in ("partition", "classes", "effective", "accuracy"):
        assert word in shown


def test_the_time_of_embedding_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Once in the beginning and once in the end, where it is no terminal; not what is quick."""
    told = EmbeddingProgress(progress_console())
    for done in (50, 100):
        told("quick", done, 100, done / 50)
    for done in range(100, 1100, 100):
        told("slow", done, 1000, done / 50)
    assert capsys.readouterr().err.splitlines() == [
        "embedding by slow: 100 of 1,000, about 18 seconds left",
        "embedding by slow: 1,000 of 1,000, kept for other runs",
    ]


def test_a_round_of_several_processes_ends_at_the_end_of_the_bar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    shares: list[int] = []

    def run(folder: Any, progress: Any, should_stop: Any) -> dict[str, Any]:
        shares.append(progress.pace.samples)
        return {}

    experiment: Any = SimpleNamespace(
        members=[Member(0, "a", 60), Member(1, "b", 40)],
        algorithm=SimpleNamespace(rounds=1),
        planned_exchanges=tuple,
        run=run,
    )
    begun: Any = SimpleNamespace(checkpoint=Path(__file__))
    run_to_end(experiment, begun, ("nmi", "NMI"), lambda: False)
    assert shares == [50]
