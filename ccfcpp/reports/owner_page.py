"""The page for the owner of a client: images by cluster, files left out, and data sent."""

import base64
from collections.abc import Sequence
from pathlib import Path

from ccfcpp.core.units import bytes_in_words, format_count
from ccfcpp.core.units import printable_name as as_line
from ccfcpp.deployment.client.audit import (
    DELTA,
    AuditEntry,
    AuditLog,
    group_by_run,
    refusal_reasons,
    run_facts,
)
from ccfcpp.deployment.client.privacy_spent import Spending
from ccfcpp.deployment.client.results import ClientResults, Row, typical, unsure
from ccfcpp.reports.page import TEMPLATES
from ccfcpp.reports.profile import distinctions, profile_table
from ccfcpp.runs.contact_sheets import as_png, contact_sheet

_MOST_NAMES, _MOST_SKIPPED = 500, 200


def owner_page(state: Path) -> str:
    """Render a client's state folder, for its owner, as one HTML file without scripts.

    Raises:
        UsageError: The folder is no client's state, or a file of it is damaged.
    """
    results, log, spending = ClientResults.read(state), AuditLog(state), Spending(state)
    entries = list(log.read())
    cost, unit = spending.epsilon(DELTA), _unit(results)
    tiles = {
        f"{unit}s": f"{len(results.rows):,}",
        "clusters": str(len({row["cluster"] for row in results.rows})),
        "files left out": f"{len(results.skipped):,}",
        "sent in all runs": bytes_in_words(sum(entry.bytes for entry in entries)),
    } | ({"cost in privacy": f"ε = {cost:.3g}"} if cost else {})
    return TEMPLATES.get_template("owner.html").render(
        title=f"{state.resolve().stem}: its {unit}s by cluster",
        unit=unit,
        folder=state.name,
        notes=[
            *([] if results.rows else ["No run of clustering has ended at this client yet."]),
            *map(as_line, log.damaged),
        ],
        tiles=tiles,
        clusters=_describe_clusters(results),
        described={
            "distinctions": distinctions(results.profile),
            "profile": profile_table(results.profile),
        },
        skipped=[_printable(row) for row in results.skipped[:_MOST_SKIPPED]],
        more_skipped=max(0, len(results.skipped) - _MOST_SKIPPED),
        runs=[_describe_sent(own, spending) for own in group_by_run(entries)],
    )


def _describe_clusters(results: ClientResults) -> list[dict[str, object]]:
    names: dict[int, list[str]] = {}
    for row in results.rows:
        names.setdefault(int(str(row["cluster"])), []).append(_name(row))
    near, far = typical(results.rows), unsure(results.rows)
    return [
        {
            "number": cluster,
            "size": format_count(len(own), _unit(results)),
            "share": f"{len(own) / len(results.rows):.0%}",
            "ends": {
                "The most typical": [_tile(results, number) for number in near.get(cluster, ())],
                "The least sure": [_tile(results, number) for number in far.get(cluster, ())],
            },
            "names": own[:_MOST_NAMES],
            "more": max(0, len(own) - _MOST_NAMES),
        }
        for cluster, own in sorted(names.items())
    ]


def _unit(results: ClientResults) -> str:
    """Return what is clustered: ``row`` or ``text``, as the table's first column is called."""
    first = next(iter(results.rows[0]), "") if results.rows else ""
    return first if first in ("row", "text") else "image"


def _tile(results: ClientResults, number: int) -> dict[str, str]:
    row, address = results.rows[number], ""
    if (picture := results.pictures.get(number)) is not None:
        png = as_png(contact_sheet(picture[None], 1))
        address = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    facts = [
        f"{key} {float(str(row[key])):.3g}" for key in ("probability", "distance") if key in row
    ]
    return {"name": _name(row), "facts": ", ".join(facts), "picture": address}


def _name(row: Row) -> str:
    return as_line(str(row.get("file", row.get("row", ""))))


def _printable(row: Row) -> dict[str, str]:
    return {str(key): as_line(str(value)) for key, value in row.items()}


def _describe_sent(entries: Sequence[AuditEntry], spending: Spending) -> dict[str, object]:
    """Describe what was sent in a run: facts, a row for each kind of request, and refusals."""
    asked: dict[str, list[AuditEntry]] = {}
    for entry in entries:
        asked.setdefault(entry.asked, []).append(entry)
    rows = [
        {
            "asked for": as_line("facts of the images" if name == "hello" else name),
            "times": f"{len(own):,}",
            "sent": bytes_in_words(sum(entry.bytes for entry in own)),
            "first": own[0].time,
            "last": own[-1].time,
        }
        for name, own in asked.items()
    ]
    return {
        "heading": as_line(f"{entries[0].method}, {entries[0].time[:10]}"),
        "facts": _printable(run_facts(entries, spending)),
        "rows": rows,
        "refused": [as_line(reason) for reason in refusal_reasons(entries)],
    }
