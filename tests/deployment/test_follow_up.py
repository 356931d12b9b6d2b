"""A finished run on several machines goes on with new clients and new clusters."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.follow_up import run_with
from ccfcpp.clustering.run import clustering_run
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import merge, validate
from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.server.enrolling import Enroller, enrol
from ccfcpp.deployment.server.enrolment import Enrolment
from ccfcpp.deployment.server.follow_up import run_with_clients
from ccfcpp.deployment.server.run import DeployedRun
from ccfcpp.engine.client import Client
from ccfcpp.runs.folder import RunFolder
from tests.clustering.test_follow_up import SCAN
from tests.deployment.test_experiment import grid_of
from tests.support.clustering import digits, tiny
from tests.support.command import ccfcpp
from tests.support.deployment import Grid

_KNOWN, _NEW = ((0, 1), (2,)), ((6,),)
_SHORT: Tree = {"scan": {"steps": 6, "steps_per_round": 3, "precision": "full"}}


def _holding(number: int, classes: tuple[int, ...]) -> Client:
    images, labels = digits()
    chosen = torch.isin(labels, torch.tensor(classes))
    return Client(number, f"client {number}", images[chosen], labels[chosen])


def _clients() -> list[Client]:
    return [_holding(number, classes) for number, classes in enumerate((*_KNOWN, *_NEW))]


def _config(*settings: Tree) -> ClusterConfig:
    one_head: Tree = {"scan": {"overclustering": 1}}
    return tiny("fed-scan", {"clusters": 3, "device": "cpu"}, SCAN, one_head, *settings)


def _begun(grid: Grid, folder: Path, config: ClusterConfig) -> Path:
    """A finished run of the clients that are there."""
    enrolment = enrol(grid.channel, config, list(grid.workers), 2)
    experiment = DeployedRun(config, enrolment, grid.channel)
    run = RunFolder.create(folder, config)
    experiment.run(run)
    enrolment.save(run.deployment)
    return folder


def _goes_on(grid: Grid, path: Path, names: list[str]) -> dict[str, Any]:
    folder = RunFolder(path)
    config, before = folder.saved_config(ClusterConfig), Enrolment.load(folder.deployment)
    late = Enroller(grid.channel, before, config, names)
    return DeployedRun(config, late.gather(), grid.channel).run(folder)


def _as_file(path: Path, clients: list[Client]) -> str:
    images = torch.cat([one.images for one in clients])[:, 0].numpy()
    labels = torch.cat([one.labels for one in clients if one.labels is not None]).numpy()
    owners = np.concatenate([[one.name] * len(one) for one in clients])
    np.savez(path, images=images, labels=labels, clients=owners)
    return str(path)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> tuple[Grid, Path]:
    """Three clients, of which the last is away, and a finished run of the others."""
    folder = tmp_path_factory.mktemp("federation")
    grid = grid_of(_clients(), folder)
    grid.away.add("client 2")
    return grid, _begun(grid, folder / "a", _config({"scan": {"precision": "full"}}))


def test_known_clusters_keep_their_numbers(federation: tuple[Grid, Path], tmp_path: Path) -> None:
    grid, run = federation
    folders = [grid.workers[name].folder for name in ("client 0", "client 1")]
    known = [np.load(folder / "found.npz")["found"] for folder in folders]
    grid.away.clear()
    path = run_with_clients(run, {"clusters": 4}, tmp_path / "b")
    summary = _goes_on(grid, path, list(grid.workers))
    grid.away.add("client 2")
    assert (summary["clusters"], summary["connected"]) == (4, 3)
    after = [np.load(folder / "found.npz")["found"] for folder in folders]
    same = [np.mean(one == other) for one, other in zip(known, after, strict=True)]
    assert min(same) > 0.9
    new = np.load(grid.workers["client 2"].folder / "found.npz")["found"]
    assert np.mean(new == 3) > 0.9


def test_it_is_the_run_in_one_process(tmp_path: Path) -> None:
    grid = grid_of(_clients(), tmp_path)
    grid.away.add("client 2")
    config = _config(_SHORT)
    run = _begun(grid, tmp_path / "a", config)
    grid.away.clear()
    fast: Tree = {"clusters": 4, "scan": {"steps": 4}}
    path = run_with_clients(run, fast, tmp_path / "b")
    _goes_on(grid, path, list(grid.workers))
    known, new = _clients()[:2], _clients()[2:]
    # Where clients may be absent, their parts are kept one by one, as those of other machines.
    held: Tree = {"partition": {"kind": "folders"}, "availability": {"dropout_rate": 1e-9}}
    here: Tree = {**held, "dataset": _as_file(tmp_path / "known.npz", known)}
    alone = validate(ClusterConfig, merge(config.model_dump(mode="json"), here))
    clustering_run(alone).run(RunFolder.create(tmp_path / "c", alone))
    fast |= {"availability": held["availability"]}
    on = run_with(tmp_path / "c", _as_file(tmp_path / "new.npz", new), fast, tmp_path / "d")
    folder = RunFolder(on)
    clustering_run(folder.saved_config(ClusterConfig)).run(folder)
    found, expected = (load_file(place / "model.safetensors") for place in (path, on))
    assert torch.equal(found["groups"], expected["groups"])
    for name, part in expected.items():
        if name.startswith("model/"):
            assert torch.equal(found[name], part), name


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("clusters", "clusters = 3 is no more than the 3 of the finished run"),
        ("setting", "scan.hidden cannot differ from that of"),
        ("process", "holds no run of ccfcpp serve"),
        ("unfinished", "is not finished: go on with it by ccfcpp serve --out"),
    ],
)
def test_what_cannot_go_on(
    what: str, reason: str, federation: tuple[Grid, Path], tmp_path: Path
) -> None:
    _, run = federation
    given: Tree = {"clusters": 3 if what == "clusters" else 4}
    if what == "setting":
        given["scan"] = {"hidden": 9}
    elif what in ("process", "unfinished"):
        run = RunFolder.create(tmp_path / "other", _config()).path
        if what == "unfinished":
            (run / "deployment.json").write_text("{}")
    with pytest.raises(UsageError, match=reason):
        run_with_clients(run, given, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_run_that_has_its_newcomers_waits_for_none(
    federation: tuple[Grid, Path], tmp_path: Path
) -> None:
    """Also where it is resumed before its first round has ended."""
    grid, run = federation
    path = run_with_clients(run, {"clusters": 4}, tmp_path / "b")
    before = Enrolment.load(path / "deployment.json")
    assert before.waits_for_newcomers
    grid.away.clear()
    gathered = Enroller(grid.channel, before, _config(), list(grid.workers)).gather()
    grid.away.add("client 2")
    gathered.save(path / "deployment.json")
    assert not Enrolment.load(path / "deployment.json").waits_for_newcomers


def test_a_roster_without_a_new_client_is_refused(
    federation: tuple[Grid, Path], tmp_path: Path
) -> None:
    grid, run = federation
    path = run_with_clients(run, {"clusters": 4}, tmp_path / "b")
    with pytest.raises(UsageError, match="no client of the roster is new"):
        _goes_on(grid, path, ["client 0", "client 1"])


def test_the_command_says_what_it_needs(federation: tuple[Grid, Path], tmp_path: Path) -> None:
    _, run = federation
    result = ccfcpp("serve", "--from", run, "--insecure", "--clients", 3, "--out", tmp_path / "b")
    assert result.code == 2
    assert "--from needs --clusters: how many there are with the new ones" in result.stderr
    more = ("--insecure", "--clients", 3, "--clusters", 4, "--out", tmp_path / "b")
    result = ccfcpp("serve", "--from", run, "--task", "classify", *more)
    assert result.code == 2
    assert "--from goes on with clustering alone" in result.stderr
    assert not (tmp_path / "b").exists()
