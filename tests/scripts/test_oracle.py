"""Neighbours of the true class, on digits."""

import re
from pathlib import Path

import pytest

from scripts.oracle import main


def test_neighbours_of_the_true_class_are_better(capsys: pytest.CaptureFixture[str]) -> None:
    main("digits", images=400, steps=15, p=0.0, seed=0, config=Path("cluster/digits"))
    usual, best = (float(found) for found in re.findall(r"NMI ([\d.]+)", capsys.readouterr().out))
    assert best > usual > 0.1
