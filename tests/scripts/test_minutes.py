"""Scores against minutes are read from summaries, and nothing else."""

import json
from pathlib import Path

import pytest

from scripts.minutes import main


def test_runs_are_told_by_their_minutes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [tmp_path / "long", tmp_path / "short"]
    for folder, seconds, nmi in zip(folders, (3600, 900), (0.4, 0.3), strict=True):
        folder.mkdir()
        summary = {"seconds": seconds, "p": 0.5, "nmi": nmi, "kappa": nmi / 2}
        (folder / "summary.json").write_text(json.dumps(summary))
    main(folders, tmp_path / "minutes.svg", nmi=0.35)
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| 15 | 0.5 | 0.300 | 0.150 |",
        "| 60 | 0.5 | 0.400 | 0.200 |",
    ]
    assert (tmp_path / "minutes.svg").read_text().count("<use ") >= 4
