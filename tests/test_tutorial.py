"""Everything that docs/tutorial.md shows is run as it stands there, and says what is shown."""

import contextlib
import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from tests.support.command import set_options
from tests.support.pages import DOCS, blocks
from tests.support.reader import Reader, read

PAGE = "tutorial.md"
nightly = pytest.mark.nightly(
    *("docs/tutorial.md", "ccfcpp/cli", "ccfcpp/clustering", "ccfcpp/data", "ccfcpp/reports"),
    *("ccfcpp/studies", "tests/support/reader.py"),
)
FEW = set_options("scan.steps=4", "scan.mine_every=2")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """One who has read the page to its end, in a folder of his own."""
    place = tmp_path_factory.mktemp("tutorial")
    with contextlib.chdir(place):
        yield read(PAGE, place)


def clusters(table: Path) -> dict[str, str]:
    """The cluster of each photo, by its file."""
    with table.open(newline="") as file:
        return {row["file"]: row["cluster"] for row in csv.DictReader(file)}


def purity(found: Sequence[object], classes: Sequence[int]) -> float:
    """Share of the photos that are of the most frequent class of their cluster."""
    by_cluster: dict[object, list[int]] = {}
    for cluster, one in zip(found, classes, strict=True):
        by_cluster.setdefault(cluster, []).append(one)
    return sum(max(map(own.count, own)) for own in by_cluster.values()) / len(classes)


def test_all_of_it_can_be_typed(tmp_path: Path) -> None:
    """With few steps, and without reports: what it all comes to is for the night."""
    reader = Reader(tmp_path, FEW)
    with contextlib.chdir(tmp_path):
        for block in blocks(PAGE):
            text = re.sub("^ccfcpp report .*\n", "", block.text, flags=re.MULTILINE)
            reader.type(block.language, text.replace('"steps": 60', '"steps": 4'))
    assert len(clusters(tmp_path / "photos.csv")) == 90
    assert len(reader.names["model"].labels_) == 90


@nightly
def test_its_photos_are_clustered_by_what_they_show(reader: Reader) -> None:
    there = reader.place / "photos.csv"
    digits = [int(one) for one in reader.names["wanted"][:102]]
    shown = {f"photo-{number:03}.png": digit for number, digit in enumerate(digits)}
    old, new = clusters(there), clusters(there.with_name("new.csv"))
    assert (len(old), len(new)) == (90, 12)
    classes = [shown[Path(file).name] for file in [*old, *new]]
    assert purity([*old.values(), *new.values()], classes) > 0.9
    labels = reader.names["model"].labels_
    assert purity(labels.tolist(), [shown[Path(file).name] for file in old]) > 0.9


@nightly
def test_its_page_has_the_photos_nearest_to_each_cluster(reader: Reader) -> None:
    page = (reader.place / "runs" / "k3" / "report.html").read_text()
    assert 'id="figure-nearest"' in page


@nightly
def test_its_number_of_clusters_is_the_largest_stable_one(reader: Reader) -> None:
    runs = reader.place / "runs"
    found = {k: json.loads((runs / f"k{k}" / "summary.json").read_text()) for k in (2, 3, 5)}
    if torch.cuda.is_available():
        pytest.skip("the page has the numbers of a run without a GPU")
    # Halves have 45 photos, and may agree on four clusters, by the kind of processor.
    assert found[2]["stability"] == found[3]["stability"] == 1.0
    assert found[5]["silhouette"] < found[3]["silhouette"] - 0.1
    assert found[5]["stability"] < 0.8
    for score, sign in (("silhouette", -1), ("davies_bouldin", 1)):
        worse = {k: sign * own[score] for k, own in found.items()}
        assert worse[5] - worse[3] > max(0.05, 2 * (worse[3] - worse[2]))
    best = max(own["silhouette"] for own in found.values())
    good = [k for k, own in found.items() if own["stability"] >= 0.8]
    assert max(k for k in good if found[k]["silhouette"] > best - 0.1) == 3
    page = (runs / "compared" / "report.html").read_text()
    assert 'id="figure-stability-between-halves-by-k"' in page


@nightly
def test_its_run_says_what_predict_says(reader: Reader) -> None:
    assert clusters(reader.place / "runs" / "k3" / "clusters.csv") == clusters(
        reader.place / "photos.csv"
    )


@nightly
def test_its_models_agree_on_new_photos(reader: Reader) -> None:
    by_command = clusters(reader.place / "new.csv")
    in_python = reader.names["assigned"].tolist()
    assert [int(cluster) for cluster in by_command.values()] == in_python


def test_its_picture_is_there_and_small() -> None:
    pictures = re.findall(r"!\[[^]]*\]\((\S+)\)", (DOCS / PAGE).read_text())
    assert pictures
    assert all(0 < (DOCS / picture).stat().st_size < 100_000 for picture in pictures)
