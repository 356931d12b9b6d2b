"""The package of docs/extending.md, installed as pip installs any other."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from tests.support.pages import blocks


def files() -> dict[str, str]:
    """The files that the page shows, by path: each block's first line names its own."""
    shown = (block.text.split("\n", 1) for block in blocks("extending.md"))
    return {first.removeprefix("# "): rest for first, rest in shown}


def install(folder: Path) -> Path:
    """Install the package into a folder of its own, without any network.

    Returns:
        The folder, for ``PYTHONPATH``.
    """
    wheel = _wheel(folder)
    place = folder / "site-packages"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", str(place), str(wheel)], check=True, capture_output=True)
    return place


def _wheel(folder: Path) -> Path:
    """The package as a wheel (PyPA's "Binary distribution format"), without a build tool."""
    shown = files()
    project = tomllib.loads(shown.pop("pyproject.toml"))["project"]
    name, version = project["name"], project["version"]
    info = f"{name}-{version}.dist-info"
    points = "".join(
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in project["entry-points"].items()
    )
    contents = {
        **shown,
        f"{name}/__init__.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": points,
    }
    contents[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*contents, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for inner, text in contents.items():
            wheel.writestr(inner, text)
    return path
