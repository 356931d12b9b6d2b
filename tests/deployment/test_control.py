"""A running server's operator asks how it is, and stops it."""

import json
import os
import signal
import socket
import stat
import threading
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from ccfcpp.cli.participants import Attendance
from ccfcpp.cli.progress import RunProgress
from ccfcpp.cli.terminal import Stop, graceful_interruption, interruptible
from ccfcpp.core.errors import UsageError
from ccfcpp.core.progress import report_exchanges, report_progress_to, report_round
from ccfcpp.deployment.server.control import ask, serve_control
from ccfcpp.engine.client import Member
from ccfcpp.engine.federation import RoundReport
from tests.support.command import ccfcpp

MEMBERS = [Member(0, "ward-a", 1200), Member(2, "ward-c", 60)]


def attendance() -> Attendance:
    return Attendance(Console(file=StringIO()), ["ward-a", "ward-b", "ward-c"])


def training(shown: Attendance) -> Attendance:
    """In the middle of the second of four rounds."""
    names = {member.id: member.name for member in MEMBERS}
    shown.begin(MEMBERS)
    shown.silent = lambda: {"ward-a": 1.0, "ward-c": 200.0}
    shown.progress = RunProgress(shown.console, 4, ("nmi", "NMI"), names=names)
    with shown.progress, report_progress_to(shown.progress.pace):
        report_round(0)
        absent = {2: ["steps: no answer within 5 s"]}
        shown.progress(RoundReport(0, [0], absent=absent), {})
        report_round(1)
        report_exchanges(1, 2)
    return shown


# --- what it says ---------------------------------------------------------------------------------


def test_while_it_waits_it_says_who_is_there(tmp_path: Path) -> None:
    shown = attendance()
    shown.on_answer("ward-b", "cannot take part: it holds no image")
    shown.on_answer("ward-a", "1,200 images")
    run = tmp_path / "run"
    with serve_control(run, lambda asked: shown.answer(asked, Stop())):
        result = ccfcpp("status", run)
        found = json.loads(ccfcpp("status", run, "--json").stdout)
    assert "waiting for clients: 1 of 3 are there" in " ".join(result.stdout.split())
    assert (found["phase"], found["there"], found["wanted"]) == ("waiting", 1, 3)
    assert [(each["name"], each["standing"], each["silent"]) for each in found["clients"]] == [
        ("ward-a", "1,200 images", None),
        ("ward-b", "cannot take part: it holds no image", None),
        ("ward-c", "not there yet", None),
    ]


def test_while_it_trains_it_says_how_far_it_is(tmp_path: Path) -> None:
    shown = training(attendance())
    with serve_control(tmp_path, lambda asked: shown.answer(asked, Stop())):
        result = ccfcpp("status", tmp_path)
        found = json.loads(ccfcpp("status", tmp_path, "--json").stdout)
    assert (found["round"], found["rounds"]) == (1, 4)
    assert shown.progress is not None
    assert shown.progress.server_status.left is not None
    assert found["left"] == pytest.approx(shown.progress.server_status.left)
    said = " ".join(result.stdout.split())
    assert "training round 2 of 4" in said
    assert "ward-a │ 1,200 │ there │ now" in said
    assert "ward-c │ 60 │ there │ 3 minutes ago" in said
    assert "ward-b │ │ not part of this run │ never" in said
    assert "round 1: ward-c absent: steps: no answer within 5 s" in said


def test_after_the_last_round_results_are_collected() -> None:
    progress = training(attendance()).progress
    assert progress is not None
    with report_progress_to(progress.pace):
        report_round(3)
        report_exchanges(2, 2)
        assert str(progress.server_status) == "the rounds are over; the results are collected"
        report_round(4)  # an epilogue's
        assert progress.server_status.phase == "ending"


# --- how it stops ---------------------------------------------------------------------------------


def stopped(run: Path, *words: str) -> str:
    """What a stop says that is asked for by another process, as far as this one can tell."""
    said: list[str] = []
    asking = threading.Thread(target=lambda: said.append(ask(run, *words)["state"]))
    asking.start()
    asking.join(30)
    return said[0]


def until_it_stops(run: Path, *words: str) -> None:
    stopped(run, *words)
    signal.pause()


