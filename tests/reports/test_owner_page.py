"""The page of a client's owner: the images by cluster, what was left out, and what was sent."""

import base64
import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ccfcpp.core.errors import UsageError
from ccfcpp.data.image_files import FileFacts, Reading
from ccfcpp.data.image_size import Sizes
from ccfcpp.data.images import ImageData
from ccfcpp.deployment.client.audit import AuditLog
from ccfcpp.deployment.client.results import ClientResults, save_results, typical, unsure
from ccfcpp.runs.report_samples import EACH
from ccfcpp.studies.report import report
from tests.deployment.test_experiment import experiment_on, grid_of, run
from tests.support.browser import BROWSER, laid_out
from tests.support.classification import labelled_clients
from tests.support.clustering import tiny
from tests.support.command import ccfcpp
from tests.support.deployment import trusting

WICKED = "<script>alert(1)</script>.png"
AWKWARD = ("a\x1b[2J.png", "=1+1.png", "caf\udce9.png", '"><img src=x onerror=alert(1)>.png')


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A client after a run, whose photos have names that nobody should trust."""
    folder = tmp_path_factory.mktemp("owner")
    grid = grid_of(labelled_clients(60, 40), folder)
    worker = next(iter(grid.workers.values()))
    data = worker.load(None)  # type: ignore[arg-type]
    assert isinstance(data, ImageData)
    names = (WICKED, *AWKWARD, *(f"ward/{number:02}.png" for number in range(55)))
    named = replace(data, names=names)
    worker.load = lambda spec: named
    worker.rules = trusting(smallest_count=0)
    run(experiment_on(grid, tiny("fed-scan", {"clusters": 3, "device": "cpu"})), folder / "run")
    return worker.folder


def pictures(page: str) -> list[np.ndarray]:
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))) for text in found]


def test_it_shows_the_images_of_each_cluster(state: Path, tmp_path: Path) -> None:
    page = report(state, out=tmp_path / "out").read_text()
    found = np.load(state / "found.npz")["found"]
    clusters, sizes = np.unique(found, return_counts=True)
    for cluster, size in zip(clusters, sizes, strict=True):
        assert f"Cluster {cluster}: {size} image" in page
    assert len(pictures(page)) == sum(2 * min(size, EACH) for size in sizes)
    with (state / "clusters.csv").open(newline="", errors="surrogateescape") as file:
        rows = list(csv.DictReader(file))
    nearest = min(
        (row for row in rows if int(row["cluster"]) == clusters[0]),
        key=lambda row: float(row["distance"]),
    )
    first = page.partition('<ul class="images">')[2].partition("</li>")[0]
    assert f"distance {float(nearest['distance']):.3g}" in first
    assert "ward/07.png" in page


def test_names_are_no_html(state: Path, tmp_path: Path) -> None:
    page = report(state, out=tmp_path / "out").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;.png" in page
    assert "<img src=x" not in page
    assert "\x1b" not in page
    assert not re.search(r"<[a-z][^>]* on[a-z]+=", page)
    assert "default-src 'none'" in page


def test_it_says_what_was_sent(state: Path, tmp_path: Path) -> None:
    page = report(state, out=tmp_path / "out").read_text()
    entries = list(AuditLog(state).read())
    for asked in {entry.asked for entry in entries} - {"hello"}:
        own = [entry for entry in entries if entry.asked == asked]
        assert f'<th scope="row">{asked}</th><td>{len(own)}</td>' in page
        assert own[-1].time in page
    assert "facts of the images" in page
    assert "<dt>may send</dt><dd>sums</dd>" in page
    assert "No file was left out." in page


def test_what_was_left_out_is_named(tmp_path: Path) -> None:
    grid = grid_of(labelled_clients(30, 30), tmp_path)
    worker = next(iter(grid.workers.values()))
    data = worker.load(None)  # type: ignore[arg-type]
    assert isinstance(data, ImageData)
    bad = FileFacts("broken & <b>.png", reason="it is cut off")
    sizes = Sizes.of([(8, 8)] * len(data), colour=False)
    known = replace(data, reading=Reading((bad,), sizes))
    worker.load = lambda spec: known
    run(experiment_on(grid, tiny("ffcm-km", {"clusters": 3, "device": "cpu"})), tmp_path / "run")
    page = report(worker.folder, out=tmp_path / "out").read_text()
    assert "broken &amp; &lt;b&gt;.png" in page
    assert "it is cut off" in page


def test_the_command_writes_it_beside_the_state(state: Path) -> None:
    result = ccfcpp("report", state)
    assert (result.code, result.stdout.strip()) == (0, str(state / "report.html"))
    assert ccfcpp("report", state, state.parent / "run").code == 2


@pytest.mark.skipif(BROWSER is None, reason="no browser is on PATH")
@pytest.mark.parametrize("width", [400, 1280])
def test_it_fits_a_phone(state: Path, tmp_path: Path, width: int) -> None:
    page = report(state, out=tmp_path / "out")
    found = laid_out(page, width, tmp_path / "browser")
    assert found["complaints"] == []
    assert found["width"] <= width
    assert found["scripts"] == 0


# --- what is saved --------------------------------------------------------------------------------


def test_both_ends_of_a_cluster() -> None:
    rows = [{"cluster": n % 2, "distance": float(n), "probability": 1 - n / 100} for n in range(40)]
    assert typical(rows) == {0: [*range(0, 16, 2)], 1: [*range(1, 17, 2)]}
    assert unsure(rows) == {0: [*range(38, 22, -2)], 1: [*range(39, 23, -2)]}
    surest = [{"cluster": 0, "probability": n / 10} for n in range(10)]
    assert typical(surest) == {0: [9, 8, 7, 6, 5, 4, 3, 2]}
    assert unsure(surest) == {0: [*range(8)]}


def test_only_what_is_shown_is_kept_and_small(tmp_path: Path) -> None:
    images = torch.randint(0, 255, (50, 3, 200, 100), dtype=torch.uint8)
    found = torch.zeros(50, dtype=torch.int64)
    rows = [{"file": str(n), "cluster": 0, "distance": float(n)} for n in range(50)]
    save_results(tmp_path, found, rows, images)
    kept = ClientResults.read(tmp_path).pictures
    assert set(kept) == {*range(8), *range(42, 50)}
    assert {tuple(image.shape) for image in kept.values()} == {(3, 96, 48)}
    # What an earlier run has left goes.
    save_results(tmp_path, found, [], images)
    assert ClientResults.read(tmp_path) == ClientResults([], {}, [], [])


def test_vectors_have_no_pictures(tmp_path: Path) -> None:
    rows = [{"row": n, "cluster": 0} for n in range(20)]
    save_results(tmp_path, torch.zeros(20, dtype=torch.int64), rows, torch.zeros(20, 4))
    assert ClientResults.read(tmp_path).pictures == {}
    assert len(ClientResults.read(tmp_path).rows) == 20


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pictures.npz", b"PK"),
        ("pictures.npz", b""),
        ("pictures.npz", b"PK\x03\x04" + 50 * b"x"),
        ("clusters.csv", b"file,cluster\na,x\n"),
        ("clusters.csv", b"\n\n1\n"),
    ],
)
def test_damaged_files_are_refused(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match="damaged"):
        ClientResults.read(tmp_path)
