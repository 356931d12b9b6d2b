"""What a command says of a run before its first round, on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ccfcpp.cli.flags import Flag
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import flatten, values_of
from ccfcpp.core.units import counted

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ccfcpp.runs.experiment import AnyExperiment

_MOST_NAMES = 20
"""Of absent clients that are named."""


def setting(experiment: AnyExperiment) -> str:
    """The images, the clients and the rounds, as they have been found."""
    data = experiment.data
    height, width = data.images.shape[2:]
    labels = f"{len(data.classes)} classes" if data.classes else "no labels"
    return (
        f"{counted(len(data), 'image')} of {height}x{width} pixels, {labels}; "
        f"{counted(len(experiment.parts), 'client')}; "
        f"{counted(experiment.algorithm.rounds, 'round')} on {experiment.device}"
    )


def protection(experiment: AnyExperiment) -> list[str]:
    """What is protected from whom, beside images' staying where they are, line by line."""
    kept = experiment.protection.header() if experiment.protection else []
    return experiment.hostility.header() + kept


def absence(names: Sequence[str]) -> str:
    """Who is absent for the whole run; empty where nobody is."""
    if not names:
        return ""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"absent for the whole run: {', '.join(names[:_MOST_NAMES])}{more}"


def chosen_by_default(
    flags: Iterable[Flag], given: Iterable[Tree], config: BaseModel, found: Mapping[str, object]
) -> str:
    """What the user did not choose, as the flags that would; empty where the user chose everything.

    Of the flags that are worth naming, those stand here whose keys are not in what was ``given``.
    Values that follow from the images are in ``found``, by dotted key; others in the configuration.
    """
    chosen = {key for tree in given for key, _ in flatten(tree)}
    values = values_of(config) | dict(found)
    left = [flag for flag in flags if flag.key not in chosen and values.get(flag.key) is not None]
    words = ", ".join(f"{flag.option} {_short(values[flag.key])}" for flag in left)
    return f"by default: {words}" if words else ""


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
