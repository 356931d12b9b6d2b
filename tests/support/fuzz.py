"""Anything that may arrive: tensors and bytes, and a run in which one client sends it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hypothesis import settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from ccfcpp.core.config import RunConfig
from ccfcpp.deployment.link.messages import Request, Response
from ccfcpp.deployment.link.packet import Packet, Undelivered
from ccfcpp.deployment.server.channel import Channel
from ccfcpp.deployment.server.enrolling import enrol
from ccfcpp.deployment.server.run import DeployedRun
from ccfcpp.engine.client import Client
from ccfcpp.engine.federation import RoundReport
from ccfcpp.engine.payload import pack
from tests.support.deployment import AT_ONCE, RUN, Grid, worker_of

CLASSES = [str(number) for number in range(10)]


def examples(number: int) -> settings:
    """So many examples, and twenty times as many in hypothesis' profile for the night."""
    usual = settings.get_profile("ccfcpp").max_examples
    return settings(max_examples=number * settings().max_examples // usual)


# --- tensors ------------------------------------------------------------------------------------

EVERY_DTYPE = sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str)
"""Also those in which nothing can be computed."""


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros, also of a type that has no zero."""
    return torch.zeros((*shape, dtype.itemsize), dtype=torch.uint8).view(dtype)[..., 0]


def _travels(dtype: torch.dtype) -> bool:
    try:
        return load(save({"x": empty([2], dtype)}))["x"].dtype == dtype
    except Exception:  # whatever PyTorch or safetensors do with what they do not know
        return False


DTYPES = [dtype for dtype in EVERY_DTYPE if _travels(dtype)]
"""Those that safetensors carries."""

_LENGTHS = st.sampled_from([0, 1, 2, 3, 8, 64])
_VALUES = st.sampled_from(
    [
        *(float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 0.5),
        *(1e15, 1e30, 3e38, 1e300, 1.7e308, 2.0**62),
    ]
)


tensors = st.builds(empty, st.lists(_LENGTHS, max_size=4), st.sampled_from(DTYPES))


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The same numbers in another type, as far as there is a way."""
    try:
        return tensor.to(dtype)
    except Exception:
        return empty(tensor.shape, dtype)


def filled(tensor: Tensor, value: float, everywhere: bool) -> Tensor:
    """A copy with another value, in all places or in the first."""
    found = tensor.clone(memory_format=torch.contiguous_format)
    place = found if everywhere else found.view(-1)[:1]
    try:
        if not tensor.is_floating_point():
            value = max(-(2.0**62), min(2.0**62, value)) if value == value else -1
        place.fill_(value if tensor.is_floating_point() else int(value))
    except Exception:
        return tensor
    return found


RESHAPED: dict[str, Callable[[Tensor], Tensor]] = {
    "an axis more": lambda t: t.unsqueeze(0),
    "no axis": lambda t: (
        t.flatten()[:1].double().sum().to(t.dtype) if t.dtype.is_floating_point else t.flatten()
    ),
    "no row": lambda t: t[:0] if t.ndim else t.reshape(1)[:0],
    "a row less": lambda t: t[1:] if t.ndim else t,
    "a row twice": lambda t: torch.cat([t, t[:1]]) if t.ndim else t.reshape(1),
    "many rows": lambda t: t[:1].expand(5000, *t.shape[1:]) if t.ndim and len(t) else t,
    "turned": lambda t: t.transpose(0, -1) if t.ndim > 1 else t,
}

Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """One or two things that are done to an honest update; names are drawn by their place."""
    number = draw(st.integers(1, 2))
    steps = [(draw(st.integers(0, 10**6)), draw(_steps)) for _ in range(number)]

    def changed(content: dict[str, Tensor]) -> dict[str, Tensor]:
        for place, step in steps:
            names = sorted(content)
            content = step(content, names[place % len(names)] if names else "")
        return content

    return changed


def _other(name: str, content: Mapping[str, Tensor], tensor: Tensor | None) -> dict[str, Tensor]:
    rest = {key: own for key, own in content.items() if key != name}
    return rest if tensor is None else {**rest, name: tensor}


