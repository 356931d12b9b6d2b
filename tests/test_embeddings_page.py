"""Everything that docs/embeddings.md shows is run as it stands there, with weights from a seed."""

import contextlib
import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import models

from tests.support.reader import Reader, read

pytestmark = pytest.mark.nightly(
    *("docs/embeddings.md", "ccfcpp/cli", "ccfcpp/clustering", "ccfcpp/data", "ccfcpp/reports"),
    "tests/support/reader.py",
)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """One who has read the page to its end, where the weights were fetched before."""
    place = tmp_path_factory.mktemp("embeddings")
    weights = models.ResNet18_Weights.DEFAULT
    fetched = place / "torch" / "hub" / "checkpoints" / weights.url.rpartition("/")[2]
    fetched.parent.mkdir(parents=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.save(models.resnet18(weights=None).state_dict(), fetched)
    with contextlib.chdir(place), pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_HOME", str(place / "torch"))
        patch.setenv("CCFCPP_CACHE", str(place / "cache"))
        yield read("embeddings.md", place)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_its_new_photos_are_clustered_by_what_they_show(reader: Reader) -> None:
    found = rows(reader.place / "clusters.csv")
    assert len(found) == 9
    kinds = {(row["file"].split("/")[0], row["cluster"]) for row in found}
    assert len(kinds) == len({cluster for _, cluster in kinds}) == 3


def test_its_vectors_have_names_and_clients(reader: Reader) -> None:
    files = sorted((reader.place / "vectors").iterdir())
    assert [file.name for file in files] == ["lisbon.npz", "oslo.npz", "rome.npz"]
    with np.load(files[0]) as own:
        assert own["vectors"].shape == (24, 512)
        assert own["names"][0] == "lisbon/sea/0.png"
    assert rows(reader.place / "runs/vectors/clusters.csv")[0]["name"] == "lisbon/sea/0.png"


def test_its_systems_find_what_photos_show(reader: Reader) -> None:
    found = {
        row["method"]: float(row["nmi"]) for row in rows(reader.place / "runs/systems/table.csv")
    }
    assert found.keys() == {"fed-em", "fed-km", "k-fed", "spp-fgc"}
    assert min(found.values()) > 0.5


def test_its_page_shows_photos(reader: Reader) -> None:
    figures = reader.place / "runs" / "photos" / "figures"
    nearest = rows(figures / "nearest.csv")
    assert {row["file"].split("/")[0] for row in nearest} <= {"lisbon", "oslo", "rome"}
    assert (figures / "nearest.png").stat().st_size > 20_000


def test_its_model_agrees_with_itself(reader: Reader) -> None:
    model, images = reader.names["model"], reader.names["images"]
    assert model.predict(images[:5]).tolist() == model.labels_[:5].tolist()
    model.save(reader.place / "saved")
    same = type(model).load(reader.place / "saved")
    assert same.predict(images).tolist() == model.labels_.tolist()
