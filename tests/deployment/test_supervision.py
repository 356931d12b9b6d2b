"""Processes that are supervised: none outlives whoever has started it, and why one ends is said."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ccfcpp.deployment.client import super_node
from ccfcpp.deployment.client.super_node import kept_running, why_it_ended
from ccfcpp.deployment.link.processes import running

PYTHON = sys.executable, "-I", "-S", "-c"
STARTED = "import os; print(os.getpid(), flush=True); import time; time.sleep(60)"
TIDY = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), print("tidy", flush=True), sys.exit(3)))
print("ready", flush=True)
time.sleep(60)
"""
PARENT = """
import os, sys, time
from pathlib import Path
from ccfcpp.deployment.link.processes import running
with running(sys.argv[2:], dict(os.environ), Path(sys.argv[1])):
    time.sleep(60)
"""


def text_of(log: Path) -> str:
    until = time.monotonic() + 30
    while not (log.exists() and log.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    return log.read_text()


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_nothing_outlives_who_was_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = [sys.executable, "-c", PARENT, str(log), *PYTHON, STARTED]
    with subprocess.Popen(words) as parent:
        child = int(text_of(log))
        assert is_there(child)
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + 10
    while is_there(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_there(child)


def test_who_is_ended_may_tidy_up(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running([*PYTHON, TIDY], dict(os.environ), log) as process:
        assert text_of(log) == "ready\n"
    assert log.read_text() == "ready\ntidy\n"
    assert process.returncode == 3


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("[code: 2004] Failed", "the server does not know the key, or the key is in use: "),
        ("CERTIFICATE_VERIFY_FAILED] x", "the server's certificate is not of this authority: "),
        (
            "CERTIFICATE_VERIFY_FAILED] IP address mismatch, certificate is not valid for 'x'",
            "the server's certificate is for another name: ",
        ),
        ("anything", "the node has ended, see "),
    ],
)
def test_why_a_node_has_ended(printed: str, said: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"[code: 2004] of a node before\n{printed}\n")
    assert why_it_ended(log, place=len("[code: 2004] of a node before\n")).startswith(said)


def test_the_same_reason_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(super_node, "_LOOK", 0.01)
    monkeypatch.setattr(super_node, "_AGAIN", 0.01)
    log, said = tmp_path / "log", list[str]()
    with kept_running([*PYTHON, "print('[code: 2004]')"], dict(os.environ), log, said.append):
        until = time.monotonic() + 20
        while text_of(log).count("2004") < 2 and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.1)
    assert len(said) == 1
    assert said[0].startswith("the server does not know the key")
    assert log.read_text().count("2004") >= 2
