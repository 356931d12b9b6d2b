"""A researcher's first day: a study that grows, and tables for a paper, by the commands alone."""

import csv
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import set_options
from tests.support.processes import Machines, bounded

pytestmark = pytest.mark.nightly("ccfcpp/studies", "ccfcpp/reports")
SMALL = ("--dataset", "digits", *set_options("data.images=150", "device=cpu"))
LATEX = next(filter(None, map(shutil.which, ("tectonic", "pdflatex"))), None)
PAPER = r"""\documentclass{article}
\usepackage[utf8]{inputenc}
\usepackage{booktabs}
\begin{document}
\input{table.tex}
\end{document}
"""


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Machines]:
    (tmp_path / "desk").mkdir()
    with bounded(Machines(tmp_path)) as here:
        yield here


def rows_of(study: Path) -> list[dict[str, str]]:
    with (study / "table.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def summaries(study: Path) -> dict[str, int]:
    """When each run ended, by its folder."""
    found = study.rglob("summary.json")
    return {str(path.relative_to(study)): path.stat().st_mtime_ns for path in found}


def is_whole(table: Path, folder: Path) -> None:
    """Whether LaTeX takes a table; where there is none, whether every environment is closed."""
    text = table.read_text()
    for kind in ("begin", "end"):
        assert text.count(rf"\{kind}{{tabular}}") == text.count(r"\toprule")
    assert text.count(r"\toprule") == text.count(r"\midrule") == text.count(r"\bottomrule") > 0
    for block in re.findall(r"\\toprule\n(.*?)\\bottomrule", text, re.DOTALL):
        lines = [line for line in block.splitlines() if line.endswith(r"\\")]
        assert len({len(re.findall(r"(?<!\\)&", line)) for line in lines}) == 1
    if LATEX:
        shutil.copy(table, folder / "table.tex")
        (folder / "paper.tex").write_text(PAPER)
        subprocess.run([LATEX, "paper.tex"], cwd=folder, check=True, timeout=200)
        assert (folder / "paper.pdf").stat().st_size > 0


def test_a_researchers_day(desk: Machines) -> None:
    study = desk.folder / "desk" / "study"
    desk.run("desk", "ccfcpp compare --out study --methods k-fed --p 0,1", *SMALL)
    assert [(row["method"], row["runs"]) for row in rows_of(study)] == [("k-fed", "1")] * 2
    first = summaries(study)
    assert len(first) == 2

    # It grows in methods and in seeds, and what there was is not run again.
    grow = "ccfcpp compare --out study --resume --methods feddp-kmeans,fed-km --seeds 5"
    desk.run("desk", grow, "--baseline", "k-fed")
    rows = rows_of(study)
    assert {(row["method"], row["p"]) for row in rows} == {
        (method, p) for method in ("k-fed", "feddp-kmeans", "fed-km") for p in ("0.0", "1.0")
    }
    assert {row["runs"] for row in rows} == {"5"}
    now = summaries(study)
    assert len(now) == 30
    assert {name: now[name] for name in first} == first
    tested = [float(row["nmi p-value"]) for row in rows if row["nmi p-value"]]
    assert len(tested) == 4  # each but the baseline, at either skew
    assert all(0 <= p <= 1 for p in tested)
    assert "Holm" in (study / "table.md").read_text()
    is_whole(study / "table.tex", desk.folder)

    # A setting is an axis of another study, and one page has both.
    sweep = "ccfcpp compare --out sweep --methods fed-fcm --p 0 --set fuzzy.m=1.1,1.5 --seeds 2"
    desk.run("desk", sweep, *SMALL)
    swept = rows_of(desk.folder / "desk" / "sweep")
    assert [row["fuzzy.m"] for row in swept] == ["1.1", "1.5"]
    is_whole(desk.folder / "desk" / "sweep" / "table.tex", desk.folder)
    desk.run("desk", "ccfcpp report study sweep --out page")
    page = (desk.folder / "desk" / "page" / "report.html").read_text()
    for words in ("k-FED", "Fed-KM", "Fed-FCM", "FedDP-KMeans"):
        assert words in page
