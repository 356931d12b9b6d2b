"""A run without a client is the run that there would have been if it had never been there."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ccfcpp.cli.app import main
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.follow_up import run_without
from ccfcpp.clustering.leakage import leakage
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.run import clustering_run
from ccfcpp.clustering.systems.fed_scan.config import ScanConfig
from ccfcpp.core.config import Tree
from ccfcpp.core.errors import UsageError
from ccfcpp.data import ImageData
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.paths import RunPaths
from tests.support.clustering import digits, tiny

NAMES = "lisbon", "porto", "faro", "3"
HELD: Tree = {"clusters": 3, "partition": {"kind": "folders"}}


def owned(*owners: int) -> ImageData:
    """Digits of some of four owners."""
    images = digits()[0][:80]
    numbers = torch.arange(len(images)) % len(NAMES)
    kept = torch.isin(numbers, torch.tensor(owners))
    return ImageData(
        "digits",
        images[kept],
        None,
        (),
        owners=numbers[kept],
        owner_names=tuple(NAMES[owner] for owner in owners),
    )


def run(folder: Path, config: ClusterConfig, data: ImageData) -> Path:
    clustering_run(config, data).run(RunFolder.create(folder, config))
    return folder


@pytest.mark.parametrize("method", METHODS.own())
def test_it_is_the_run_that_there_would_have_been(method: str, tmp_path: Path) -> None:
    config = tiny(method, HELD, {"availability": {"dropout_rate": 0.2, "disconnection_rate": 0.3}})
    whole = run(tmp_path / "whole", config, owned(0, 1, 2, 3))
    again = RunFolder(run_without(whole, ["3"]))
    assert again.path == tmp_path / "whole-without-3"
    clustering_run(again.saved_config(ClusterConfig), owned(0, 1, 2, 3)).run(again)
    never = run(tmp_path / "never", config, owned(0, 1, 2))
    before, found, expected = (
        load_file(folder / "model.safetensors") for folder in (whole, again.path, never)
    )
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
    assert any(not torch.equal(tensor, before[name]) for name, tensor in found.items())


@pytest.mark.parametrize("given", ["002", "2", "2.0"])
def test_a_client_is_known_by_any_spelling_of_its_name(tmp_path: Path, given: str) -> None:
    data = replace(owned(0, 1, 2), owner_names=("001", "002", "010"))
    whole = run(tmp_path / "whole", tiny("fed-km", HELD), data)
    again = RunFolder(run_without(whole, [given])).saved_config(ClusterConfig)
    assert again.availability.without == (1,)


def test_fed_scan_forgets_in_a_fifth_of_its_steps(tmp_path: Path) -> None:
    images, labels = digits()
    shown, classes = images[:200, 0].numpy(), labels[:200].numpy()
    np.savez(tmp_path / "four.npz", images=shown, labels=classes, clients=np.arange(200) % 4)
    steps: Tree = {"scan": {"steps": 60, "steps_per_round": 15}}
    here: Tree = {"dataset": str(tmp_path / "four.npz"), "clusters": 3, "data": {"images": 180}}
    config = tiny("fed-scan", HELD, steps, here)
    clustering_run(config).run(RunFolder.create(tmp_path / "run", config))
    folder = RunFolder(run_without(tmp_path / "run", ["2"], quick=True))
    summary = clustering_run(folder.saved_config(ClusterConfig)).run(folder)
    assert [one["client"] for one in summary["participants"]] == [0, 1, 3]
    assert summary["rounds"] == 1
    before, after = (load_file(tmp_path / n / "model.safetensors") for n in ("run", folder.path))
    assert int(after["version"]) == 60 + 12
    changed = (after["model/encoder.0.weight"] - before["model/encoder.0.weight"]).norm()
    assert 0 < changed < before["model/encoder.0.weight"].norm()
    # The forgotten client's images are attacked, and not taken for others that nobody has seen.
    found = leakage(folder.path, "2")["membership"]
    held = 180 - sum(one["samples"] for one in summary["participants"])
    assert (found["members"], found["others"]) == (held, 20)

    # Once more: from there on, with as many steps and the same rate.
    config = folder.saved_config(ClusterConfig)
    again = RunFolder(run_without(folder.path, ["3"], tmp_path / "again", quick=True))
    assert again.saved_config(ClusterConfig).section(ScanConfig) == config.section(ScanConfig)
    with pytest.raises(UsageError, match="went on from another one, which knew its clients"):
        run_without(folder.path, ["3"])
    with pytest.raises(UsageError, match=r"client = 7 is refused: the run's clients are 0 to 3"):
        leakage(folder.path, "7")


def test_quickly_only_those_are_left_out_that_are_forgotten_or_were_absent(tmp_path: Path) -> None:
    images, labels = digits()
    shown, classes = images[:120, 0].numpy(), labels[:120].numpy()
    np.savez(tmp_path / "five.npz", images=shown, labels=classes, clients=np.arange(120) % 5)
    steps: Tree = {"scan": {"steps": 60, "steps_per_round": 15}}
    here: Tree = {"dataset": str(tmp_path / "five.npz"), "clusters": 3}
    late: Tree = {"availability": {"late": [1], "late_rounds": 2, "disconnection_rate": 0.2}}
    config = tiny("fed-scan", HELD, steps, here, late)
    before = clustering_run(config).run(RunFolder.create(tmp_path / "run", config))
    there = [one["client"] for one in before["participants"]]
    assert len(there) == 4
    folder = RunFolder(run_without(tmp_path / "run", [str(there[2])], quick=True))
    summary = clustering_run(folder.saved_config(ClusterConfig)).run(folder)
    assert [one["client"] for one in summary["participants"]] == [*there[:2], there[3]]


def test_only_fed_scan_forgets_quickly(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", tiny("k-fed", HELD), owned(0, 1, 2, 3))
    with pytest.raises(UsageError, match=r"forget --quick cannot go on from .* of k-fed"):
        run_without(whole, ["3"], quick=True)
    assert not (tmp_path / "whole-without-3").exists()


def test_who_is_forgotten_stays_so(tmp_path: Path) -> None:
    """Names go before numbers: one client here is called as another one is numbered."""
    whole = run(tmp_path / "whole", tiny("k-fed", HELD), owned(0, 1, 2, 3))
    first = RunFolder(run_without(whole, ["porto"], tmp_path / "first"))
    clustering_run(first.saved_config(ClusterConfig), owned(0, 1, 2, 3)).run(first)
    second = RunPaths(run_without(first.path, ["3"], tmp_path / "second"))
    assert second.saved_config(ClusterConfig).availability.without == (1, 3)
    with pytest.raises(UsageError, match="no client porto took part"):
        run_without(first.path, ["porto"])
    with pytest.raises(UsageError, match="without all of its clients would have nobody"):
        run_without(first.path, ["lisbon", "faro", "3"])


def test_the_command_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*words: str) -> int:
        monkeypatch.setattr("sys.argv", ["ccfcpp", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0)

    folder = str(tmp_path / "run")
    digits_of = "--set", "data.images=200", "--clusters", "4"
    assert command("cluster", "--method", "k-fed", *digits_of, "--out", folder) == 0
    assert command("forget", folder, "--client", "client 2", "--client", "5") == 0
    summary = RunPaths(tmp_path / "run-without-2-5").read_summary()
    there = [one["client"] for one in summary["participants"]]
    assert there == [0, 1, 3, 4, 6, 7, 8, 9]
    capsys.readouterr()
    assert command("forget", folder, "--client", "2", "--client", "5") == 2
    assert command("forget", str(tmp_path), "--client", "2") == 2
    errors = capsys.readouterr().err
    assert "run-without-2-5 holds another run" in errors
    assert "holds no run (no config.yaml)" in errors


def test_only_finished_runs_of_clustering_in_one_process(tmp_path: Path) -> None:
    config = tiny("k-fed", HELD)
    folder = RunFolder.create(tmp_path / "run", config)
    with pytest.raises(UsageError, match="is not finished: go on with it by ccfcpp cluster"):
        run_without(folder.path, ["3"])
    folder.deployment.write_text("{}")
    with pytest.raises(UsageError, match="start ccfcpp serve again without the client's key"):
        run_without(folder.path, ["3"])


def test_a_client_that_is_not_there_cannot_be_left_out() -> None:
    config = tiny("k-fed", HELD, {"availability": {"without": [3]}})
    with pytest.raises(UsageError, match="names client 3, and there is none: clients are 0 to 2"):
        clustering_run(config, owned(0, 1, 2))
