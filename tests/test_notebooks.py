"""The notebooks of docs/notebooks run, and find what they say."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import DOCS

pytestmark = pytest.mark.nightly("docs/notebooks", "ccfcpp/clustering", "ccfcpp/data")


def printed(name: str, folder: Path) -> str:
    """What the cells of a notebook print, run one after the other without a screen."""
    notebook = json.loads((DOCS / "notebooks" / f"{name}.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells), "clear outputs"
    done = subprocess.run(
        [sys.executable, "-W", "error::FutureWarning", "-"],
        input="\n".join("".join(cell["source"]) for cell in cells),
        cwd=folder,
        env=os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(DOCS.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(pattern: str, text: str) -> list[float]:
    found = re.search(pattern, text)
    assert found, text
    return [float(number) for number in found.groups()]


def test_images(tmp_path: Path) -> None:
    shown = printed("images", tmp_path)
    ours, by_pixels = numbers(r"NMI (\S+); of k-means on all pixels, in one place (\S+)", shown)
    assert ours > by_pixels
    (known,) = numbers(r"factor of known digits: (\S+)", shown)
    (sevens,) = numbers(r"factor of sevens: (\S+)", shown)
    assert sevens > known


def test_tables(tmp_path: Path) -> None:
    shown = printed("tables", tmp_path)
    assert numbers(r"Fed-EM +NMI (\S+)", shown)[0] > 0.8
    assert numbers(r"NMI of both clusterings: (\S+)", shown)[0] > 0.95
    assert "clusters found: 3\n" in shown
    assert shown.endswith("same clusters: True\n")


@pytest.mark.parametrize("name", ["images", "tables"])
def test_links_lead_somewhere(name: str) -> None:
    path = DOCS / "notebooks" / f"{name}.ipynb"
    links = re.findall(r"\]\(([^)]+)\)", path.read_text())
    assert links
    assert all((path.parent / link).exists() for link in links)
