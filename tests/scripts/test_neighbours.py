"""The table of neighbours' classes, on digits."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

import ccfcpp
from scripts.neighbours import main


def test_a_line_for_each_kind_of_features(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digits = load_digits()
    order = digits.target[:300].argsort()
    images = (digits.images[order] * 15).astype(np.uint8)
    np.savez(tmp_path / "digits.npz", images=images, labels=digits.target[order])
    run = tmp_path / "a run"
    data = {"dataset": str(tmp_path / "digits.npz"), "clusters": 10}
    ccfcpp.run({"method": "fed-km", **data, "partition.clients": 3}, out=run)
    main(str(tmp_path / "digits.npz"), images=200, clients=2, model=[run])
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["pixels", "centred", "gradients", "latents of a run"]
    assert rows[-1][1:7] == rows[0][1:7]  # the latents of Fed-KM are the pixels
    by_pixels = list(map(float, rows[0][1:7]))
    nearest, *_, farthest = by_pixels[:5]
    assert nearest > 0.8 > farthest  # a client has ten images of a class, and 50 neighbours
