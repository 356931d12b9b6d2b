"""Write into ``docs/papers.md`` which claims of the papers hold.

    ccfcpp reproduce ccfcpp-table1 ccfcpp-figure5 --quick --json > quick.json
    python -m scripts.papers quick.json more.json

What follows the page's marker is written anew: a section for each table and figure that a file has,
with a column for each file that has it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ccfcpp.studies.reproduction.claims import Claim, count_verdicts
from ccfcpp.studies.reproduction.paper_items import ITEMS
from ccfcpp.studies.tables import as_markdown

PAGE = Path(__file__).parents[1] / "docs" / "papers.md"
MARKER = "<!-- what follows is made by scripts/papers.py -->\n"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Entry = Mapping[str, Any]
"""A table or figure, as ``ccfcpp reproduce --json`` prints it."""


@app.command()
def papers(
    files: Annotated[list[Path], typer.Argument(help="What ccfcpp reproduce --json has printed.")],
    page: Annotated[Path, typer.Option(help="The page.")] = PAGE,
) -> None:
    """Write the page anew below its marker."""
    entries = [entry for file in files for entry in json.loads(file.read_text())["items"]]
    above, _, _ = page.read_text().partition(MARKER)
    page.write_text(f"{above}{MARKER}\n{describe(entries)}")


def describe(entries: Sequence[Entry]) -> str:
    """Return a table of counts, and a section for each table and figure of the papers."""
    groups = [[entry for entry in entries if entry["item"] == name] for name in ITEMS]
    counts = [count_statements(entry) for group in groups for entry in group]
    return "\n".join([as_markdown(counts), *(describe_item(group) for group in groups if group)])


def count_statements(entry: Entry) -> dict[str, str]:
    """Return for how many of an item's statements all, most or fewer of our values agree."""
    claims = [Claim(**claim) for claim in entry["claims"]]
    stated = [claim for claim in claims if claim.stated and claim.of]
    whole, mostly, rest = count_verdicts(stated)
    return {
        "table or figure": entry["title"],
        "ours": entry["scale"],
        "statements": str(len(stated)),
        "hold": str(whole),
        "in most places": str(mostly),
        "in half or fewer": str(rest),
    }


def describe_item(entries: Sequence[Entry]) -> str:
    """Return a section on one table or figure, with a column for each of the ``entries``."""
    rows: dict[str, dict[str, str]] = {}
    for entry in entries:
        for claim in entry["claims"]:
            text = claim["text"] if claim["stated"] else f"*{claim['text']}*"
            row = rows.setdefault(text, {"claim": text, "the paper": ""})
            if claim["paper"] is not None:
                row["the paper"] = "{} of {}".format(*claim["paper"])
            row[entry["scale"]] = f"{claim['held']} of {claim['of']}" if claim["of"] else ""
    commands = "\n".join(entry["command"] for entry in entries)
    table = as_markdown([*rows.values()])
    return f"### {entries[0]['title']}\n\n{table}\n```sh\n{commands}\n```\n"


if __name__ == "__main__":
    app()
