"""Scores against minutes are read from summaries, and nothing else."""

import json
from pathlib import Path

import numpy as np
import pytest

from scripts.minutes import figure, main, read


def test_runs_are_told_by_their_minutes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [tmp_path / "long", tmp_path / "short"]
    for folder, seconds, nmi in zip(folders, (3600, 900), (0.4, 0.3), strict=True):
        folder.mkdir()
        summary = {"seconds": seconds, "nmi": nmi, "kappa": nmi / 2}
        (folder / "summary.json").write_text(json.dumps(summary))
    main(folders, tmp_path / "minutes.svg", nmi=0.35)
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| 15 | 0.300 | 0.150 |",
        "| 60 | 0.400 | 0.200 |",
    ]
    assert "Kappa" in (tmp_path / "minutes.svg").read_text()
    (axes,) = figure(read(folders), {"nmi": 0.35}).figure.axes
    first, published, second = (np.asarray(line.get_data()) for line in axes.lines)
    assert first.tolist() == [[15, 60], [0.3, 0.4]]
    assert second[1].tolist() == [0.15, 0.2]
    assert set(published[1]) == {0.35}
