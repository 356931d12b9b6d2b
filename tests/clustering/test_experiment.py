"""A clustering run, from its configuration to its results."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from ccfcpp.clustering.experiment import ClusteringExperiment
from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.errors import StoppedError
from ccfcpp.runs.folder import RunFolder
from tests.support.clustering import tiny


@pytest.mark.parametrize("method", METHODS.own())
def test_a_run_that_is_stopped_after_each_round_ends_the_same(method: str, tmp_path: Path) -> None:
    config = tiny(method, {"partition": {"clients": 4}, "availability": {"dropout_rate": 0.2}})
    whole = ClusteringExperiment(config).run(RunFolder.create(tmp_path / "whole", config))
    folder = RunFolder.create(tmp_path / "broken", config)
    stops = 0
    while True:
        try:
            broken = ClusteringExperiment(config).run(folder, should_stop=lambda: True)
        except StoppedError:
            stops += 1
            continue
        break
    assert stops == whole["rounds"] - 1
    for key in ("nmi", "kappa", "bytes_up", "bytes_down", "rounds", "communication_rounds"):
        assert broken[key] == whole[key], key
    first, second = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "broken"))
    assert all(torch.equal(entry, second[name]) for name, entry in first.items())


def test_a_run_leaves_a_sheet_of_each_clients_images(tmp_path: Path) -> None:
    config = tiny("sda-fc-km", {"partition": {"clients": 3}})
    ClusteringExperiment(config).run(RunFolder.create(tmp_path / "run", config))
    sheets = sorted((tmp_path / "run" / "figures").glob("*.png"))
    assert [path.name for path in sheets] == [f"synthetic-client-{n}.png" for n in range(3)]
    assert Image.open(sheets[0]).size == (10 * 58 + 2, 8 * 58 + 2)
