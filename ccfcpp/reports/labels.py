"""Labels of several runs in one report, and the settings in which they differ."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ccfcpp.core.config_layers import flatten, values_of
from ccfcpp.reports.run_reader import RecordedRun
from ccfcpp.runs.paths import MAY_CHANGE, Json

T = TypeVar("T")
Gathered = Sequence[tuple[RecordedRun, T]]
"""Runs, each with its numbers; runs without such numbers are left out."""

_LONGEST_LABEL = 32


def label_runs(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """Label each run by its system, by the settings that differ, or else by its folder.

    A single run gets no label. Folders are named below the one that they have in common.
    """
    if len(runs) == 1:
        return list(runs)
    labels = [run.title for run in runs]
    if len(set(labels)) < len(runs):
        keys = _distinguishing_keys(runs)
        labels = [_label(run, keys) for run in runs]
    if len(set(labels)) < len(runs) or max(map(len, labels)) > _LONGEST_LABEL:
        labels = folder_names([run.path for run in runs], short=False)
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


def folder_names(paths: Sequence[Path], *, short: bool = True) -> list[str]:
    """Name folders by the last parts of their paths if ``short``; if equal, by all that differs."""
    whole = [path.resolve() for path in paths]
    names = [path.name for path in whole]
    if short and len(set(names)) == len(names):
        return names
    common = os.path.commonpath(whole)
    return [str(path.relative_to(common)) for path in whole]


def differing_settings(runs: Sequence[RecordedRun]) -> list[Json]:
    """Return a row for each setting in which runs differ: its dotted key, and its value by run.

    A setting that a run does not have is None.
    """
    settings = [values_of(run.config) for run in runs]
    keys = dict.fromkeys(key for each in settings for key in each)
    return [
        {"setting": key}
        | {run.label: each.get(key) for run, each in zip(runs, settings, strict=True)}
        for key in keys
        if key not in MAY_CHANGE and any(each.get(key) != settings[0].get(key) for each in settings)
    ]


def run_column(run: RecordedRun) -> Json:
    """Return a table's column ``run`` with the run's label; {} if the run has no label."""
    return {"run": run.label} if run.label else {}


def slug(text: str) -> str:
    """Turn a text into part of a file's name: lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def _distinguishing_keys(runs: Sequence[RecordedRun]) -> list[str]:
    """Return the keys of settings that all runs have, but with different values.

    If the methods of the runs differ, keys whose values a method fixes are left out.
    """
    settings = [values_of(run.config) for run in runs]
    of_methods = (type(run.config).fixed_by(run.config.model_dump()) for run in runs)
    fixed = {key for tree in of_methods for key, _ in flatten(tree)}
    by_method = len({each["method"] for each in settings}) > 1
    return [
        key
        for key in settings[0]
        if all(key in each for each in settings)
        and any(each[key] != settings[0][key] for each in settings)
        and key not in MAY_CHANGE
        and not (by_method and key in fixed)
    ]


def _label(run: RecordedRun, keys: Sequence[str]) -> str:
    settings = values_of(run.config)
    parts = [
        run.title if key == "method" else f"{key.rpartition('.')[2]} = {settings[key]}"
        for key in sorted(keys, key=lambda key: key != "method")
    ]
    return ", ".join(parts)
