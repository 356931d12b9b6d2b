"""A federation in a storm: real processes over TLS, to which a seeded series of faults happens."""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.clocks import BESIDE, FILE
from tests.support.jumping import ROUNDS
from tests.support.processes import MOST_SECONDS, Place, bounded

HOUR = 3600.0
_AHEAD = 3 * HOUR, -5 * HOUR, 40.0, -40.0
"""By how many seconds a clock jumps."""
WRONG_BYTES = "flipped", "garbage", "half", "nothing", "nan", "shape", "huge"
_OF_UPDATES = "wrong bytes", "repeat", "twice", "late", "clock jumps"
"""What happens with the next update that a client sends."""
REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Weather:
    """How many clients there are, how long it lasts, and how often what happens.

    Attributes:
        clients: How many.
        steps: Of Fed-SCAN, each a round of a few exchanges.
        faults: How often each kind happens.
        limit: What a client has for an exchange, in seconds.
        share: How many of the clients are asked in a round.
        seed: Of the storm.
    """

    clients: int
    steps: int
    faults: dict[str, int]
    limit: float
    share: float = 1.0
    seed: int = 0

    @property
    def names(self) -> list[str]:
        """The clients'."""
        return [f"c{number:02}" for number in range(self.clients)]

    @property
    def sizes(self) -> list[int]:
        """How many images each client has."""
        return [20 + number % 13 for number in range(self.clients)]

    def plan(self) -> list[tuple[int, str]]:
        """After which round what happens; the first two rounds and the last two are quiet."""
        kinds = [kind for kind, times in self.faults.items() for _ in range(times)]
        random.Random(self.seed).shuffle(kinds)  # noqa: S311
        span = self.steps - 4
        return [(2 + number * span // len(kinds), kind) for number, kind in enumerate(kinds)]


class Sea(Place):
    """A server whose clock can jump, and a crowd of clients.

    Attributes:
        crowd: The process of which each client is a copy.
    """

    def __init__(self, folder: Path, weather: Weather) -> None:
        super().__init__(folder, *weather.names, sizes=weather.sizes)
        self.clock, self._allowed = folder / "clock", folder / "allowed"
        self.weather = weather

    def begin(self, *words: object) -> None:
        """Start the server; ``--resume`` goes on with the run."""
        path = os.pathsep.join([str(BESIDE), str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        files = {FILE: str(self.clock), ROUNDS: str(self._allowed), "PYTHONPATH": path}
        times = "--limit", f"{self.weather.limit:g}", "--linger", f"{MOST_SECONDS:g}"
        self.serve(*times, *words, module="tests.support.jumping", environment=files)

    def allow(self, rounds: int) -> None:
        """Let so many rounds begin, in all."""
        self._allowed.write_text(str(rounds))

    def gather(self) -> None:
        """Start all clients."""
        address = f"127.0.0.1:{self.port}"
        self.crowd = self.start(
            "crowd", "tests.support.crowd", self.folder, address, reads=subprocess.PIPE
        )
        self.wait_for("ready", "crowd")
        for name in self.weather.names:
            self.come(name)

    def come(self, name: str) -> None:
        """Start a client."""
        assert self.crowd.stdin is not None
        self.crowd.stdin.write(f"{name}\n".encode())
        self.crowd.stdin.flush()

    def wait_for_models(self) -> None:
        """Until each client has assigned its images with the model of the end, maybe late."""
        until = time.monotonic() + MOST_SECONDS
        for name in self.weather.names:
            found = self.keys / "clients" / f"{name}.state" / "found.npz"
            while not found.exists():
                assert time.monotonic() < until, f"{name} has no model"
                time.sleep(0.1)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a client."""
        with suppress(ProcessLookupError):
            os.kill(int((self.folder / f"{name}.pid").read_text()), number)

    def ask(self, name: str, what: str) -> None:
        """Let something go wrong with the next update of a client."""
        (self.folder / f"{name}.fault").write_text(what)


@dataclass
class Storm:
    """What happens to a federation, until its run is over.

    A round begins when the one before it is over and all is asked for that is to happen by then. So
    it does not matter how fast the machine is.

    Attributes:
        happened: How often each kind of fault has happened.
    """

    sea: Sea
    happened: Counter[str] = field(default_factory=Counter)
    _silent: dict[str, int] = field(default_factory=dict)
    """Clients that have been stopped or killed, and in which round."""
    _asked: dict[str, str] = field(default_factory=dict)
    _rounds: int = 0
    _until: float = field(default_factory=lambda: time.monotonic() + MOST_SECONDS)

    def __post_init__(self) -> None:
        self.source = random.Random(self.sea.weather.seed + 1)  # noqa: S311

    def blow(self) -> None:
        """Do everything that is planned, and wait for the end of the run."""
        plan, left = self.sea.weather.plan(), list[str]()
        for number in range(self.sea.weather.steps):
            self._wait(lambda number=number: self._rounds >= number)  # type: ignore[misc]
            kinds = left + [kind for due, kind in plan if due == number]
            left = [kind for kind in kinds if kind in _OF_UPDATES and not self._ask(kind)]
            self.sea.allow(number + 1)
            for kind in kinds:
                if kind not in _OF_UPDATES:
                    time.sleep(self.source.uniform(0, 0.5))
                    left += [] if self._do(kind) else [kind]
        self._wait(lambda: self.sea.started["serve"].poll() is not None)
        self._look()
        assert not left

    def _wait(self, is_over: Callable[[], bool]) -> None:
        """Wait for something, for as long as rounds come to their ends."""
        self._look()
        while not is_over():
            assert time.monotonic() < self._until, self.sea.said("serve")[-2000:]
            time.sleep(0.02)
            self._look()

    def _look(self) -> None:
        """Count the faults of updates that have happened, and let clients go on after a round."""
        if (now := len(self.sea.rounds())) != self._rounds:
            self._rounds, self._until = now, time.monotonic() + MOST_SECONDS
        for name in list(self._asked):
            if not (self.sea.folder / f"{name}.fault").exists():
                self.happened[self._asked.pop(name)] += 1
        for name in [name for name, began in self._silent.items() if began < self._rounds]:
            self.sea.signal(name, signal.SIGCONT)
            del self._silent[name]

    def _free(self) -> str | None:
        """A client to which nothing happens; None while these are less than half of all."""
        names = self.sea.weather.names
        free = [name for name in names if name not in self._silent and name not in self._asked]
        return self.source.choice(free) if 2 * len(free) >= len(names) else None

    def _ask(self, kind: str) -> bool:
        """Let something go wrong with the next update of a client; whether one was free."""
        if (name := self._free()) is None:
            return False
        word = {
            "late": f"late {self.sea.weather.limit + self.source.uniform(0.2, 1):.1f}",
            "clock jumps": f"clock {self.source.choice(_AHEAD)}",
            "wrong bytes": self.source.choice(WRONG_BYTES),
        }.get(kind, kind)
        self._asked[name] = kind
        self.sea.ask(name, word)
        return True

    def _do(self, kind: str) -> bool:
        """Let something happen to a process; whether it could."""
        assert self.sea.started["serve"].poll() is None, self.sea.said("serve")[-2000:]
        if kind.startswith("the "):
            return self._to_the_server(kind)
        if (name := self._free()) is None:
            return False
        self.happened[kind] += 1
        self._silent[name] = self._rounds
        self.sea.signal(name, signal.SIGKILL if kind == "client killed" else signal.SIGSTOP)
        if kind == "client killed":
            self.sea.come(name)
        return True

    def _to_the_server(self, kind: str) -> bool:
        server = self.sea.started["serve"]
        if kind == "the gate is killed" and not self.sea.kill_gate():
            return False
        self.happened[kind] += 1
        if kind == "the server is killed":
            server.send_signal(signal.SIGKILL)
            server.wait(10)
            self.sea.begin("--resume")
        elif kind == "the server stalls":
            server.send_signal(signal.SIGSTOP)
            time.sleep(self.source.uniform(1, 3))
            server.send_signal(signal.SIGCONT)
        elif kind == "the server's clock jumps":
            self.sea.clock.write_text(str(self.source.choice(_AHEAD)))
        return True


@contextmanager
def sea(folder: Path, weather: Weather) -> Iterator[Sea]:
    """A federation of which nothing is left behind."""
    with bounded(Sea(folder, weather)) as here:
        yield here
