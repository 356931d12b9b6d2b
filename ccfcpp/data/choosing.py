"""Some classes of a data set."""

import difflib
from collections.abc import Sequence
from dataclasses import replace

import torch

from ccfcpp.core.errors import UsageError
from ccfcpp.core.names import canonical
from ccfcpp.data.images import ImageData


def keep_classes(data: ImageData, names: Sequence[str]) -> ImageData:
    """Return the images of some classes, labelled with these alone; they stay in their order.

    Raises:
        UsageError: If there is no such class.
    """
    kept = check_classes(names, data.classes, data.name)
    classes = tuple(name for name in data.classes if canonical(name) in kept)
    assert data.labels is not None  # else there are no classes, and none can be kept
    new_label = torch.full((len(data.classes),), -1)
    new_label[[data.classes.index(name) for name in classes]] = torch.arange(len(classes))
    labels = new_label[data.labels]
    chosen = labels >= 0
    return replace(data.selected(chosen), labels=labels[chosen], classes=classes)


def check_classes(names: Sequence[str], known: Sequence[str], where: str) -> frozenset[str]:
    """Return `names` as `canonical` has them.

    Raises:
        UsageError: If there are none, or one is not among the `known` ones.
    """
    if not names:
        raise UsageError(f"no class of {where} is chosen: name at least one, or leave classes out")
    if not known:
        raise UsageError(f"{where} has no classes to choose {names[0]!r} from: leave classes out")
    for name in names:
        if canonical(name) not in map(canonical, known):
            close = difflib.get_close_matches(name, known, n=3)
            some = f"take some of {', '.join(known[:10])}{', …' if len(known) > 10 else ''}"
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else some
            raise UsageError(f"{where} has no class {name!r}: {hint}")
    return frozenset(map(canonical, names))
