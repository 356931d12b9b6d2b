"""Presets, the configuration files that ship with the library.

A preset's name is its path without the suffix, such as ``cluster/cifar10``. Its last part is enough
if it is unique.
"""

import difflib
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from ccfcpp.core.errors import UsageError

_END_OF_SENTENCE = re.compile(r"(?<! al)(?<! Eq)\. ")
"""The end of a sentence, which "et al." and "Eq." are not."""

ITEMS_OF_PAPERS = "reproduce/papers"
"""Folder of what ``ccfcpp reproduce`` makes, tables and figures; these files are no presets."""


def preset_folder() -> Path:
    """Return the folder of the presets: in the installed package, or beside it in a source tree."""
    package = Path(__file__).parent.parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def preset_file(name: str) -> Path:
    """Return the path of a preset's file, which need not exist."""
    return preset_folder() / f"{name}.yaml"


def preset_names() -> list[str]:
    """Return the names of all presets, sorted, those of ``cluster`` and ``classify`` first."""
    folder = preset_folder()
    files = (path for path in folder.rglob("*.yaml") if path.parent != folder / ITEMS_OF_PAPERS)
    names = [path.relative_to(folder).with_suffix("") for path in files]
    first = ("cluster", "classify")
    return sorted(map(Path.as_posix, names), key=lambda n: (_place(n, first), n.count("/"), n))


def variants(presets: str) -> list[str]:
    """Return the names of variants (subfolders) in a folder of presets, such as ``published``."""
    return sorted(path.name for path in (preset_folder() / presets).iterdir() if path.is_dir())


def summary(name: str) -> str:
    """Return the first sentence of the comment at the beginning of a preset."""
    lines = preset_file(name).read_text().splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("# "), lines)
    text = " ".join(line.removeprefix("# ") for line in comment)
    return _END_OF_SENTENCE.split(text)[0].removesuffix(".")


def find_preset(name: str, groups: Sequence[str] = (), missing: str = "preset") -> str:
    """Return the full name of a preset, given its name or the last part of it.

    The folders ``groups`` are searched first for the last part, in their order.

    Raises:
        UsageError: There are several of that name, or none; ``missing`` is its word for a preset.
    """
    known = preset_names()
    if name in known:
        return name
    same = [each for each in known if each.rpartition("/")[2] == name]
    for group in groups:
        if f"{group}/{name}" in same:
            return f"{group}/{name}"
    if len(same) == 1:
        return same[0]
    if same:
        raise UsageError(f"preset {name!r} may be {' or '.join(same)}: give its whole name")
    given = name.removesuffix(".yaml").removesuffix(".yml").lower()
    # Of equally similar names the one in the earlier group is proposed.
    by_group = sorted(known, key=lambda each: _place(each, groups))
    nearest = max(by_group, key=lambda each: _likeness(given, each))
    raise UsageError(
        f"there is no {missing} {name!r}: did you mean {nearest!r}? ccfcpp presets lists them"
    )


def _place(name: str, groups: Sequence[str]) -> int:
    group = name.partition("/")[0]
    return groups.index(group) if group in groups else len(groups)


def _likeness(given: str, name: str) -> float:
    """Return the similarity of two names, or of their last parts if ``given`` has one part."""
    other = name if "/" in given else name.rpartition("/")[2]
    return difflib.SequenceMatcher(None, given, other).ratio()
