"""Registries of named objects, from this library and from installed packages."""

import traceback
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TypeVar

from ccfcpp.core.errors import FederationError, StoppedError, UsageError

T = TypeVar("T", covariant=True)
_DELIBERATE = (UsageError, FederationError, StoppedError, OSError, MemoryError)
"""Errors whose message is meant for the user, or has nothing to do with a package."""


@contextmanager
def one_line_errors(what: str, module: str, by_itself: bool = False) -> Iterator[None]:
    """Turn an exception in another package's code into an error of one line that names the place.

    Args:
        what: What fails, for the message, such as "method 'my-method'".
        module: Any module of the package.
        by_itself: Whether only errors raised in the package's own code count. Else an error of our
            own code counts, too, as a package may return a wrong value.

    Raises:
        UsageError: In place of such an error, unless the user or the machine causes it.
    """
    try:
        yield
    except _DELIBERATE:
        raise
    except Exception as error:  # a foreign package may raise anything
        place = _place_of(error, module.partition(".")[0])
        met = isinstance(error, TypeError | ValueError | AttributeError) and not by_itself
        if not (place or met) or type(error).__name__ == "OutOfMemoryError":
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"{what} fails{place} ({reason}): mend its package") from error


def _place_of(error: Exception, package: str) -> str:
    """Return the file and line in a package's code that raised an error, in words; "" if none."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__", "").partition(".")[0] == package:
            place = f" in {Path(frame.f_code.co_filename).name}, line {line}"
    return place


class Registry(Mapping[str, T]):
    """A mapping from names to objects that are imported when they are first used.

    Listing the names imports nothing, so that the help of a command appears at once. An installed
    package adds an object by an entry point (*Python Packaging User Guide*, "Entry points
    specification"); one with the name of an object of this library is ignored.

    Args:
        group: The entry points' group, such as ``ccfcpp.methods``.
        what: The word for an object in error messages, such as ``method``.
        own: The library's own objects, as ``module:attribute`` by name, in the order of tables.
        kind: The class of each object, as ``module:attribute``.

    Example:
        >>> from ccfcpp import METHODS
        >>> METHODS["fed-km"].title
        'Fed-KM'
    """

    def __init__(self, group: str, what: str, own: Mapping[str, str], kind: str) -> None:
        self.group = group
        self.what = what
        self._own = own
        self._kind = kind
        self._loaded: dict[str, T] = {}
        self._clashes: dict[str, str] = {}

    @cached_property
    def _points(self) -> dict[str, EntryPoint]:
        points = {name: EntryPoint(name, place, self.group) for name, place in self._own.items()}
        for added in sorted(entry_points(group=self.group), key=lambda point: point.name):
            if added.name in points and added.name not in self._own:
                # The error comes when the name is asked for, so that all other names work.
                self._clashes[added.name] = f"{points[added.name].value} and {added.value}"
            points.setdefault(added.name, added)
        return points

    def __getitem__(self, name: str) -> T:
        """Return the object of a name; import it if needed.

        Raises:
            KeyError: There is none.
            UsageError: It cannot be imported, or is not of the registry's class.
        """
        point = self._points[name]
        if name in self._clashes:
            raise UsageError(
                f"two installed packages add a {self.what} {name!r} ({self._clashes[name]}): "
                "uninstall one of them"
            )
        if name not in self._loaded:
            self._loaded[name] = self._load(point)
        return self._loaded[name]

    def _load(self, point: EntryPoint) -> T:
        try:
            loaded = point.load()
        except Exception as error:  # a foreign package may raise anything when it is imported
            if point.name in self._own:
                raise
            reason = " ".join(str(error).split())
            raise UsageError(
                f"{self.what} {point.name!r} cannot be imported from {point.value} ({reason}): "
                "mend or uninstall its package"
            ) from error
        kind: type[T] = EntryPoint("", self._kind, self.group).load()
        if not isinstance(loaded, kind):
            raise UsageError(
                f"{self.what} {point.name!r}: {point.value} is a {type(loaded).__name__}, but must "
                f"be a {self._kind}"
            )
        return loaded

    def __iter__(self) -> Iterator[str]:
        return iter(self._points)

    def __len__(self) -> int:
        return len(self._points)

    def __contains__(self, name: object) -> bool:
        return name in self._points

    def blaming(self, name: str, by_itself: bool = False) -> AbstractContextManager[None]:
        """Return ``one_line_errors`` for another package's object; an empty context for ours."""
        if name in self._own:
            return nullcontext()
        return one_line_errors(f"{self.what} {name!r}", self._points[name].module, by_itself)

    def own(self) -> list[str]:
        """Return the names of this library's own objects."""
        return list(self._own)
