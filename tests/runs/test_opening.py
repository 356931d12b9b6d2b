"""Opening runs: what is checked before anything is made or written."""

from pathlib import Path
from typing import Any

import pytest

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config_layers import validate
from ccfcpp.core.errors import UsageError
from ccfcpp.runs.opening import Opening, new_path, required_out
from ccfcpp.runs.paths import RunPaths


def config(**values: object) -> ClusterConfig:
    return validate(ClusterConfig, dict(values))


def test_a_new_run_has_no_folder_before_its_experiment_was_made(tmp_path: Path) -> None:
    opening = Opening.new(tmp_path / "run", config())

    def refuse(config: ClusterConfig) -> Any:
        raise UsageError("the images do not fit")

    with pytest.raises(UsageError, match="do not fit"):
        opening.open(refuse)
    assert not (tmp_path / "run").exists()
    _, folder = opening.open(lambda config: object())  # type: ignore[type-var]
    assert folder.saved_config(ClusterConfig) == config()


def test_a_folder_that_is_taken_is_refused_at_once(tmp_path: Path) -> None:
    RunPaths.create(tmp_path / "run", config())
    with pytest.raises(UsageError, match="holds another run"):
        Opening.new(tmp_path / "run", config())


def test_a_run_goes_on_with_its_own_values(tmp_path: Path) -> None:
    path = tmp_path / "run"
    RunPaths.create(path, config(seed=3))
    opening = Opening.going_on(path, ClusterConfig, {"device": "cpu"})
    assert (opening.goes_on, opening.config.seed, opening.config.device) == (True, 3, "cpu")
    with pytest.raises(UsageError, match="was started with seed = 3: leave it out"):
        Opening.going_on(path, ClusterConfig, {"seed": 4})
    with pytest.raises(UsageError, match="no run to resume"):
        Opening.going_on(tmp_path / "none", ClusterConfig)


def test_a_new_path_names_method_and_images() -> None:
    assert new_path("ccfc++", "/data/my.photos.zip").name.endswith("-ccfc++-my")
    assert required_out(Path("x")) == Path("x")
    with pytest.raises(UsageError, match="give --out"):
        required_out(None)
