"""A clustering run, from its configuration to its results."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.model import load_model
from ccfcpp.clustering.run import ClusteringRun, clustering_run
from ccfcpp.clustering.systems.shallow.pixels import PixelRule
from ccfcpp.core.config import Tree
from ccfcpp.core.errors import StoppedError, UsageError
from ccfcpp.core.metrics import clustering_scores, covariance
from ccfcpp.data.images import ImageData
from ccfcpp.runs.evaluator import Scores
from ccfcpp.runs.folder import RunFolder
from tests.support.clustering import digits, tiny

_TO_FIND: Tree = {"clusters": "2-5", "data": {"images": 200}}
_BY_NEIGHBOURS: Tree = {"training": {"pretraining": "neighbours"}, "centroids": {"search": "lloyd"}}


@pytest.mark.parametrize(
    ("method", "other"),
    [
        *((name, {}) for name in METHODS.own()),
        ("fed-scan", _TO_FIND),
        ("ccfc++", _TO_FIND | _BY_NEIGHBOURS),
    ],
)
def test_a_run_that_is_stopped_after_each_round_ends_the_same(
    method: str, other: Tree, tmp_path: Path
) -> None:
    common: Tree = {"partition": {"clients": 4}, "availability": {"dropout_rate": 0.2}}
    config = tiny(method, common | {"data": {"images": 400}}, other)
    whole = clustering_run(config).run(RunFolder.create(tmp_path / "whole", config))
    folder = RunFolder.create(tmp_path / "broken", config)
    stops = 0
    while True:
        try:
            broken = clustering_run(config).run(folder, should_stop=lambda: True)
        except StoppedError:
            stops += 1
            continue
        break
    assert stops == whole["rounds"] - 1
    for key in ("nmi", "kappa", "bytes_up", "bytes_down", "rounds", "communication_rounds"):
        assert broken[key] == whole[key], key
    if other:
        scores = whole["clusters_evidence"]
        assert broken["clusters_evidence"] == scores
        assert list(scores) == ["2", "3", "4", "5"]
        assert scores[str(whole["clusters"])] == max(scores.values())
        assert sorted(scores.values())[-2] == scores[str(whole["clusters_runner_up"])]
        with np.load(tmp_path / "whole" / "assignments.npz") as arrays:
            assert arrays["cluster"].max() < whole["clusters"]
        model = load_model(tmp_path / "whole", "cpu")
        assert int(model.assign(digits()[0]).max()) < whole["clusters"]
    first, second = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "broken"))
    assert all(torch.equal(entry, second[name]) for name, entry in first.items())


def test_a_run_leaves_a_sheet_of_each_clients_images(tmp_path: Path) -> None:
    config = tiny("sda-fc-km", {"partition": {"clients": 3}})
    clustering_run(config).run(RunFolder.create(tmp_path / "run", config))
    sheets = sorted((tmp_path / "run" / "figures").glob("*.png"))
    assert [path.name for path in sheets] == [f"synthetic-client-{n}.png" for n in range(3)]
    assert Image.open(sheets[0]).size == (10 * 58 + 2, 8 * 58 + 2)


def few_digits(labelled: bool = True) -> ImageData:
    images, labels = (part[:80] for part in digits())
    if not labelled:
        return ImageData("mine", images, None, ())
    return ImageData("mine", images, labels, tuple(map(str, range(10))))


def run(
    path: Path, data: ImageData, *trees: Tree
) -> tuple[ClusteringRun, dict[str, Any], list[Scores]]:
    """FFCM over four clients; the scores of each round."""
    config = tiny("ffcm-avg", {"partition": {"kind": "iid", "clients": 4}}, *trees)
    experiment, scored = clustering_run(config, data), list[Scores]()
    folder = RunFolder.create(path, config)
    summary = experiment.run(folder, lambda report, scores: scored.append(scores))
    return experiment, summary, scored


def test_scores_are_those_of_the_assignments(tmp_path: Path) -> None:
    data = few_digits()
    experiment, summary, scored = run(tmp_path / "run", data)
    assert data.labels is not None
    with np.load(tmp_path / "run" / "assignments.npz") as arrays:
        expected = clustering_scores(data.labels.numpy(), arrays["cluster"])
        assert arrays["class"].tolist() == data.labels.tolist()
        for number, part in enumerate(experiment.parts):
            assert set(arrays["client"][part.numpy()]) == {number}
    assert {key: summary[key] for key in expected} == expected
    assert scored[-1] == expected
    assert len(scored) == summary["rounds"]


def test_rounds_are_scored_as_often_as_was_asked_for(tmp_path: Path) -> None:
    _, _, scored = run(tmp_path / "run", few_digits(), {"evaluate_every": 2})
    assert [bool(scores) for scores in scored] == [False, True, False]


def test_without_labels_there_are_clusters_and_no_scores(tmp_path: Path) -> None:
    _, summary, scored = run(tmp_path / "run", few_digits(labelled=False), {"clusters": 3})
    assert summary["nmi"] is summary["ari"] is None
    assert not any(scored)
    with np.load(tmp_path / "run" / "assignments.npz") as arrays:
        assert set(arrays.files) == {"name", "client", "cluster", "distance"}
        assert set(arrays["cluster"].tolist()) <= {0, 1, 2}


def test_images_of_clients_that_are_absent_are_clustered_all_the_same(tmp_path: Path) -> None:
    absent: Tree = {"availability": {"disconnection_rate": 0.5}}
    experiment, summary, _ = run(tmp_path / "run", few_digits(), absent)
    assert (summary["clients"], summary["connected"], summary["disconnected"]) == (4, 2, 2)
    assert (summary["samples"], summary["held"]) == (80, 40)
    held = torch.cat([experiment.parts[client.id] for client in experiment.clients])
    assert sorted([*held.tolist(), *experiment.evaluator.unheld.tolist()]) == list(range(80))
    state = load_file(tmp_path / "run" / "model.safetensors")
    rule = PixelRule.of(experiment.evaluator.problem)
    with np.load(tmp_path / "run" / "assignments.npz") as arrays:
        everywhere = rule.assign(experiment.data.values.cpu(), state["centroids"])
        assert arrays["cluster"].tolist() == everywhere.tolist()


def scores_by_hand(folder: Path, clients: list[int]) -> Scores:
    """Scores over the images of some clients, from the file of assignments."""
    with np.load(folder / "assignments.npz") as arrays:
        theirs = np.isin(arrays["client"], clients)
        return clustering_scores(arrays["class"][theirs], arrays["cluster"][theirs])


@pytest.mark.parametrize("method", METHODS.own())
def test_images_of_connected_and_of_absent_clients_are_scored_apart(
    method: str, tmp_path: Path
) -> None:
    partition = {"kind": "dirichlet", "clients": 4, "min_samples": 2}
    config = tiny(
        method, {"partition": partition, "availability": {"disconnection_rate": 0.5}, "seed": 1}
    )
    experiment = clustering_run(config, few_digits())
    summary = experiment.run(RunFolder.create(tmp_path / "run", config))
    connected = [client.id for client in experiment.clients]
    assert sorted([*connected, *experiment.absent]) == [0, 1, 2, 3]
    assert len(experiment.absent) == 2
    assert summary["scores_connected"] == scores_by_hand(tmp_path / "run", connected)
    assert summary["scores_absent"] == scores_by_hand(tmp_path / "run", experiment.absent)
    assert summary["scores_connected"] != summary["scores_absent"]
    overall = scores_by_hand(tmp_path / "run", [0, 1, 2, 3])
    assert {key: summary[key] for key in overall} == overall


def test_where_nobody_is_absent_all_images_are_of_connected_clients(tmp_path: Path) -> None:
    experiment, summary, _ = run(tmp_path / "run", few_digits())
    assert experiment.absent == []
    assert summary["scores_absent"] is None
    assert summary["scores_connected"] == {key: summary[key] for key in summary["scores_connected"]}


def test_images_that_nobody_holds_are_of_neither(tmp_path: Path) -> None:
    """Four clients, each with one of ten classes."""
    skew: Tree = {"partition": {"kind": "skew", "p": 1}}
    absent: Tree = {"availability": {"disconnection_rate": 0.25}}
    experiment, summary, _ = run(tmp_path / "run", few_digits(), skew, absent)
    assert sum(map(len, experiment.parts)) < 80
    connected = [client.id for client in experiment.clients]
    assert len(connected) == 3
    assert summary["scores_connected"] == scores_by_hand(tmp_path / "run", connected)
    assert summary["scores_absent"] == scores_by_hand(tmp_path / "run", experiment.absent)


def test_without_labels_or_images_there_are_no_scores_of_absent_clients(tmp_path: Path) -> None:
    absent: Tree = {"availability": {"disconnection_rate": 0.5}}
    unlabelled = few_digits(labelled=False)
    _, summary, _ = run(tmp_path / "unlabelled", unlabelled, absent, {"clusters": 3})
    assert summary["scores_connected"] is summary["scores_absent"] is None
    # Of two owners one holds everything; with this seed the other one is absent.
    names, owners = ("all", "nothing"), torch.zeros(80, dtype=torch.int64)
    owned = replace(few_digits(), owners=owners, owner_names=names)
    folders: Tree = {"partition": {"kind": "folders", "clients": 2}, "seed": 1}
    experiment, summary, _ = run(tmp_path / "owned", owned, absent, folders)
    assert [experiment.names[each] for each in experiment.absent] == ["nothing"]
    assert summary["scores_absent"] is None
    assert summary["scores_connected"]["nmi"] == summary["nmi"]


def test_what_is_delivered_is_counted(tmp_path: Path) -> None:
    """The centroids, without how far they have moved."""
    _, summary, _ = run(tmp_path / "run", few_digits(), {"clusters": 3})
    assert summary["bytes_delivered"] == 3 * 64 * 4


def test_where_nobody_holds_an_image_nothing_can_be_run() -> None:
    data = few_digits()
    settings: Tree = {
        "clusters": 1,
        "partition": {"kind": "folders"},
        "availability": {"disconnection_rate": 0.5},
    }
    # Of two owners one holds everything; whichever is connected depends on the seed.
    names, owners = ("all", "nothing"), torch.zeros(80, dtype=torch.int64)
    owned = replace(data, owners=owners, owner_names=names)
    outcomes = set()
    for seed in range(8):
        config = tiny("km", settings, {"seed": seed})
        try:
            experiment = clustering_run(config, owned)
        except UsageError as error:
            outcomes.add(str(error))
        else:
            outcomes.add(experiment.clients[0].name)
    assert outcomes == {"all", "no connected client holds an image: give fewer clients"}


def test_what_a_report_shows_is_kept(tmp_path: Path) -> None:
    experiment, _, _ = run(tmp_path / "run", few_digits())
    folder = RunFolder(tmp_path / "run")
    shown, images = folder.read_arrays("shown"), folder.read_arrays("assignments")
    pixels = PixelRule.of(experiment.evaluator.problem).points(experiment.data.values)
    expected = pixels.cpu().double()
    # 64 dimensions, of which the first components tell most.
    assert shown["points"].shape == (len(expected), 50)
    assert shown["index"].tolist() == list(range(len(expected)))
    apart, told = torch.pdist(expected), torch.pdist(shown["points"])
    assert bool((told <= apart + 1e-9).all())
    assert float(told.mean() / apart.mean()) > 0.95
    assert not shown["by_angle"]
    torch.testing.assert_close(shown["covariance"], covariance(expected).float())
    for number, picture in zip(shown["pictured"].tolist(), shown["pictures"], strict=True):
        assert torch.equal(picture, experiment.data.values[number].cpu())
    distance = images["distance"]
    for cluster in set(images["cluster"].tolist()):
        own = (images["cluster"] == cluster).nonzero().flatten()
        ends = {int(own[distance[own].argmin()]), int(own[distance[own].argmax()])}
        assert ends <= set(shown["pictured"].tolist())
