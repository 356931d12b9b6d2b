"""NMI against ε is read from summaries, and nothing else."""

import json
from pathlib import Path

import pytest

from ccfcpp.reports.writing import as_svg
from scripts.epsilon import figure, main, read, table


def run(folder: Path, nmi: float, budget: float, *, p: float = 0.0, level: str = "image") -> Path:
    summary = {
        "method": "fed-scan", "dataset": "digits", "samples": 1797, "clients": 10, "p": p,
        "nmi": nmi, "kappa": nmi / 2, "privacy": {"level": level, "budget": budget},
    }  # fmt: skip
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    return [
        run(tmp_path / "a", 0.4, 8),
        run(tmp_path / "b", 0.6, 8),
        run(tmp_path / "c", 0.8, 1e8),
        run(tmp_path / "d", 0.3, 8, p=0.75),
        run(tmp_path / "e", 0.9, 8, level="none"),
        unfinished,
    ]


def test_the_table_has_means_and_how_many_runs_they_are_of(folders: list[Path]) -> None:
    lines = table(read(folders)).splitlines()
    start = "| digits, 1,797 images, image level, 10 clients | Fed-SCAN |"
    assert lines[2:] == [
        f"{start} no privacy | 0.900 / 0.450 | - |",
        f"{start} clipping alone | 0.800 / 0.400 | - |",
        f"{start} 8 | 0.500 / 0.250 (2) | 0.300 / 0.150 |",
    ]


def test_the_figure_has_every_run_and_is_the_same_at_every_call(folders: list[Path]) -> None:
    drawn = figure(read(folders))
    assert sorted(float(str(row["nmi"])) for row in drawn.rows) == [0.3, 0.4, 0.6, 0.8, 0.9]
    svg = as_svg(drawn)
    assert svg.rstrip().endswith("</svg>")
    assert svg == as_svg(figure(read(folders)))
    for shown in ("Fed-SCAN, p = 0.75", "privacy", "image level, 10 clients"):
        assert shown in svg


def test_folders_without_such_runs_are_refused(tmp_path: Path) -> None:
    run(tmp_path / "plain", 0.9, 8, level="none")
    with pytest.raises(Exception, match="no folder holds a finished run"):
        main([tmp_path / "plain"])
