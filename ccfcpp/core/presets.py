"""The presets that are shipped: where they lie, what they are called, and what each is for.

A preset's name is its path without the suffix, such as ``cluster/cifar10``. Where only one kind of
command can mean it, its last part is enough.
"""

import difflib
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from ccfcpp.core.errors import UsageError

_END_OF_SENTENCE = re.compile(r"(?<! al)\. ")
"""Not behind the names of several authors."""


ITEMS_OF_PAPERS = "reproduce/papers"
"""The folder of what ``ccfcpp reproduce`` makes: those files are no presets."""


def preset_folder() -> Path:
    """Where the presets lie: in the installed package, or beside it in a source tree."""
    package = Path(__file__).parent.parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def preset_file(name: str) -> Path:
    """Where the preset of a name lies, or would lie."""
    return preset_folder() / f"{name}.yaml"


def preset_names() -> list[str]:
    """Names of all presets: first those of the commands' data sets, then those of tables."""
    folder = preset_folder()
    files = (path for path in folder.rglob("*.yaml") if path.parent != folder / ITEMS_OF_PAPERS)
    names = [path.relative_to(folder).with_suffix("") for path in files]
    first = ("cluster", "classify")
    return sorted(map(Path.as_posix, names), key=lambda n: (_place(n, first), n.count("/"), n))


def variants(presets: str) -> list[str]:
    """The presets of a data set that may be asked for beside the default one."""
    return sorted(path.name for path in (preset_folder() / presets).iterdir() if path.is_dir())


def summary(name: str) -> str:
    """What a preset is for: the first sentence of the comment that it begins with."""
    lines = preset_file(name).read_text().splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("# "), lines)
    text = " ".join(line.removeprefix("# ") for line in comment)
    return _END_OF_SENTENCE.split(text)[0].removesuffix(".")


def find_preset(name: str, groups: Sequence[str] = (), missing: str = "preset") -> str:
    """The full name of a preset.

    Args:
        name: Its name, or the last part of it.
        groups: The folders in which a last part is looked for first, in their order.
        missing: What there is not, where it is not found.

    Raises:
        UsageError: There is none of that name, or there are several.
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
    raise UsageError(
        f"there is no {missing} {name!r}: did you mean {nearest_preset(name, groups)!r}? ccfcpp "
        "presets lists them"
    )


def nearest_preset(name: str, groups: Sequence[str] = ()) -> str:
    """The preset whose name is most like another; of equals that of an earlier group."""
    given = name.removesuffix(".yaml").removesuffix(".yml").lower()
    own = sorted(preset_names(), key=lambda each: _place(each, groups))
    return max(own, key=lambda each: _likeness(given, each))


def _place(name: str, groups: Sequence[str]) -> int:
    group = name.partition("/")[0]
    return groups.index(group) if group in groups else len(groups)


def _likeness(given: str, name: str) -> float:
    """Of the whole names, or of the last parts where no more is given."""
    other = name if "/" in given else name.rpartition("/")[2]
    return difflib.SequenceMatcher(None, given, other).ratio()
