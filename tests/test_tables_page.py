"""Everything that docs/tables.md shows is run as it stands there, and says what is shown."""

import contextlib
import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
from sklearn.metrics import normalized_mutual_info_score

from tests.support.reader import Reader, read


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """One who has read the page to its end, in a folder of his own."""
    place = tmp_path_factory.mktemp("tables")
    with contextlib.chdir(place):
        yield read("tables.md", place)


def column(path: Path, name: str) -> list[str]:
    with path.open(newline="") as file:
        return [row[name] for row in csv.DictReader(file)]


def test_its_new_rows_are_clustered_by_what_they_are(reader: Reader) -> None:
    found = column(reader.place / "clusters.csv", "cluster")
    wanted = column(reader.place / "new.csv", "cultivar")
    assert len(found) == 18
    assert normalized_mutual_info_score(wanted, found) > 0.7


def test_its_models_agree(reader: Reader) -> None:
    assert reader.names["same"].tolist() == reader.names["model"].labels_.tolist()


def test_its_comparison_names_the_systems(reader: Reader) -> None:
    assert all(title in "".join(reader.seen) for title in ("Fed-KM", "Fed-EM", "k-FED"))
