"""A folder is looked at once while settings are checked, and again when it has changed."""

import os
from pathlib import Path

import pytest

from ccfcpp.clustering.api import CLUSTERING
from ccfcpp.core import data_kinds
from ccfcpp.core.config_layers import unflatten
from ccfcpp.core.errors import UsageError


def test_a_folder_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Path] = []
    look = data_kinds.files_of

    def noting(path: Path) -> list[Path]:
        looks.append(path)
        return look(path)

    monkeypatch.setattr(data_kinds, "files_of", noting)
    (tmp_path / "photos").mkdir()
    settings = {"dataset": str(tmp_path / "photos"), "clusters": 3, "vectors.components": 2}
    with pytest.raises(UsageError, match="it needs a dataset of vectors"):
        CLUSTERING.open([unflatten(settings)], tmp_path / "run")
    assert looks == [tmp_path / "photos"]
    (tmp_path / "photos" / "a.csv").write_text("1,2\n3,4\n")
    os.utime(tmp_path / "photos", ns=(1, 1))
    CLUSTERING.open([unflatten(settings)], tmp_path / "run")
    assert len(looks) == 2


@pytest.mark.parametrize(
    "name",
    [
        *("RECYCLER", "Network Trash Folder", "Temporary Items", "@SynoResource", "@SynoEAStream"),
        *("@__thumb", "@sharesnap", "FOUND.000", "found.012", "Thumbs.db", "._x.xlsx", "~$x.xlsx"),
    ],
)
def test_what_systems_leave_is_hidden(name: str) -> None:
    assert data_kinds.is_hidden(name)


@pytest.mark.parametrize("name", ["found", "found.0001", "recycling", "temporary", "thumb"])
def test_other_names_are_not(name: str) -> None:
    assert not data_kinds.is_hidden(name)