def test_a_stop_waits_for_the_end_of_the_round(tmp_path: Path) -> None:
    shown, stop, announced = training(attendance()), Stop(), list[str]()
    with (
        serve_control(tmp_path, lambda asked: shown.answer(asked, stop)),
        graceful_interruption(lambda: announced.append("x"), stop) as should_stop,
    ):
        assert stopped(tmp_path, "stop").startswith("it stops after this round (training round 2")
        assert should_stop()
        stopped(tmp_path, "stop")  # twice is not at once
        assert announced == ["x"]


@pytest.mark.parametrize("before", [False, True])
def test_a_stop_now_ends_it_at_once(tmp_path: Path, before: bool) -> None:
    shown, stop = training(attendance()), Stop(before)
    with (
        serve_control(tmp_path, lambda asked: shown.answer(asked, stop)),
        pytest.raises(KeyboardInterrupt),
        graceful_interruption(lambda: None, stop),
    ):
        until_it_stops(tmp_path, "stop now")


def test_a_stop_while_it_waits_for_clients_ends_it_at_once(tmp_path: Path) -> None:
    shown, stop = attendance(), Stop()
    with (
        serve_control(tmp_path, lambda asked: shown.answer(asked, stop)),
        pytest.raises(typer.Exit) as ended,
        interruptible("stopped"),
    ):
        until_it_stops(tmp_path, "stop")
    assert ended.value.exit_code == 130


# --- where it listens -----------------------------------------------------------------------------


def answer(asked: str) -> dict[str, Any]:
    return {"state": asked}


def test_only_its_owner_may_ask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with serve_control(tmp_path, answer) as room:
            assert stat.S_IMODE(room.stat().st_mode) == 0o700
            (file,) = room.iterdir()
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_a_long_path_is_none_too_long(tmp_path: Path) -> None:
    run = tmp_path / ("x" * 100) / ("y" * 100)
    with serve_control(run, answer):
        assert ask(run, "status") == {"state": "status"}


def test_what_is_no_request_has_no_answer(tmp_path: Path) -> None:
    with serve_control(tmp_path, answer) as room:
        for line in (b"\n", b"shout\n", b"\xff" * 1000, b"status " * 9 + b"\n"):
            with socket.socket(socket.AF_UNIX) as calling:
                calling.connect(str(room / "control"))
                calling.sendall(line)
                assert calling.recv(100) == b"{}\n"
        assert ask(tmp_path, "status") == {"state": "status"}


def test_two_servers_do_not_share_a_run(tmp_path: Path) -> None:
    with serve_control(tmp_path, answer):
        second = serve_control(tmp_path, answer)
        with pytest.raises(UsageError, match="a server is running in"):
            second.__enter__()
        assert ask(tmp_path, "status") == {"state": "status"}


def test_a_folder_in_a_file_is_no_server(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be written .*: give another --out"):
        serve_control(tmp_path / "file" / "run", answer).__enter__()


def test_one_that_was_killed_is_none(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "server" / "control"))
    with pytest.raises(UsageError, match="no server is running in"):
        ask(tmp_path, "status")
    with serve_control(tmp_path, answer):
        assert ask(tmp_path, "status") == {"state": "status"}


@pytest.mark.parametrize("begun", [False, True])
def test_where_no_run_has_begun_nothing_is_left(tmp_path: Path, begun: bool) -> None:
    run = tmp_path / "runs" / "x"
    with serve_control(run, answer) as room:
        (room / "gate.log").write_text("")
        if begun:
            (run / "config.yaml").write_text("")
    assert (tmp_path / "runs").exists() is begun
    assert (run / "server" / "gate.log").exists() is begun


@pytest.mark.parametrize(
    ("files", "mend"),
    [
        ((), "give the folder of a run"),
        (("config.yaml",), "goes on with ccfcpp serve --out"),
        (("config.yaml", "summary.json"), "its run has ended; ccfcpp report"),
    ],
)
@pytest.mark.parametrize("command", ["status", "stop"])
def test_where_no_server_is_running_it_says_so(
    command: str, files: tuple[str, ...], mend: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).write_text("{}")
    result = ccfcpp(command, tmp_path)
    assert result.code == 2
    assert result.stderr.startswith(f"error: no server is running in {tmp_path}: ")
    assert mend in result.stderr
