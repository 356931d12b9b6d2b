"""What a client tells its owner, on a terminal and elsewhere."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from ccfcpp.cli.join_status import StatusLine
from ccfcpp.deployment.link.server_status import ServerStatus
from tests.support.command import refused

DAY = [
    ServerStatus(there=1, wanted=3),
    ServerStatus(there=2, wanted=3),
    ServerStatus(there=2, wanted=3),
    ServerStatus(phase="training", round=0, rounds=9),
    ServerStatus(phase="training", round=3, rounds=9, left=190.0),
    ServerStatus(phase="training", round=3, rounds=9, left=170.0),
    ServerStatus(phase="ending", rounds=9),
]


def told(terminal: bool) -> str:
    console = Console(file=StringIO(), width=100, force_terminal=terminal)
    display = StatusLine(console)
    with display.live():
        for _ in range(2):
            display.show_status("connecting to server.example.org:9092")
        display.print_line("connected to server.example.org:9092")
        for news in DAY:
            display.show_progress(news)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_elsewhere_each_state_is_a_line() -> None:
    assert told(terminal=False).splitlines() == [
        "connecting to server.example.org:9092",
        "connected to server.example.org:9092",
        "waiting for clients: 1 of 3 are there",
        "waiting for clients: 2 of 3 are there",
        "training round 1 of 9",
        "training round 4 of 9, about 3 minutes left",
        "the rounds are over; the results are collected",
    ]


def test_a_terminal_keeps_what_happens_and_rewrites_the_state() -> None:
    said = told(terminal=True)
    assert "\nconnected" in said or "connected to" in said
    # What is rewritten is erased at the end.
    assert said.rstrip().endswith("\x1b[2K\x1b[?25h") or "\x1b[2K" in said


@pytest.mark.parametrize(
    "server",
    [
        *("https://server.example.org:9092", "server.example.org:9092/path", "server.example.org"),
        *("server.example.org:", ":9092", "server.example.org:port", "a b:9092", "user@host:9092"),
        *("server.example.org:99999", "https://server.example.org/path"),
    ],
)
def test_what_is_no_address_is_refused_at_once(server: str, tmp_path: Path) -> None:
    words = "--server", server, "--key", tmp_path / "a.key", "--data", tmp_path
    assert f"{server!r} is no HOST:PORT" in refused("join", *words)