def _on(
    change: Callable[[Tensor], Tensor],
) -> Callable[[dict[str, Tensor], str], dict[str, Tensor]]:
    return lambda content, name: (
        _other(name, content, change(content[name])) if name in content else content
    )


_extra = st.sampled_from(["", "evil", "\x1b[31m\nevil", "a" * 5000, "/", "//", "model/", "ключ"])
_steps = st.one_of(
    st.just(lambda content, name: _other(name, content, None)),
    st.builds(lambda tensor: lambda content, name: {**content, name: tensor}, tensors),
    st.builds(lambda extra, t: lambda content, name: {**content, extra: t}, _extra, tensors),
    st.builds(
        lambda extra, t: lambda content, name: {**content, f"{name}/{extra}": t}, _extra, tensors
    ),
    st.builds(lambda dtype: _on(lambda t: cast(t, dtype)), st.sampled_from(DTYPES)),
    st.builds(
        lambda value, everywhere: _on(lambda t: filled(t, value, everywhere)),
        _VALUES,
        st.booleans(),
    ),
    st.builds(lambda how: _on(RESHAPED[how]), st.sampled_from(sorted(RESHAPED))),
)


# --- bytes --------------------------------------------------------------------------------------


@st.composite
def bytes_like(draw: st.DrawFn, valid: bytes) -> bytes:
    """Any bytes, or valid ones of which a little is changed."""
    if draw(st.integers(0, 3)) == 0:
        return draw(st.binary(max_size=300))
    content = bytearray(valid)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(len(content) - 1, 0)))
        how = draw(st.sampled_from(["flip", "cut", "insert", "number", "repeat"]))
        if how == "flip" and content:
            content[place] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del content[place:]
        elif how == "insert":
            content[place:place] = draw(st.binary(max_size=20))
        elif how == "number":
            big = draw(st.sampled_from([0, 1, 2**31, 2**40, 2**63, 2**64 - 1]))
            content[place : place + 8] = big.to_bytes(8, "little")
        else:
            content[place:place] = content[: min(len(content), 5000)]
    return bytes(content)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.just("x" * 10_000),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def json_like(draw: st.DrawFn, valid: bytes, but: Sequence[str] = ()) -> bytes:
    """A JSON object of which some fields have any value, are missing, or are of nobody."""
    content = json.loads(valid)
    names = [name for name in content if name not in but]
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from([*names, "of nobody"]))
        if draw(st.booleans()):
            content[name] = draw(json_values)
        else:
            content.pop(name, None)
    return json.dumps(content).encode()


DEEP = b'{"a":' * 200_000, b"[" * 10**6, b'{"a":' + b"[" * 10**6 + b"]" * 10**6 + b"}"
"""What a parser that calls itself has no stack for."""


# --- a run --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Where:
    """An answer's place in a run."""

    client: str
    exchange: str
    round: int
    index: int


Spoil = Callable[[Packet], Packet | Undelivered]


def absent(packet: Packet) -> Undelivered:
    """Nothing comes."""
    return Undelivered("its node is gone")


@dataclass
class Tape:
    """A link that gives the answers of a run again, but for one.

    Attributes:
        grid: The clients, who are asked for what is not on the tape.
        answers: What they have answered.
        keeps: Whether it goes on recording.
        spoilt: Which answer is another one, and what is done to it.
        lives: Whether clients are asked each time, since an answer fits its own request alone.
    """

    grid: Grid
    lives: bool = False
    answers: dict[Where, Packet] = field(default_factory=dict)
    keeps: bool = True
    spoilt: tuple[Where, Spoil] | None = None
    _coming: dict[str, Packet | Undelivered] = field(default_factory=dict)

    def online(self) -> dict[str, int]:
        return self.grid.online()

    def push(self, node: int, packet: Packet, seconds: float) -> str | None:
        request = Request.read(packet.header)
        name = list(self.grid.workers)[node]
        where = Where(name, request.exchange, request.round, request.index)
        answer = self.answers.get(where)
        if answer is None or self.lives or request.kind == "hello":
            ticket = self.grid.push(node, packet, seconds)
            assert ticket is not None
            found = self.grid.pull(ticket)
            assert isinstance(found, Packet)
            answer = found
            self.grid.requests.clear()
            if self.keeps:
                self.answers[where] = answer
        header = Response.read(answer.header).model_copy(update={"nonce": request.nonce})
        answer = answer._replace(header=header.to_json())
        ticket = request.nonce
        spoilt = self.spoilt is not None and self.spoilt[0] == where
        self._coming[ticket] = self.spoilt[1](answer) if spoilt and self.spoilt else answer
        return ticket

    def pull(self, ticket: str) -> Packet | Undelivered | None:
        return self._coming.pop(ticket, None)


