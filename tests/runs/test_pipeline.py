"""From settings to a run: what is checked before anything is made or written."""

import os
from pathlib import Path

import pytest

from ccfcpp.clustering.api import CLUSTERING
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.run import clustering_run
from ccfcpp.core.config_layers import Layers, validate
from ccfcpp.core.errors import UsageError
from ccfcpp.runs.paths import RunPaths, new_path, required_out
from ccfcpp.runs.run import AnyRun
from supervised.api import CLASSIFICATION

FIXED = ("km", "fcm", "k-fed", "spp-fgc")
"""Systems that take one round, whatever their settings."""


def asked(method: str, rounds: object, **values: object) -> Layers:
    return [{"method": method, "rounds": rounds, **values}]


@pytest.mark.parametrize("method", [name for name in METHODS.own() if name not in FIXED])
def test_every_system_takes_a_number_of_rounds(method: str) -> None:
    config = CLUSTERING.resolve_settings(asked(method, "7", partition={"clients": 3}))
    algorithm = clustering_run(config).algorithm
    # Of CCFC and CCFC++ they are those after pre-training.
    before = algorithm.describe().get("pretrain_rounds", 0)
    # Fed-EMP's are those of its encoder: k-means begins in one more, and ends in up to ten.
    after = 11 if method == "fed-emp" else 0
    assert algorithm.rounds - before - after == 7  # type: ignore[operator]


def test_a_folder_that_could_not_be_read_again_is_refused_before(tmp_path: Path) -> None:
    out = tmp_path / os.fsdecode(b"r\xe9sultat")
    with pytest.raises(
        UsageError, match=r"r\\udce9sultat' has bytes .* give another --out"
    ) as caught:
        CLUSTERING.open(asked("fed-scan", "4"), out)
    assert str(caught.value).encode()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", FIXED)
def test_a_system_of_one_round_refuses_a_number(method: str) -> None:
    with pytest.raises(UsageError, match=f"rounds = 3 has no effect on {method}, whose number"):
        CLUSTERING.resolve_settings(asked(method, "3"))


def test_a_round_of_fed_scan_is_so_many_steps() -> None:
    config = CLUSTERING.resolve_settings(asked("fed-scan", "4", scan={"steps_per_round": 7}))
    assert config.model_dump()["scan"]["steps"] == 28
    with pytest.raises(UsageError, match=r"rounds = 4 and scan\.steps = 5 set the same"):
        CLUSTERING.resolve_settings(asked("fed-scan", "4", scan={"steps": 5}))
    assert CLASSIFICATION.resolve_settings([{"rounds": "6"}]).training.rounds == 6


@pytest.mark.parametrize("rounds", ["0", "-1", "some", "1.5", "100000000"])
@pytest.mark.parametrize("method", ["fed-scan", "ffcm-km", "ppfc-gan"])
def test_what_is_no_number_of_rounds_is_refused_as_such(method: str, rounds: str) -> None:
    with pytest.raises(UsageError, match=rf"^rounds = {rounds} is refused: it should be"):
        CLUSTERING.resolve_settings(asked(method, rounds))


def test_a_run_goes_on_with_the_same_number_of_rounds(tmp_path: Path) -> None:
    opening = CLUSTERING.open(asked("fed-scan", "4"), tmp_path / "run")
    opening.open(lambda config: clustering_run(config))
    again = CLUSTERING.open([{"rounds": "4"}], tmp_path / "run", resume=True)
    assert again.goes_on
    assert again.config == opening.config
    with pytest.raises(UsageError, match=r"was started with scan.steps = 4: leave it out"):
        CLUSTERING.open([{"rounds": "5"}], tmp_path / "run", resume=True)


def test_values_that_change_nothing_are_refused_for_every_kind_of_run() -> None:
    for values, complaint in (
        (
            {"method": "km", "loss": {"eta": 0.3}},
            "loss.eta = 0.3 has no effect on km: .* ccfc, ccfc",
        ),
        ({"attack": {"scale": 2}}, "attack.scale = 2 has no effect: it needs attack.kind = scaled"),
    ):
        with pytest.raises(UsageError, match=complaint):
            CLUSTERING.resolve_settings([values])
        with pytest.raises(UsageError, match=complaint):
            CLUSTERING.resolve_settings([values, {}])
    with pytest.raises(UsageError, match=r"moon.mu = 1 has no effect on fedavg: .* one of moon"):
        CLASSIFICATION.resolve_settings([{"moon": {"mu": 1}}])


def test_a_new_run_has_no_folder_before_its_experiment_was_made(tmp_path: Path) -> None:
    opening = CLUSTERING.open([], tmp_path / "run")

    def refuse(config: ClusterConfig) -> AnyRun:
        raise UsageError("the images do not fit")

    with pytest.raises(UsageError, match="do not fit"):
        opening.open(refuse)
    assert not (tmp_path / "run").exists()
    _, folder = opening.open(clustering_run)
    assert folder.saved_config(ClusterConfig) == opening.config


def test_a_folder_that_is_taken_is_refused_at_once(tmp_path: Path) -> None:
    RunPaths.create(tmp_path / "run", validate(ClusterConfig, {}))
    with pytest.raises(UsageError, match="holds another run"):
        CLUSTERING.open([], tmp_path / "run")


def test_a_run_goes_on_with_its_own_values(tmp_path: Path) -> None:
    path = tmp_path / "run"
    RunPaths.create(path, validate(ClusterConfig, {"seed": 3}))
    opening = CLUSTERING.open([{"device": "cpu"}], path, resume=True)
    assert (opening.goes_on, opening.config.seed, opening.config.device) == (True, 3, "cpu")
    with pytest.raises(UsageError, match="was started with seed = 3: leave it out"):
        CLUSTERING.open([{"seed": 4}], path, resume=True)
    with pytest.raises(UsageError, match="no run to resume"):
        CLUSTERING.open([], tmp_path / "none", resume=True)


def test_a_new_path_names_method_and_images() -> None:
    assert new_path("ccfc++", "/data/my.photos.zip").name.endswith("-ccfc++-my")
    assert required_out(Path("x")) == Path("x")
    with pytest.raises(UsageError, match="give --out"):
        required_out(None)
