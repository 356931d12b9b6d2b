"""A finished run goes on with newcomers: known clusters keep their numbers, new ones are found."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from ccfcpp.cli.app import main
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.experiment import ClusteringExperiment
from ccfcpp.clustering.finished import run_with
from ccfcpp.clustering.scan.newcomers import gathered, heads_at, unexplained
from ccfcpp.core.config import Tree
from ccfcpp.core.errors import StoppedError, UsageError
from ccfcpp.core.metrics import clustering_scores
from ccfcpp.core.randomness import generator_of
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
    ClusteringExperiment(config).run(RunFolder.create(folder / "run", config))
    return folder / "run"


def went_on(path: Path) -> tuple[Tensor, Tensor, RunPaths]:
    folder = RunFolder(path)
    ClusteringExperiment(folder.saved_config(ClusterConfig)).run(folder)
    found = folder.read_arrays("assignments")
    return found["cluster"], found["class"], folder


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
        ClusteringExperiment(folder.saved_config(ClusterConfig)).run(
            folder, should_stop=lambda: True
        )
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
    starts = gathered(found, 1, seed=0)
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
        (("--clusters", "5"), "--from needs the newcomers' images or vectors by --dataset"),
        (("--dataset", "NEW"), "by --clusters how many clusters there are then"),
        (("--dataset", "NEW", "--clusters", "3"), "3 is no more than the 3 of the finished run"),
        (("--dataset", "NEW", "--clusters", "5", "--p", "1"), "leave the partition out"),
        (("--dataset", "NEW", "--clusters", "5", "--rounds", "9"), "give --set scan.steps"),
        (("--dataset", "NEW", "--clusters", "5", "--resume"), "give one of them"),
        (("--dataset", "none/", "--clusters", "5"), "there is no folder none/"),
        (
            ("--dataset", "NEW", "--clusters", "5", "--set", "scan.hidden=8"),
            "leave scan.* as it is",
        ),
        (("--dataset", "NEW", "--clusters", "5", "--set", "scan.hiddn=8"), "did you mean"),
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


def test_other_runs_are_refused(tmp_path: Path) -> None:
    new, dataset = write(tmp_path / "new.npz", 6), write(tmp_path / "known.npz", 0, 1, 2)
    for name, config, reason in (
        ("k-fed", tiny("k-fed", {"dataset": dataset}), "is of k-fed, and --from goes on from one"),
        ("secure", tiny("fed-scan", {"dataset": dataset}, SCAN,
                        {"privacy": {"secure_sums": True}, "scan": {"steps": 2}}),
         "has protected sums"),
    ):  # fmt: skip
        folder = RunFolder.create(tmp_path / name, config)
        ClusteringExperiment(config).run(folder)
        with pytest.raises(UsageError, match=reason):
            run_with(folder.path, new, {"clusters": 5})
