"""The package in docs/example, put on the path with the metadata that pip would write."""

import shutil
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from ccfcpp.clustering.methods import METHODS, System, lazy
from ccfcpp.core import config
from tests.support.pages import DOCS

EXAMPLE = DOCS / "example"


def shown() -> list[str]:
    """The files that docs/extending.md shows, by their paths in the package."""
    modules = (path for path in (EXAMPLE / "strangers").glob("[!_]*.py"))
    return ["pyproject.toml", "test_strangers.py", *(f"strangers/{path.name}" for path in modules)]


def install(folder: Path) -> Path:
    """Lay a copy of the package into a folder, as ``pip install`` does, and return it."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    shutil.copytree(EXAMPLE / "strangers", folder / "strangers")
    write_metadata(folder, project["name"], project["entry-points"])
    return folder


def write_metadata(folder: Path, name: str, points: dict[str, dict[str, str]]) -> None:
    """Write what names a distribution and its entry points, by group and name."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = (
        f"[{group}]\n" + "".join(f"{key} = {place}\n" for key, place in entries.items())
        for group, entries in points.items()
    )
    (info / "entry_points.txt").write_text("".join(groups))


def add_system(monkeypatch: pytest.MonkeyPatch, **sections: type[config.Section]) -> None:
    """Let a package add a system ``stranger`` with some sections, in this process."""
    point = EntryPoint("stranger", "nowhere:STRANGER", METHODS.group)
    system = System(title="", sends="", make=lazy("nowhere", "Stranger"), sections=sections)
    monkeypatch.setitem(METHODS._points, "stranger", point)
    monkeypatch.setitem(METHODS._loaded, "stranger", system)
    config._with_sections.cache_clear()