class Ended(NamedTuple):
    """What a run has ended with."""

    state: dict[str, Tensor]
    reports: list[RoundReport]
    converged: bool


class Target:
    """A run, recorded once, of which one answer can be another.

    Args:
        config: What is run.
        clients: With labels.
        folder: For the workers' files.
        lives: As a ``Tape`` has it.
    """

    def __init__(
        self, config: RunConfig, clients: Sequence[Client], folder: Path, lives: bool = False
    ) -> None:
        self.tape = Tape(Grid({c.name: worker_of(c, folder, CLASSES) for c in clients}), lives)
        names = list(self.tape.grid.workers)
        channel = Channel(self.tape, AT_ONCE)
        found = enrol(channel, config, names, None)
        self.experiment = DeployedRun(config, replace(found, run=RUN), channel)
        self.tape.answers.clear()
        if self.experiment.protection is not None:
            self.experiment.protection.open(folder / "privacy.jsonl", goes_on=False)
        self.whole = self.run()
        self.tape.keeps = False
        assert not any(report.refused or report.absent for report in self.whole.reports)
        self._without: dict[Where, Ended] = {}

    def places(self, client: str) -> list[Where]:
        """The answers of a client: the first and the last of each exchange."""
        own = [where for where in self.tape.answers if where.client == client]
        ends = [list({w.exchange: w for w in order}.values()) for order in (own, own[::-1])]
        return sorted(set(ends[0] + ends[1]), key=lambda where: (where.round, where.index))

    def run(self, spoilt: tuple[Where, Spoil] | None = None) -> Ended:
        """Run it, with another answer at a place."""
        self.tape.spoilt = spoilt
        experiment = self.experiment
        experiment.deployed = replace(experiment.deployed)  # which knows of nothing yet
        experiment.evaluator.deployed = experiment.deployed
        federation = experiment.federation(experiment.deployed)
        state: Any = experiment.algorithm.initial_state(experiment.randomness)
        reports = []
        for after, report in federation.run(state):
            state = after
            reports.append(report)
            experiment.evaluator.scores(report.round, state, experiment._memories(None))
        return Ended(pack(state), reports, experiment.algorithm.has_converged(state))

    def without(self, where: Where) -> Ended:
        """What it ends with where an answer does not come."""
        if where not in self._without:
            self._without[where] = self.run((where, absent))
        return self._without[where]

    def number(self, name: str) -> int:
        """A client's number."""
        return next(member.id for member in self.experiment.members if member.name == name)


def assert_survives(target: Target, where: Where, spoil: Spoil) -> str | None:
    """The run goes on, as if the client had been absent if it is refused; gives the reason."""
    found = target.run((where, spoil))
    client = target.number(where.client)
    said = found.reports[where.round].refused.get(client, [])
    reasons = [why for why in said if why.startswith(f"{where.exchange}: ")]
    # Another answer may let a system come to rest sooner or later.
    rests = found.converged or target.whole.converged
    assert rests or len(found.reports) == len(target.whole.reports)
    if not reasons:
        return None
    reason = reasons[0]
    assert reason.isprintable()
    assert len(reason) < 300, reason
    # The others are not blamed.
    assert all(set(report.refused) <= {client} for report in found.reports)
    expected = target.without(where)
    assert found.state.keys() == expected.state.keys()
    other = [n for n, t in expected.state.items() if not torch.equal(found.state[n], t)]
    assert other == []
    for report, beside in zip(found.reports, expected.reports, strict=True):
        assert report.figures == beside.figures
    return reason
