"""Small runs to report on."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.run import clustering_run
from ccfcpp.core.errors import StoppedError
from ccfcpp.core.randomness import SERVER
from ccfcpp.engine.checkpoint import load_checkpoint
from ccfcpp.engine.client import Client
from ccfcpp.reports.contents import contents
from ccfcpp.reports.figure_files import as_svg
from ccfcpp.reports.labels import label_runs
from ccfcpp.reports.page import page
from ccfcpp.reports.run_reader import read_run
from ccfcpp.runs.folder import RunFolder
from tests.support.command import TINY, TINY_SCAN, report, succeeded


def points_of(run: Path) -> Tensor:
    """All images of a clustering in the space of its centroids, by its last checkpoint."""
    folder = RunFolder(run)
    experiment = clustering_run(folder.saved_config(ClusterConfig))
    checkpoint = load_checkpoint(
        folder.checkpoint, experiment.algorithm.state_type, experiment.device
    )
    everything = Client(SERVER, "all", experiment.data.values)
    points = experiment.algorithm.represent(checkpoint.state, everything)
    assert points is not None
    return points.double().cpu()


DATA = ("--set", "data.images=160", "--p", 0.75)
SMALL = (*TINY, *DATA)


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CCFC++ on some digits, with a client that is never there and others that come and go."""
    run = tmp_path_factory.mktemp("digits") / "run"
    absent = ("--disconnection-rate", 0.25, "--dropout-rate", 0.3)
    succeeded("cluster", "--out", run, "--seed", 3, *absent, *SMALL)
    return run


@pytest.fixture(scope="session")
def ccfc_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same by CCFC, with all clients."""
    run = tmp_path_factory.mktemp("ccfc") / "run"
    succeeded("cluster", "--out", run, *SMALL, "--method", "ccfc", "--seed", 3)
    return run


@pytest.fixture(scope="session")
def scan_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same by Fed-SCAN."""
    run = tmp_path_factory.mktemp("scan") / "run"
    succeeded("cluster", "--out", run, *TINY_SCAN, *DATA, "--seed", 3)
    return run


@pytest.fixture(scope="session")
def classifier_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAvg on some digits."""
    run = tmp_path_factory.mktemp("classifier") / "run"
    succeeded(
        "classify", "--out", run, "--rounds", 2, "--local-epochs", 1, "--clients", 3,
        "--set", "model.widths=[4]", "--set", "model.representation=6",
        "--set", "data.train_images=150", "--set", "data.test_images=60",
    )  # fmt: skip
    return run


@pytest.fixture(scope="session")
def unlabelled_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """k-FED on images without labels, in a folder whose name is HTML, each with 3 × 4 pixels."""
    folder = tmp_path_factory.mktemp("unlabelled")
    pixels = np.random.default_rng(0).integers(0, 255, (40, 4, 3), np.uint8)
    np.savez(folder / "<b>&amp.npz", x=pixels)
    run = folder / "<i>&run"
    succeeded(
        "cluster", "--dataset", folder / "<b>&amp.npz", "--method", "k-fed", "--partition", "iid",
        "--clusters", 3, "--clients", 2, "--out", run,
    )  # fmt: skip
    return run


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no figure's picture, which takes most of a report's time."""
    monkeypatch.setattr("ccfcpp.reports.figure_files._render", lambda *_: b"<svg></svg>")


@pytest.fixture
def interrupted(digits_run: Path, tmp_path: Path) -> Callable[[int], Path]:
    """Makes the same run as ``digits_run``, interrupted after so many rounds."""

    def make(rounds: int) -> Path:
        config = RunFolder(digits_run).saved_config(ClusterConfig)
        folder = RunFolder.create(tmp_path / "interrupted", config)
        left = iter([*[False] * (rounds - 1), True])
        if rounds:
            with pytest.raises(StoppedError):
                clustering_run(config).run(folder, should_stop=lambda: next(left))
        return folder.path

    return make


@pytest.fixture(scope="session")
def reported(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of ``digits_run`` with its report."""
    run = tmp_path_factory.mktemp("reported") / "run"
    shutil.copytree(digits_run, run)
    report(run)
    return run


@pytest.fixture(scope="session")
def side_by_side(
    digits_run: Path, ccfc_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The page of two runs, without its files."""
    runs = label_runs([read_run(digits_run), read_run(ccfc_run)])
    found = contents(runs)
    path = tmp_path_factory.mktemp("several") / "report.html"
    path.write_text(page(runs, found, {figure.name: as_svg(figure) for figure in found.figures}))
    return path
