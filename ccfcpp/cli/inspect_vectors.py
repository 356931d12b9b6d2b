"""Description of vectors for ``ccfcpp inspect``: rows of tables, and embeddings."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ccfcpp.cli.terminal import print_facts, print_rows
from ccfcpp.clustering.auto_settings import settings_for
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config import VectorsConfig, join_names
from ccfcpp.core.errors import UsageError
from ccfcpp.core.name_matching import canonical
from ccfcpp.core.units import counts_in_words, format_count, list_names, printable_name

if TYPE_CHECKING:
    from ccfcpp.data.vectors import VectorData

_MOST_LISTED = 20
_MOST_WORDS = 4
_MISWRITTEN = {
    re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+"): "numbers with a decimal point",
    re.compile(r"\d{1,2}[./]\d{1,2}[./](\d\d){1,2}"): "dates as 2026-01-31",
}
"""Numbers and dates that are read as text, and how to write them."""
_SCALES = {
    "none": "none: columns stay as they are",
    "standard": "standard: each column to mean 0 and variance 1 over all clients",
    "unit": "unit: each row to length 1",
}


def read_leniently(path: str, config: VectorsConfig) -> tuple[VectorData, VectorsConfig, str]:
    """Read vectors as a run does, but accept missing values and columns of text.

    Returns:
        The vectors, NaN for a missing value; how they were read; and the reason why a run would
        refuse them, or "".

    Raises:
        UsageError: They cannot be read.
    """
    import numpy as np

    from ccfcpp.clustering.vector_checks import check_range
    from ccfcpp.data.categories import are_dates
    from ccfcpp.data.open import open_dataset
    from ccfcpp.data.tables import text_columns
    from ccfcpp.data.vectors import VectorData

    def read(vectors: VectorsConfig) -> VectorData:
        data = open_dataset(path, vectors=vectors, folders_are_clients=True)
        assert isinstance(data, VectorData)
        return data

    try:
        data = read(config)
        check_range(config, data.vectors)
        return data, config, ""
    except UsageError as error:
        named = {*map(canonical, config.categories)}
        texts = text_columns(Path(path).expanduser(), config)
        changes: dict[str, Any] = {"missing": "mean", "categories": texts}
        data = read(config.model_copy(update=changes))
        codes = {name: np.unique(data.vectors[:, data.columns.index(name)]) for name in texts}
        words = {n: {data.texts[c] for c in own.tolist() if c == c} for n, own in codes.items()}
        dates = [name for name in texts if name not in named and are_dates(words[name])]
        changes["categories"] = tuple(name for name in texts if name not in dates)
        config = config.model_copy(update=changes | {"dates": (*config.dates, *dates)})
        return read(config) if dates else data, config, str(error)


def describe_vectors(
    data: VectorData, read_as: VectorsConfig, config: ClusterConfig
) -> dict[str, Any]:
    """Describe vectors by JSON values: each column's kind and range, scaling, classes, clients.

    Args:
        data: The vectors.
        read_as: Which of their columns hold categories and dates.
        config: Configuration of a run on them.
    """
    import numpy as np

    vectors = data.vectors.double().numpy()
    names = data.columns or tuple(map(str, range(vectors.shape[1])))
    suited = settings_for(len(data), vectors.shape[1:], config.method).get("vectors", {})
    dates = {*map(canonical, read_as.dates)}
    plain = len(names) - len(read_as.categories)
    lengths = np.sqrt(np.nansum(vectors[:, :plain] ** 2, axis=1))
    columns = {
        name: _column(values, name in dates) if n < plain else _category(values, data.texts)
        for n, (name, values) in enumerate(zip(names, vectors.T, strict=True))
    }
    return {
        "rows": len(data),
        "columns": columns,
        "shortest": float(lengths.min()),
        "longest": float(lengths.max()),
        "scale": config.vectors.scale,
        "components": config.vectors.components or suited.get("components"),
        "classes": data.class_sizes,
        "clients": data.client_sizes,
        "notes": list(data.notes),
        **_advice(read_as, config.vectors, columns, len(data)),
    }


def _advice(
    read_as: VectorsConfig, given: VectorsConfig, columns: Mapping[str, Any], rows: int
) -> dict[str, Any]:
    """Return flags that name all columns of text as they were read, and columns to change.

    The flags are "" if they were given, and without columns that are to be written in another way,
    or taken out since they have another text in most rows.
    """
    if (len(read_as.categories), len(read_as.dates)) == (len(given.categories), len(given.dates)):
        return {"flags": "", "take_out": [], "write": {}}
    chosen = {*map(canonical, given.categories)}
    write = {n: own["write"] for n, own in columns.items() if "write" in own and n not in chosen}
    others = [name for name in read_as.categories if name not in write]
    free = [name for name in others if columns[name]["categories"] > rows / 2]
    categories = [name for name in others if name not in free]
    named = {"--categories": categories, "--dates": read_as.dates}
    flags = [f"{flag} {shlex.quote(join_names(of))}" for flag, of in named.items() if of]
    return {"flags": " ".join(flags), "take_out": free, "write": write}


def _category(codes: Any, texts: Mapping[float, str]) -> dict[str, Any]:
    """Describe a column of codes of categories: how many it has, and the most frequent."""
    counts = Counter(texts[code] for code in codes.tolist() if code == code)
    frequent = ", ".join(f"{word} ({times:,})" for word, times in counts.most_common(_MOST_WORDS))
    more = ", …" if len(counts) > _MOST_WORDS else ""
    facts = {"kind": "category", "missing": len(codes) - counts.total(), "categories": len(counts)}
    forms = [mend for form, mend in _MISWRITTEN.items() if all(map(form.fullmatch, counts))]
    return facts | {"frequent": frequent + more} | ({"write": forms[0]} if forms and counts else {})


def _column(values: Any, is_date: bool) -> dict[str, Any]:
    """Describe a column, floats of shape (rows,): its kind, missing values, range and deviation.

    The range of a column of dates, which are days, is in dates.
    """
    import numpy as np

    from ccfcpp.data.categories import date_of

    there = values[~np.isnan(values)]
    facts: dict[str, Any] = {"kind": "missing", "missing": len(values) - len(there)}
    if len(there) == 0:
        return facts
    smallest, largest = there.min(), there.max()
    if smallest == largest:
        facts["kind"] = "constant"
    elif bool(((there == smallest) | (there == largest)).all()):
        facts["kind"] = "two values"
    else:
        facts["kind"] = "whole numbers" if bool((there == np.rint(there)).all()) else "decimals"
    spread = {"smallest": smallest, "mean": there.mean(), "largest": largest}
    spread["deviation"] = there.std()
    if is_date:
        dates: dict[str, Any] = {name: date_of(spread[name]) for name in [*spread][:-1]}
        return facts | {"kind": "dates"} | dates | {"deviation": float(spread["deviation"])}
    return facts | {name: float(value) for name, value in spread.items()}


def print_description(path: str, facts: dict[str, Any]) -> None:
    """Print what ``describe_vectors`` returns: first of all columns together, then of each."""
    columns = facts["columns"]
    missing = {name: own["missing"] for name, own in columns.items() if own["missing"]}
    constant = [name for name, own in columns.items() if own["kind"] == "constant"]
    kinds = Counter(own["kind"] for own in columns.values()).most_common()
    rows = {
        "rows": f"{facts['rows']:,}",
        "columns": f"{len(columns):,}",
        "kinds": ", ".join(f"{kind} ({count})" for kind, count in kinds),
        "missing": f"{format_count(sum(missing.values()), 'value')} in {list_names([*missing])}"
        if missing
        else "0 values",
        "constant": list_names(constant) + ": it tells nothing apart" if constant else "no column",
        "lengths of rows": f"{facts['shortest']:.4g} to {facts['longest']:.4g}",
        "scale": _SCALES[facts["scale"]],
        "components": f"the first {facts['components']} principal ones, of what is scaled"
        if facts["components"]
        else "",
        "classes": counts_in_words(facts["classes"]) or "none: no --label-column",
        "clients": counts_in_words(facts["clients"])
        or "none: give --client-column, or --clients for parts at random",
        "for a run, give": facts["flags"],
        "write": "; ".join(f"{printable_name(n)}: {how}" for n, how in facts["write"].items()),
        "take out": ", ".join(map(printable_name, facts["take_out"]))
        + ": another text in most rows"
        if facts["take_out"]
        else "",
    }
    print_facts(path, {name: text for name, text in rows.items() if text})
    for note in facts["notes"]:
        typer.echo(note)
    shown_rows = [
        {"column": printable_name(name)} | _in_words(own) for name, own in columns.items()
    ][:_MOST_LISTED]
    # Apart, since in one table the texts would leave no room for the numbers.
    for title, of_text in (("Columns of numbers", False), ("Columns of categories", True)):
        if rows_of_kind := [row for row in shown_rows if ("categories" in row) == of_text]:
            print_rows(title, rows_of_kind)
    if len(columns) > _MOST_LISTED:
        typer.echo(f"and {len(columns) - _MOST_LISTED} more: --json lists all")


def _in_words(column: dict[str, Any]) -> dict[str, str]:
    return {
        name: f"{value:.4g}" if isinstance(value, float) else str(value)
        for name, value in column.items()
    }
