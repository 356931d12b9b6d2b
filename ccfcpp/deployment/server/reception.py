"""Who has answered the server's greeting, and who may take part in a run."""

from collections import Counter
from collections.abc import Callable, Sequence

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.link.messages import MessageError, Request, Response
from ccfcpp.deployment.link.packet import Packet
from ccfcpp.deployment.link.run_spec import Facts

_MOST_SAMPLES = 10**7
_MOST_CLASSES, _MOST_LETTERS = 2000, 2**18
"""What a client may claim: images, and names of classes; and the letters of all names."""
Say = Callable[[str, str], None]
"""Called with a client's name and a line about it."""


class Reception:
    """Who has answered the greeting, and who may take part.

    What a client says of its images is checked here: it must not keep the others from a run.

    Args:
        names: All clients that are admitted.
        least: How many must take part; None: all that can.
        say: Called with a client's name and a line about it.
    """

    def __init__(self, names: Sequence[str], least: int | None, say: Say) -> None:
        self.names = names
        self.least = least
        self.say = say
        self.found: dict[str, Facts] = {}
        self.refused: set[str] = set()

    @property
    def waiting(self) -> list[str]:
        """The clients that have not answered."""
        return [n for n in self.names if n not in self.found and n not in self.refused]

    @property
    def is_complete(self) -> bool:
        """Whether the run can begin.

        Raises:
            UsageError: It never can: too many clients cannot take part.
        """
        agreeing = len(self._agreeing())
        wanted = self.least or max(1, len(self.names) - len(self.refused))
        if agreeing >= wanted or (not self.waiting and self.least is None and agreeing):
            return True
        if len(self.names) - len(self.refused) < wanted or not self.waiting:
            raise UsageError(self._why_not(wanted))
        return False

    def take(self, name: str, request: Request, packet: Packet) -> None:
        """Note the answer of a client."""
        try:
            facts = _facts(request, packet)
            self._check_classes(facts)
        except MessageError as error:
            self.refuse(name, str(error))
        else:
            self.found[name] = facts
            self.say(name, f"{facts.samples:,} images")

    def refuse(self, name: str, reason: str) -> None:
        """Leave a client out."""
        self.found.pop(name, None)
        self.refused.add(name)
        self.say(name, f"cannot take part: {reason}")

    def admitted(self) -> dict[str, Facts]:
        """Return the facts of those that take part, in the order of names; refuse all others."""
        agreeing = self._agreeing()
        for name in [name for name in self.found if name not in agreeing]:
            others = next(iter(agreeing.values())).image_shape
            self.refuse(
                name,
                f"its images are {self.found[name].image_shape}, and those of most clients "
                f"{others}: give data.image_size, and the same number of channels",
            )
        return {name: agreeing[name] for name in self.names if name in agreeing}

    def _agreeing(self) -> dict[str, Facts]:
        """Return the facts of the clients whose images have the shape that most have."""
        shapes = Counter(facts.image_shape for facts in self.found.values()).most_common(2)
        if not shapes or (len(shapes) == 2 and shapes[0][1] == shapes[1][1]):
            return {}
        return {n: facts for n, facts in self.found.items() if facts.image_shape == shapes[0][0]}

    def _check_classes(self, facts: Facts) -> None:
        known = {name for each in self.found.values() for name in each.classes}
        together = known.union(facts.classes)
        if len(facts.classes) > _MOST_CLASSES or sum(map(len, together)) > _MOST_LETTERS:
            raise MessageError(
                f"it names {len(facts.classes):,} classes; a client may name {_MOST_CLASSES:,}, "
                f"and all together may have {_MOST_LETTERS:,} letters"
            )

    def _why_not(self, wanted: int) -> str:
        shapes = {facts.image_shape: name for name, facts in self.found.items()}
        if len(shapes) > 1:
            (one, first), (other, second), *_ = shapes.items()
            return (
                f"the images of {first} are {one} and those of {second} are {other}: give "
                "data.image_size, and let all clients have the same number of channels"
            )
        return (
            f"{len(self.refused)} of {len(self.names)} clients cannot take part, and the run needs "
            f"{wanted}: see their reasons above"
        )


def _facts(request: Request, packet: Packet) -> Facts:
    response = Response.to(request, packet.header)
    if response.status != "done" or response.facts is None:
        raise MessageError(response.why)
    samples = response.facts.samples
    if samples == 0:
        raise MessageError("it holds no image")
    if samples > _MOST_SAMPLES:
        raise MessageError(f"it claims {samples:,} images, over {_MOST_SAMPLES:,}")
    return response.facts
