"""A federation in a storm: real processes over TLS, to which a seeded series of faults happens."""

import heapq
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.clocks import BESIDE, FILE
from tests.support.processes import MOST_SECONDS, Place, bounded

HOUR = 3600.0
_AHEAD = 3 * HOUR, -5 * HOUR, 40.0, -40.0
"""By how many seconds a clock jumps."""
WRONG_BYTES = "flipped", "garbage", "half", "nothing", "nan", "shape", "huge"
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
        self.clock = folder / "clock"
        self.weather = weather

    def begin(self, *words: object) -> None:
        """Start the server; ``--resume`` goes on with the run."""
        path = os.pathsep.join([str(BESIDE), str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        clock = {FILE: str(self.clock), "PYTHONPATH": path}
        limit = f"{self.weather.limit:g}"
        self.serve("--limit", limit, *words, module="tests.support.jumping", environment=clock)

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

    Attributes:
        happened: How often each kind of fault has happened.
    """

    sea: Sea
    words: Sequence[object]
    happened: Counter[str] = field(default_factory=Counter)
    _later: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _away: set[str] = field(default_factory=set)
    _asked: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.source = random.Random(self.sea.weather.seed + 1)  # noqa: S311

    def blow(self) -> None:
        """Do everything that is planned, and wait for the end of the run."""
        plan = iter(self.sea.weather.plan())
        due = next(plan, None)
        until = time.monotonic() + MOST_SECONDS
        rounds = 0
        while self.sea.started["serve"].poll() is None or self._later:
            if (now := len(self.sea.rounds())) != rounds:
                rounds, until = now, time.monotonic() + MOST_SECONDS
            assert time.monotonic() < until, self.sea.said("serve")[-2000:]
            while self._later and self._later[0][0] <= time.monotonic():
                heapq.heappop(self._later)[2]()
            self._note()
            if due is not None and rounds >= due[0] and self._do(due[1]):
                due = next(plan, None)
            time.sleep(0.05)
        self._note()
        assert due is None, f"{due} and what follows has not happened"

    def _do(self, kind: str) -> bool:
        """Let a fault happen; whether it could."""
        if self.sea.started["serve"].poll() is not None:
            return False
        if kind.startswith("the "):
            return self._to_the_server(kind)
        free = [n for n in self.sea.weather.names if n not in self._away and n not in self._asked]
        if len(free) * 2 < self.sea.weather.clients:
            return False
        name = self.source.choice(free)
        if kind == "client killed":
            self._client_is_killed(name)
        elif kind == "client stalls":
            self._client_stalls(name)
        else:
            word = {
                "late": f"late {self.sea.weather.limit + self.source.uniform(1, 5):.1f}",
                "clock jumps": f"clock {self.source.choice(_AHEAD)}",
                "wrong bytes": self.source.choice(WRONG_BYTES),
            }.get(kind, kind)
            self._asked[name] = kind
            self.sea.ask(name, word)
        return True

    def _to_the_server(self, kind: str) -> bool:
        server = self.sea.started["serve"]
        if "server" in self._away:
            return False
        if kind == "the gate is killed" and not self.sea.kill_gate():
            return False
        self.happened[kind] += 1
        if kind == "the server is killed":
            server.send_signal(signal.SIGKILL)
            server.wait(10)
            self.sea.begin(*self.words, "--resume")
        elif kind == "the server stalls":
            self._away.add("server")
            server.send_signal(signal.SIGSTOP)
            self._after(self.source.uniform(2, 6), lambda: self._server_goes_on(server))
        elif kind == "the server's clock jumps":
            self.sea.clock.write_text(str(self.source.choice(_AHEAD)))
        return True

    def _server_goes_on(self, server: "subprocess.Popen[bytes]") -> None:
        server.send_signal(signal.SIGCONT)
        self._away.discard("server")

    def _client_is_killed(self, name: str) -> None:
        self.happened["client killed"] += 1
        self._away.add(name)
        self.sea.signal(name, signal.SIGKILL)

        def back() -> None:
            self.sea.come(name)
            self._away.discard(name)

        self._after(self.source.uniform(0.2, 4), back)

    def _client_stalls(self, name: str) -> None:
        self.happened["client stalls"] += 1
        self._away.add(name)
        self.sea.signal(name, signal.SIGSTOP)

        def back() -> None:
            self.sea.signal(name, signal.SIGCONT)
            self._away.discard(name)

        self._after(self.source.uniform(1, 20), back)

    def _after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, id(what), what))

    def _note(self) -> None:
        """Count the faults that clients were asked for and that have happened."""
        for name in list(self._asked):
            if not (self.sea.folder / f"{name}.fault").exists():
                self.happened[self._asked.pop(name)] += 1


@contextmanager
def sea(folder: Path, weather: Weather) -> Iterator[Sea]:
    """A federation of which nothing is left behind."""
    with bounded(Sea(folder, weather)) as here:
        yield here
