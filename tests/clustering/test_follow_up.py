"""Runs that follow a finished one: with newcomers and new clusters, or without a client.

Known clusters keep their numbers, and new ones are found. A run without a client is the run that
there would have been if it had never been there, or nearly so.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.follow_up import run_with, run_without
from ccfcpp.clustering.leakage import leakage
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.run import clustering_run
from ccfcpp.clustering.systems.fed_scan.config import ScanConfig
from ccfcpp.core.config import AvailabilityConfig, Tree
from ccfcpp.core.errors import FederationError, StoppedError, UsageError
from ccfcpp.core.metrics import clustering_scores
from ccfcpp.data.images import ImageData
from ccfcpp.engine.checkpoint import load_checkpoint
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.paths import RunPaths
from tests.support.clustering import digits, tiny
from tests.support.command import refused, succeeded

SCAN: Tree = {
    "seed": 1,
    "scan": {"widths": [16], "hidden": 64, "latent": 32, "steps": 60, "steps_per_round": 30,
             "batch": 150, "neighbours": 5, "mine_every": 15},
}  # fmt: skip
FAST: Tree = {"clusters": 4, "scan": {"steps": 4}}
NAMES = "lisbon", "porto", "faro", "3"
HELD: Tree = {"clusters": 3, "partition": {"kind": "folders"}}


def write(path: Path, *classes: int, clients: bool = False) -> str:
    images, labels = digits()
    chosen = torch.isin(labels, torch.tensor(classes))
    arrays: dict[str, Any] = {"images": images[chosen, 0].numpy(), "labels": labels[chosen].numpy()}
    np.savez(path, **arrays, **({"clients": arrays["labels"]} if clients else {}))
    return str(path)


def finished(folder: Path, *settings: Tree) -> Path:
    """A run of three digits over three clients."""
    dataset = write(folder / "known.npz", 0, 1, 2)
    config = tiny("fed-scan", {"dataset": dataset}, SCAN, *settings)
    clustering_run(config).run(RunFolder.create(folder / "run", config))
    return folder / "run"


def went_on(path: Path) -> tuple[Tensor, Tensor, RunPaths]:
    folder = RunFolder(path)
    clustering_run(folder.saved_config(ClusterConfig)).run(folder)
    found = folder.read_arrays("assignments")
    return found["cluster"], found.get("class", torch.tensor([])), folder


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("before"))


def test_known_clusters_keep_their_numbers_and_new_ones_are_found(
    before: Path, tmp_path: Path
) -> None:
    new = write(tmp_path / "new.npz", 6, 7, clients=True)
    known = RunFolder(before).read_arrays("assignments")["cluster"]
    path = run_with(before, new, {"clusters": 5}, tmp_path / "on")
    clusters, classes, folder = went_on(path)
    assert (clusters[: len(known)] == known).double().mean() > 0.9
    assert set(clusters[len(known) :].tolist()) >= {3, 4}
    assert clustering_scores(classes.numpy(), clusters.numpy())["nmi"] > 0.8
    names = [one["name"] for one in folder.read_summary()["participants"]]
    assert names == ["client 0", "client 1", "client 2", "6", "7"]
    assert not list(path.parent.glob(".from-*"))
    # And on from there, with a newcomer without a name.
    again = run_with(path, write(tmp_path / "last.npz", 4), {"clusters": 6}, tmp_path / "further")
    _, _, folder = went_on(again)
    names = [one["name"] for one in folder.read_summary()["participants"]]
    assert names[3:] == ["6", "7", "last"]


def test_without_its_checkpoint_a_run_does_not_begin_from_nothing(
    before: Path, tmp_path: Path
) -> None:
    path = run_with(before, write(tmp_path / "new.npz", 4), {"clusters": 5}, tmp_path / "on")
    shutil.rmtree(path / "checkpoint")
    with pytest.raises(UsageError, match=r"model of .* with which this run began: make it anew"):
        went_on(path)


def test_a_run_that_was_stopped_is_the_run_in_one_go(before: Path, tmp_path: Path) -> None:
    new = write(tmp_path / "new.npz", 6, clients=True)
    fast: Tree = {"clusters": 4, "scan": {"steps_per_round": 5}}
    whole, parts = (run_with(before, new, fast, tmp_path / name) for name in ("whole", "parts"))
    went_on(whole)
    folder = RunFolder(parts)
    with pytest.raises(StoppedError):
        clustering_run(folder.saved_config(ClusterConfig)).run(folder, should_stop=lambda: True)
    assert not folder.summary.is_file()
    went_on(parts)
    expected = load_file(whole / "model.safetensors")
    found = load_file(parts / "model.safetensors")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


def test_over_clusters_of_new_clusters_begin_there_too(tmp_path: Path) -> None:
    run = finished(tmp_path, {"scan": {"overclustering": 2}})
    new = write(tmp_path / "new.npz", 6, clients=True)
    clusters, classes, _ = went_on(run_with(run, new, {"clusters": 4}))
    assert clustering_scores(classes.numpy(), clusters.numpy())["nmi"] > 0.8


def test_over_clusters_go_on_as_they_are_merged(tmp_path: Path) -> None:
    """The first step keeps to the shares of known and new clusters."""
    run = finished(tmp_path, {"scan": {"overclustering": 2, "merged_from": 0.5}})
    new = write(tmp_path / "new.npz", 6, clients=True)
    path = run_with(run, new, FAST)
    state = begun(path)
    assert set(state.model["merge.groups"].tolist()) == {0, 1, 2, 3}
    shares = state.model["merge.shares"][:4].cpu()
    torch.testing.assert_close(shares, torch.full((4,), 0.25), atol=0.1, rtol=0)


def begun(path: Path) -> Any:
    """The state after the first exchange, which rounds that nobody took part in do not lose."""
    experiment = clustering_run(RunFolder(path).saved_config(ClusterConfig))
    kind, device = experiment.algorithm.state_type, experiment.device
    state = load_checkpoint(RunFolder(path).checkpoint, kind, device).state
    first, *_ = experiment.algorithm.exchanges(1, state)
    return experiment.federation().run_works([first], state, 1)[0]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--clusters", "5"), "--from needs --dataset: where the newcomers' images"),
        (("--dataset", "NEW"), "--from needs --clusters: how many there are"),
        (("--dataset", "NEW", "--clusters", "3"), "3 is no more than the 3 of the finished run"),
        (("--dataset", "NEW", "--clusters", "5", "--p", "1"), "leave the partition out"),
        (("--dataset", "NEW", "--clusters", "auto"), "--clusters auto does not go with --from"),
        (("--dataset", "NEW", "--clusters", "5", "--resume"), "give one of them"),
        (("--dataset", "none/", "--clusters", "5"), "there is no folder none/"),
        (("--dataset", "NEW", "--clusters", "5", "--set", "scan.hidden=8"), "scan.hidden cannot"),
        (("--dataset", "NEW", "--clusters", "5", "--secure-sums"), "--secure-sums cannot"),
        (("--dataset", "NEW", "--clusters", "5", "--seed", "7"), "seed cannot differ from that of"),
    ],
)
def test_refused(words: tuple[str, ...], reason: str, before: Path, tmp_path: Path) -> None:
    new = write(tmp_path / "new.npz", 6)
    given = [new if word == "NEW" else word for word in words]
    assert reason in refused("cluster", "--from", before, *given, "--out", tmp_path / "on")
    assert not (tmp_path / "on").exists()


def test_newcomers_that_hold_too_little_end_the_run(before: Path, tmp_path: Path) -> None:
    arrays = np.load(write(tmp_path / "new.npz", 6))
    few = tmp_path / "few.npz"
    np.savez(few, images=arrays["images"][:1], labels=arrays["labels"][:1])
    path = run_with(before, str(few), {"clusters": 5}, tmp_path / "on")
    with pytest.raises(FederationError, match="hold images for 1 of the 2 new heads"):
        went_on(path)


def test_a_run_with_dropout_and_late_clients_goes_on(tmp_path: Path) -> None:
    apart: Tree = {"availability": {"dropout_rate": 0.5, "late": [1], "late_rounds": 1}}
    run = finished(tmp_path, apart)
    new = write(tmp_path / "new.npz", 6, clients=True)
    for number in range(3):
        path = run_with(run, new, FAST, tmp_path / str(number))
        _, _, folder = went_on(path)
        took = folder.read_summary()["participants"]
        assert [one["rounds"] for one in took] == [1] * 4


def test_newcomers_centres_are_traffic(before: Path, tmp_path: Path) -> None:
    new = write(tmp_path / "new.npz", 6, clients=True)
    path = run_with(before, new, FAST, tmp_path / "on")
    config = RunFolder(path).saved_config(ClusterConfig)
    config = config.model_copy(update={"availability": AvailabilityConfig(without=(0, 1, 2))})
    experiment = clustering_run(config)
    checkpoint = load_checkpoint(
        RunFolder(path).checkpoint, experiment.algorithm.state_type, experiment.device
    )
    first = experiment.algorithm.exchanges(0, checkpoint.state)[0]
    state, report = experiment.federation().run_works([first], checkpoint.state, 0)
    # A centre of 32 numbers, and the size of its cluster.
    assert report.bytes_up == 32 * 4 + 8
    assert state.grown is None
    assert len(state.groups) == 4


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"method": "k-fed"}, "is of k-fed: run it again with --method fed-scan"),
        ({"clusters": "2-4"}, "found its number of clusters"),
        ({"privacy": {"secure_sums": True}}, "has protected sums"),
    ],
)
def test_other_runs_are_refused(settings: Tree, reason: str, tmp_path: Path) -> None:
    dataset = write(tmp_path / "known.npz", 0, 1, 2)
    config = tiny("fed-scan", {"dataset": dataset}, SCAN, {"scan": {"steps": 2}}, settings)
    folder = RunFolder.create(tmp_path / "run", config)
    # Of its results nothing is looked at but who took part.
    folder.summary.write_text('{"clients": 3, "participants": []}')
    folder.checkpoint.parent.mkdir()
    folder.checkpoint.write_text("")
    with pytest.raises(UsageError, match=reason):
        run_with(folder.path, write(tmp_path / "new.npz", 6), {"clusters": 5})
    assert sorted(each.name for each in tmp_path.iterdir()) == ["known.npz", "new.npz", "run"]


def test_who_was_absent_stays_so_and_a_later_run_forgets_nobody(tmp_path: Path) -> None:
    run = finished(tmp_path, {"availability": {"disconnection_rate": 0.4}})
    there = [one["client"] for one in RunPaths(run).read_summary()["participants"]]
    assert len(there) == 2
    new = write(tmp_path / "new.npz", 6, clients=True)
    fast: Tree = {"clusters": 4, "rounds": 2, "scan": {"steps_per_round": 2}}
    _, _, folder = went_on(run_with(run, new, fast))
    assert folder.read_summary()["rounds"] == 2
    found = [one["client"] for one in folder.read_summary()["participants"]]
    assert found == [*there, 3]
    with pytest.raises(UsageError, match="Then, or to forget a newcomer, go on from there anew"):
        run_without(folder.path, ["6"])


def of_vectors(path: Path, columns: Sequence[int], rows: slice) -> str:
    images, _ = digits()
    named = ",".join(f"c{column}" for column in columns)
    values = images.flatten(1)[rows][:, list(columns)].numpy()
    np.savetxt(path, values, fmt="%d", delimiter=",", header=named, comments="")
    return str(path)


def test_columns_of_vectors_are_found_by_name(tmp_path: Path) -> None:
    columns = list(range(16, 48))
    dataset = of_vectors(tmp_path / "known.csv", columns, slice(0, 90))
    plain: Tree = {"clusters": 2, "partition": {"kind": "iid", "clients": 2}}
    config = tiny("fed-scan", {"dataset": dataset, "vectors": {"scale": "none"}}, SCAN, plain)
    run = RunFolder.create(tmp_path / "run", config)
    clustering_run(config).run(run)
    models = []
    for name, order in (("same", columns), ("turned", columns[::-1])):
        new = of_vectors(tmp_path / f"{name}.csv", order, slice(90, 150))
        path = run_with(run.path, new, {"clusters": 3}, tmp_path / name)
        went_on(path)
        models.append(load_file(path / "model.safetensors"))
    assert all(torch.equal(tensor, models[1][key]) for key, tensor in models[0].items())


def test_folders_of_photos_come_later(tmp_path: Path) -> None:
    """Each folder is a client, or the whole where it has none; what is left out is named."""
    images, labels = digits()
    for place, digit in (
        ("known/a", 0),
        ("known/b", 1),
        ("new/c", 6),
        ("new/a ", 6),
        ("new/.thumbs", 6),
        ("one", 7),
    ):
        (tmp_path / place).mkdir(parents=True)
        for number, image in enumerate(images[labels == digit][:30]):
            Image.fromarray(image[0].numpy()).save(tmp_path / place / f"{number}.png")
    (tmp_path / "new/c/bad.png").write_bytes(b"no image")
    held: Tree = {"dataset": str(tmp_path / "known"), "clusters": 2, "data": {"skip": 0.1}}
    config = tiny("fed-scan", held, SCAN, {"partition": {"kind": "folders"}})
    run = RunFolder.create(tmp_path / "run", config)
    clustering_run(config).run(run)
    later = run_with(run.path, str(tmp_path / "new"), {"clusters": 3}, tmp_path / "later")
    went_on(later)
    _, _, folder = went_on(run_with(later, str(tmp_path / "one"), {"clusters": 4}))
    assert [one["name"] for one in folder.read_summary()["participants"]] == [
        *("a", "b", "new/a", "c", "one")
    ]
    assert "new/c/bad.png" in (folder.path / "skipped.csv").read_text()
    rows = (folder.path / "clusters.csv").read_text().splitlines()
    assert len(rows) == 1 + 5 * 30
    assert any(row.startswith("one/7.png,") for row in rows)


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
    everything = len(np.load(write(tmp_path / "count.npz", 0, 1, 2))["labels"])
    path = finished(tmp_path, {"data": {"images": everything - 20}})
    folder = RunFolder(run_without(path, ["2"], quick=True))
    summary = clustering_run(folder.saved_config(ClusterConfig)).run(folder)
    assert [one["client"] for one in summary["participants"]] == [0, 1]
    assert summary["rounds"] == 1
    before, after = (load_file(n / "model.safetensors") for n in (path, folder.path))
    assert int(after["version"]) == 60 + 12
    changed = (after["model/encoder.0.weight"] - before["model/encoder.0.weight"]).norm()
    assert 0 < changed < before["model/encoder.0.weight"].norm()
    # The forgotten client's images are attacked, and not taken for others that nobody has seen.
    found = leakage(folder.path, "2")["membership"]
    held = RunPaths(path).read_summary()["participants"][2]["samples"]
    assert (found["members"], found["others"]) == (held, 20)

    # Once more: from there on, with as many steps and the same rate.
    config = folder.saved_config(ClusterConfig)
    again = RunFolder(run_without(folder.path, ["1"], tmp_path / "again", quick=True))
    assert again.saved_config(ClusterConfig).section(ScanConfig) == config.section(ScanConfig)
    with pytest.raises(UsageError, match="went on from another one, which knew its clients"):
        run_without(folder.path, ["1"])
    with pytest.raises(UsageError, match=r"client = 7 is refused: the run's clients are 0 to 2"):
        leakage(folder.path, "7")


def test_quickly_only_those_are_left_out_that_are_forgotten_or_were_absent(tmp_path: Path) -> None:
    late: Tree = {"late": [1], "late_rounds": 1, "disconnection_rate": 0.2}
    path = finished(tmp_path, {"partition": {"clients": 5}, "availability": late})
    there = [one["client"] for one in RunPaths(path).read_summary()["participants"]]
    assert len(there) == 4
    folder = RunFolder(run_without(path, [str(there[2])], quick=True))
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


def test_the_command_runs_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    digits_of = "--set", "data.images=200", "--clusters", "4"
    succeeded("cluster", "--method", "k-fed", *digits_of, "--out", folder)
    succeeded("forget", folder, "--client", "client 2", "--client", "5")
    summary = RunPaths(tmp_path / "run-without-2-5").read_summary()
    there = [one["client"] for one in summary["participants"]]
    assert there == [0, 1, 3, 4, 6, 7, 8, 9]
    taken = refused("forget", folder, "--client", "2", "--client", "5")
    assert "run-without-2-5 holds another run" in taken
    assert "holds no run (no config.yaml)" in refused("forget", tmp_path, "--client", "2")


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
