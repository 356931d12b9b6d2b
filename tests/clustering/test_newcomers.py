"""A finished run goes on with newcomers: known clusters keep their numbers, new ones are found."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from ccfcpp.cli.app import main
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.follow_up import run_with, run_without
from ccfcpp.clustering.run import clustering_run
from ccfcpp.clustering.systems.fed_scan.newcomers import gathered, heads_at, unexplained
from ccfcpp.core.config import AvailabilityConfig, Tree
from ccfcpp.core.errors import FederationError, StoppedError, UsageError
from ccfcpp.core.metrics import clustering_scores
from ccfcpp.core.randomness import generator_of
from ccfcpp.data import ImageData
from ccfcpp.data.joining import join_samples
from ccfcpp.data.vectors import VectorData
from ccfcpp.engine.checkpoint import load_checkpoint
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.paths import RunPaths
from tests.support.clustering import digits, tiny

SCAN: Tree = {
    "seed": 1,
    "scan": {"widths": [16], "hidden": 64, "latent": 32, "steps": 60, "steps_per_round": 30,
             "batch": 150, "neighbours": 5, "mine_every": 15},
}  # fmt: skip


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
    path = run_with(run, new, {"clusters": 4, "scan": {"steps": 4}})
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


@given(st.integers(1, 3), st.integers(0, 3), st.integers(0, 2**32))
def test_what_known_centres_do_not_explain(new: int, known: int, seed: int) -> None:
    """Of groups far from each other, some with known centres: the others' means are found."""
    generator = generator_of(seed)
    places = torch.eye(known + new + 1).repeat(1, 2) * 50
    groups = [place + torch.randn(7, places.shape[1], generator=generator) for place in places]
    centres = torch.stack([group.mean(dim=0) for group in groups])
    held = torch.cat(groups[: known + new])
    fixed = torch.cat([centres[:known], centres[-1:]])
    found = unexplained(held, fixed, new, generator)
    expected = centres[known : known + new]
    order = torch.cdist(expected, found.centroids).argmin(dim=1)
    torch.testing.assert_close(found.centroids[order], expected)
    assert found.sizes.tolist() == [7] * new


def test_newcomers_that_hold_the_same_have_one_new_cluster() -> None:
    generator = generator_of(0)
    known, place = torch.zeros(1, 4), torch.full((4,), 20.0)
    held = [place + torch.randn(size, 4, generator=generator) for size in (9, 30)]
    found = [unexplained(own, known, 2, generator) for own in held]
    points, sizes = (torch.cat([getattr(one, n) for one in found]) for n in ("centroids", "sizes"))
    starts = gathered(points, sizes, 1, seed=0)
    torch.testing.assert_close(starts, torch.cat(held).mean(dim=0, keepdim=True))


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**32))
def test_a_new_head_leads_at_its_centre(new: int, known: int, seed: int) -> None:
    generator = generator_of(seed)
    centres, weight, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((new, 6), (known, 6), (known,))
    )
    heads, offsets = heads_at(centres, weight, bias)
    for i in range(new):
        together = sum(float((weight[j] @ centres[i] + bias[j]).exp()) for j in range(known))
        leads = float(heads[i] @ centres[i] + offsets[i]) - float(np.log(together))
        assert leads == pytest.approx(1)


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
def test_refused(
    words: tuple[str, ...],
    reason: str,
    before: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    new = write(tmp_path / "new.npz", 6)
    given = [new if word == "NEW" else word for word in words]
    out = "--out", str(tmp_path / "on")
    monkeypatch.setattr("sys.argv", ["ccfcpp", "cluster", "--from", str(before), *given, *out])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert reason in " ".join(capsys.readouterr().err.split())
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
        path = run_with(run, new, {"clusters": 4, "scan": {"steps": 4}}, tmp_path / str(number))
        _, _, folder = went_on(path)
        took = folder.read_summary()["participants"]
        assert [one["rounds"] for one in took] == [1] * 4


def test_newcomers_centres_are_traffic(before: Path, tmp_path: Path) -> None:
    new = write(tmp_path / "new.npz", 6, clients=True)
    path = run_with(before, new, {"clusters": 4, "scan": {"steps": 4}}, tmp_path / "on")
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
    # Nothing but the settings is looked at.
    folder.summary.write_text("{}")
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
    with pytest.raises(UsageError, match="forget the client there, and go on from what that gives"):
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


def test_vectors_of_two_encoders_do_not_meet() -> None:
    vectors = torch.zeros(3, 2)
    one, other = (VectorData("v", vectors, encoder=name * 64) for name in "ab")
    with pytest.raises(UsageError, match="were not made by the same encoder"):
        join_samples(one, other, "new")
    assert len(join_samples(one, one, "new")) == 6


def test_joined_samples_have_the_labels_of_both() -> None:
    def held(classes: tuple[str, ...], *names: str) -> ImageData:
        images = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
        return ImageData("i", images, torch.tensor([0, 1]), classes, names=names)

    whole = join_samples(held(("cat", "dog"), "a", "b"), held(("dog", "fox"), "a", "c"), "new")
    assert whole.labels is not None
    assert [whole.classes[label] for label in whole.labels] == ["cat", "dog", "dog", "fox"]
    assert whole.names == ("a", "b", "new/a", "new/c")
    unlabelled = ImageData("u", torch.zeros(1, 1, 4, 4, dtype=torch.uint8), None, ())
    assert join_samples(whole, unlabelled, "new").labels is None


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
