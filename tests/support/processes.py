"""A federation of real processes on this machine, with TLS and keys, and all of them bounded."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from ccfcpp.clustering.mahalanobis import model_tensors, split_model
from ccfcpp.core.randomness import Randomness
from ccfcpp.deployment.client.rules import Rules
from ccfcpp.deployment.client.run import load_data, make_client_run
from ccfcpp.deployment.server.enrolment import Enrolment
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import AbsentClientError, RefusedUpdateError, Task
from ccfcpp.engine.federation import Federation
from ccfcpp.engine.payload import pack
from ccfcpp.engine.transport import Reply, Transport
from tests.support.clustering import digits
from tests.support.deployment import one_by_one

P = TypeVar("P", bound="Processes")
SIZES = 60, 40, 30, 50
MOST_SECONDS = 400.0
ALLOWED = (
    *("--allow", "counts", "--allow", "pixels", "--allow", "classes"),
    *("--accept", "all", "--reproducible"),
)
"""What owners must allow for the systems of the tests, and to compare runs with others."""
"""What anything here may take, also where other work fills the machine."""
_MARK = "CCFCPP_TEST_PLACE"
"""In the environment of every process of a place, and of all that they start."""


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class Processes:
    """Commands on this machine, and what they write.

    Args:
        folder: An empty folder.

    Attributes:
        port: Where a server may listen.
        out: Folder of the run.
        started: Processes by name; the server's is ``serve``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "run"
        self.port = free_port()
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def images(self, name: str) -> Path:
        """Where a client's images are."""
        return self.folder / f"{name}.npz"

    def save_images(self, path: Path, number: int, sizes: Sequence[int] = SIZES) -> None:
        """Write a part of the digits, with labels."""
        images, labels = digits()
        part = torch.split(torch.arange(sum(sizes)), list(sizes))[number]
        np.savez(path, images=images[part].squeeze(1).numpy(), labels=labels[part].numpy())

    def start(
        self,
        name: str,
        module: str,
        *words: object,
        at: Path | None = None,
        reads: int = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a module of Python's in a folder; its output goes to a log of its name."""
        command = [sys.executable, "-m", module, *map(str, words)]
        # One thread, as here: sums have the same order.
        own = {_MARK: str(self.folder), "OMP_NUM_THREADS": "1", **(environment or {})}
        with self._log(name).open("ab") as file:
            process = subprocess.Popen(
                command, stdin=reads, stdout=file, stderr=file, env=os.environ | own, cwd=at
            )
        self.started[name] = process
        return process

    def said(self, name: str) -> str:
        """What a process has printed, on one line: a terminal's width breaks others."""
        return " ".join(self._log(name).read_text().split())

    def wait_for(self, text: str, name: str = "serve", times: int = 1) -> None:
        """Until a process has said something."""
        until = time.monotonic() + MOST_SECONDS
        while (said := self.said(name)).count(text) < times:
            assert time.monotonic() < until, f"{name} does not say {text!r}: {said}"
            assert self.started[name].poll() is None, f"{name} has ended: {said}"
            time.sleep(0.1)

    def end(self, seconds: float = MOST_SECONDS) -> dict[str, Any]:
        """Wait for the server's end; gives the run's summary."""
        assert self.started["serve"].wait(seconds) == 0, self.said("serve")
        summary: dict[str, Any] = json.loads((self.out / "summary.json").read_text())
        return summary

    def rounds(self) -> list[dict[str, Any]]:
        """What each round has left in ``metrics.jsonl``."""
        path = self.out / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_round(self, number: int) -> None:
        """Until a round is over, counted from 1."""
        until = time.monotonic() + MOST_SECONDS
        while len(self.rounds()) < number:
            assert time.monotonic() < until, self.said("serve")
            assert self.started["serve"].poll() is None, self.said("serve")
            time.sleep(0.1)

    def _log(self, name: str) -> Path:
        path = self.folder / f"{name}.log"
        path.touch()
        return path


class Machines(Processes):
    """A folder for each machine, of which only the files are copied that owners hand over."""

    def images(self, name: str) -> Path:
        """A client's photos."""
        return self.folder / name / "photos"

    def run(self, machine: str, command: str, *more: object) -> None:
        """A command that ends by itself."""
        process = self.begin(machine, command, *more)
        assert process.wait(MOST_SECONDS) == 0, self.said(machine)

    def begin(
        self, machine: str, command: str, *more: object, name: str = ""
    ) -> subprocess.Popen[bytes]:
        """A command, as a page shows it, on a machine."""
        program, *words = shlex.split(command)
        assert program == "ccfcpp"
        secret = self.folder / machine / "passphrase"
        own = {"CCFCPP_PASSPHRASE_FILE": str(secret)} if secret.exists() else {}
        at = self.folder / machine
        return self.start(name or machine, program, *words, *more, at=at, environment=own)

    def hand_over(self, source: str, target: str) -> None:
        """Copy a file from one machine to another."""
        place = self.folder / target
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.folder / source, place)


