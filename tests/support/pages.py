"""The code that a page of the documentation shows."""

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        language: What stands after the fence.
        text: The lines between the fences.
    """

    language: str
    text: str


def blocks(page: str) -> list[Block]:
    """The blocks of `docs/page`, in their order."""
    return blocks_of((DOCS / page).read_text())


def blocks_of(text: str) -> list[Block]:
    """The blocks of a page's text, in their order."""
    return [Block(*found) for found in _BLOCK.findall(text)]
