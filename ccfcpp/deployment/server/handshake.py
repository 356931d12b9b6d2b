"""Before a run: who is there, and what they hold."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from ccfcpp.core.config import Tree
from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.link.messages import MessageError, Request, Response, new_token, shown
from ccfcpp.deployment.link.packet import Packet
from ccfcpp.deployment.link.run_spec import Facts, RunSpec
from ccfcpp.deployment.server.transport import Link, Timeouts, Undelivered
from ccfcpp.engine.client import Member

_OF_THE_SERVER = ("dataset", "partition", "device", "tensorboard", "availability")
"""Settings that say nothing to a client, such as paths of the server's."""

Say = Callable[[str, str], None]
"""Takes a client's name, and what there is to say of it."""


def first_spec(command: str, config: Tree) -> RunSpec:
    """What clients are told before anything is known of their images.

    Args:
        command: ``cluster`` or ``classify``.
        config: The run's configuration, as JSON values.
    """
    told = {key: value for key, value in config.items() if key not in _OF_THE_SERVER}
    data = {key: value for key, value in told.get("data", {}).items() if key != "root"}
    return RunSpec.model_validate({"command": command, "config": {**told, "data": data}})


def collect_facts(
    link: Link,
    names: Sequence[str],
    spec: RunSpec,
    run: str,
    least: int,
    timeouts: Timeouts,
    pause: Callable[[float], None] = time.sleep,
    say: Say = lambda name, what: None,
) -> tuple[dict[str, Facts], float]:
    """Ask the clients of a roster for the facts of their images, as they come online.

    Args:
        link: What carries packets.
        names: The clients that are expected.
        spec: What they are told.
        run: The run's token.
        least: How many of them must have answered.
        timeouts: How long each answer may take. For clients to come there is no limit.
        pause: Called while nothing comes; it may raise.
        say: Takes what there is to say of a client.

    Returns:
        The facts by name, in the order of names; and how many seconds the quickest answer took.

    Raises:
        UsageError: So many clients have refused that too few are left.
    """
    asked: dict[str, tuple[Request, str, float]] = {}
    quickest = timeouts.answer
    found: dict[str, Facts] = {}
    refused: set[str] = set()
    while len(found) < least:
        if len(names) - len(refused) < least:
            raise UsageError(
                f"{len(refused)} of {len(names)} clients cannot take part, and the run needs "
                f"{least}: see their reasons above"
            )
        online = link.online()
        for name in names:
            if name in asked or name in found or name in refused or name not in online:
                continue
            order = Request(kind="hello", run=run, nonce=new_token(), spec=spec)
            ticket = link.push(online[name], Packet(order.written()), timeouts.life)
            if ticket is not None:
                asked[name] = order, ticket, time.monotonic()
        for name, (order, ticket, since) in list(asked.items()):
            answer, seconds = link.pull(ticket), time.monotonic() - since
            if answer is None and seconds < timeouts.answer:
                continue
            del asked[name]
            # Who did not answer is asked again.
            if answer is None or isinstance(answer, Undelivered):
                continue
            try:
                found[name] = _facts(order, answer)
                quickest = min(quickest, seconds)
                say(name, f"{found[name].samples:,} images")
            except MessageError as error:
                refused.add(name)
                say(name, f"cannot take part: {error}")
        if len(found) < least:
            pause(timeouts.poll)
    return {name: found[name] for name in names if name in found}, quickest


def _facts(order: Request, packet: Packet) -> Facts:
    answer = Response.read(packet.header)
    if answer.nonce != order.nonce:
        raise MessageError("it answers another order")
    if answer.status != "done" or answer.facts is None:
        raise MessageError(shown(answer.reason) or "its work failed: its own log says why")
    if answer.facts.samples == 0:
        raise MessageError("it holds no image")
    return answer.facts


def members_of(facts: Mapping[str, Facts], numbers: Mapping[str, int]) -> list[Member]:
    """What the engine knows of clients; ``numbers`` are those of the roster."""
    return [Member(numbers[name], name, known.samples) for name, known in facts.items()]


def full_spec(spec: RunSpec, facts: Iterable[Facts], clusters: int | None) -> RunSpec:
    """What clients are told in the run.

    Args:
        spec: What they were told first.
        facts: What each has said.
        clusters: k; the number of classes where it is None. In classification it means nothing.

    Raises:
        UsageError: Their images differ in shape, or k is not known.
    """
    known = list(facts)
    shapes = sorted({each.image_shape for each in known})
    if len(shapes) != 1:
        raise UsageError(
            f"the clients' images are {shapes[0]} and {shapes[1]}: give data.image_size, and let "
            "all clients have the same number of channels"
        )
    classes = sorted({name for each in known for name in each.classes})
    wanted = 0 if spec.command == "classify" else clusters or len(classes)
    if spec.command == "cluster" and wanted == 0:
        raise UsageError("clusters is not given and no client names its classes: give --clusters")
    samples = sum(each.samples for each in known)
    told = {
        "image_shape": shapes[0],
        "classes": tuple(classes),
        "clusters": wanted,
        "samples": samples,
        "clients": len(known),
    }
    return spec.model_copy(update=told)