class Place(Processes):
    """A server and clients with images of their own, and what they write.

    Args:
        folder: An empty folder.
        names: The clients', at most as many as there are ``sizes``.
        sizes: How many images each has.

    Attributes:
        keys: Folder of all keys.
    """

    def __init__(self, folder: Path, *names: str, sizes: Sequence[int] = SIZES) -> None:
        from ccfcpp.deployment.keys.creation import make_authority, make_client, make_server

        super().__init__(folder)
        self.keys = folder / "keys"
        make_authority(self.keys, 2)
        make_server(self.keys, "127.0.0.1", 2)
        for number, name in enumerate(names):
            make_client(self.keys, name)
            self.save_images(self.images(name), number, sizes)

    def serve(
        self,
        *words: object,
        module: str = "ccfcpp",
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start the server, and wait until clients can come: else they try again ever later."""
        where = "--listen", f"127.0.0.1:{self.port}", "--keys", self.keys, "--out", self.out
        ready = "waiting for"
        before = self.said("serve").count(ready)
        server = self.start("serve", module, "serve", *where, *words, environment=environment)
        self.wait_for(ready, times=before + 1)
        return server

    def join(self, name: str, *words: object, slow: bool = False) -> subprocess.Popen[bytes]:
        """Start a client, also a slow one."""
        module = "tests.support.rogue" if slow else "ccfcpp"
        files = (
            *("--key", self.keys / "clients" / f"{name}.key", "--authority", self.keys / "ca.crt"),
            *("--server", f"127.0.0.1:{self.port}", "--data", self.images(name)),
        )
        return self.start(name, module, "join", *files, *ALLOWED, *words)

    def kill_gate(self) -> bool:
        """End the server's gate at once; whether there was one."""
        for pid, command in processes_with(str(self.folder)):
            if "gate_process" in command:
                os.kill(pid, signal.SIGKILL)
                return True
        return False


@contextmanager
def place(folder: Path, *names: str) -> Iterator[Place]:
    """A federation of which nothing is left behind."""
    with bounded(Place(folder, *names)) as here:
        yield here


@contextmanager
def bounded(here: P) -> Iterator[P]:
    """End all processes after use."""
    try:
        yield here
    finally:
        for process in here.started.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in here.started.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
        for pid, _ in processes_with(str(here.folder)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in here.started.values():
            process.wait(15)


def processes_with(folder: str) -> list[tuple[int, str]]:
    """Processes that were started for a place, with their commands."""
    mark, found = f"{_MARK}={folder}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if command:  # else it is dead, and waits to be looked at
                    found.append((int(process.name), command))
    return found


def tensors_of(run: Path) -> dict[str, Tensor]:
    """The state that a run has ended with."""
    return split_model(load_file(run / "model.safetensors"))[0]


def in_one_process(here: Processes) -> dict[str, Tensor]:
    """What the file of the same run would hold in one process, with the same clients."""
    return model_tensors(pack(replayed(here)[0]), None)


def replayed(here: Processes) -> tuple[Any, list[dict[str, Any]], Federation[Any, Any]]:
    """The same run in one process, without the updates that the server did not have.

    Returns:
        The last state, the rounds' lines for the log, and the federation.
    """
    enrolment = Enrolment.load(here.out / "deployment.json")
    spec = enrolment.spec
    clients = []
    for member in enrolment.members:
        data = load_data(spec, str(here.images(member.name)))
        run = make_client_run(spec, data, torch.device("cpu"))
        run.prepare()
        clients.append(Client(member.id, member.name, run.images, run.labels))
    least = Rules().fewest_images(spec)  # as owners have it who write no rules
    settings = yaml.safe_load((here.out / "config.yaml").read_text())
    who = Availability(**settings["availability"])
    federation = one_by_one(spec, run.algorithm, clients, who, least=least)
    federation.transport = AsRecorded(federation.transport, here.rounds())
    state = run.algorithm.initial_state(Randomness(int(spec.config["seed"])))
    lines = []
    for number, _ in enumerate(here.rounds()):
        state, report = federation.run_round(state, number)
        lines.append(json.loads(json.dumps(report.line())))
    return state, lines, federation


@dataclass
class AsRecorded:
    """A transport without the updates that a run had not, by the reasons in its log."""

    whole: Transport
    rounds: Sequence[Mapping[str, Any]]
    _seen: set[tuple[int, str]] = field(default_factory=set)

    def deliver(self, task: Task, message: object, members: Sequence[Member]) -> Iterator[Reply]:
        missing = self._missing(task)
        there = [member for member in members if member.id not in missing]
        replies = iter(self.whole.deliver(task, message, there))
        for member in members:
            if member.id in missing:
                yield Reply(member.id, missing[member.id])
            else:
                yield next(replies)

    def _missing(self, task: Task) -> dict[int, RefusedUpdateError]:
        found: dict[int, RefusedUpdateError] = {}
        line, which = self.rounds[task.round], (task.round, task.exchange)
        for key, kind in (("refused", RefusedUpdateError), ("absent", AbsentClientError)):
            for client, reasons in line.get(key, {}).items():
                own = [why for why in reasons if why.startswith(f"{task.exchange}: ")]
                if own:
                    found[int(client)] = kind(own[0].partition(": ")[2])
        # Which of two exchanges of one name it was, nobody has written down.
        assert not (found and which in self._seen)
        self._seen.add(which)
        return found


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Every tensor, to the last bit."""
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
