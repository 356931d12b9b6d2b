"""Plans and fakes of all tables and figures."""

from pathlib import Path

import pytest

from tests.support.reproduction import Fakes, Plans


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data sets that nobody may hand on: folders of their names."""
    root = tmp_path_factory.mktemp("data")
    for name in ("office-caltech10", "domainnet"):
        (root / name).mkdir()
    return root


@pytest.fixture(scope="session")
def plans(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Plans:
    return Plans(tmp_path_factory.mktemp("made"), data_root)


@pytest.fixture(scope="session")
def fakes(plans: Plans, tmp_path_factory: pytest.TempPathFactory) -> Fakes:
    return Fakes(tmp_path_factory.mktemp("finished"), plans)
