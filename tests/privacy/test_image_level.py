"""The image level of CCFC and CCFC++ in whole small runs."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from ccfcpp.clustering.kmeans.centroids import cluster_sums
from ccfcpp.clustering.kmeans.lloyd import EncoderState, MoveCentroids
from ccfcpp.clustering.run import ClusteringRun, clustering_run
from ccfcpp.clustering.systems.ccfc.messages import LABELS, refinement_exchange
from ccfcpp.clustering.systems.ccfc.synchronised import CollectSizes
from ccfcpp.clustering.systems.fed_scan.messages import CENTRES
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import parse_assignments
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import ServerWork, Task
from ccfcpp.engine.payload import pack
from ccfcpp.engine.synchronised.contract import Batch, StepMessage
from ccfcpp.engine.synchronised.descent import BatchPart, StepWork
from ccfcpp.engine.update_format import group_names
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.mechanism import bounds_of
from ccfcpp.privacy.noise.per_image_clipping import ImageBounding
from tests.support.clustering import tiny
from tests.support.command import refused, set_options, succeeded

pytestmark = pytest.mark.skipif(
    find_spec("dp_accounting") is None, reason="dp-accounting is an extra: ccfcpp[privacy]"
)
SETTINGS = (
    "training.pretraining=neighbours", "training.steps=synchronised", "scan.pairs=views",
    "centroids.search=lloyd", "centroids.refine_steps=1", "scan.overclustering=1",
)  # fmt: skip
SMALL = (
    "model.widths=[4]", "model.projector_width=8", "model.latent=6", "model.predictor_width=4",
    "training.rounds=1", "training.synchronised_batch=60", "scan.steps=4", "scan.steps_per_round=2",
    "scan.batch=60", "data.images=150",
)  # fmt: skip
COMMAND = ("cluster", "--preset", "published", "--clients", "3", "--privacy", "image")
NEEDED_BY = {
    "training.synchronised_batch=60": "training.steps=synchronised",
    "scan.overclustering=1": "centroids.search=lloyd",
}
"""What has no effect without another setting, and is then refused first."""


def command(method: str, *without: str) -> list[str]:
    given = [s for s in (*SMALL, *SETTINGS) if not {s, NEEDED_BY.get(s)} & {*without}]
    return [*COMMAND, "--method", method, *set_options(*given)]


REFINEMENT = refinement_exchange(unit_length=True)


def entries(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def test_a_run_from_the_command_line_can_be_made_again_and_tells_what_it_spent(
    tmp_path: Path,
) -> None:
    for name in ("one", "two"):
        more = ("--epsilon", 50, "--reproducible-noise", "--out", tmp_path / name)
        succeeded(*command("ccfc++"), *more)
    one, two = tmp_path / "one", tmp_path / "two"
    weights = [(folder / "model.safetensors").read_bytes() for folder in (one, two)]
    assert weights[0] == weights[1]
    privacy = entries(one)["privacy"]
    assert privacy == entries(two)["privacy"]
    assert privacy["level"] == "image"
    assert 0 < privacy["epsilon"] <= 50
    lines = [json.loads(line) for line in (one / "privacy.jsonl").read_text().splitlines()]
    assert len(lines) == 3  # one for each round


@pytest.mark.parametrize(
    ("method", "without", "reason"),
    [
        (
            "ccfc++",
            "training.steps=synchronised",
            "in ccfc++'s exchange 'pre-training' what one image",
        ),
        ("ccfc", "centroids.search=lloyd", "'centroids' the server needs each client's part"),
        ("ccfc++", "scan.pairs=views", "set scan.pairs=views and scan.overclustering=1"),
    ],
)
def test_what_cannot_have_it_is_refused_with_one_line(
    method: str, without: str, reason: str, tmp_path: Path
) -> None:
    assert reason in refused(*command(method, without), "--out", tmp_path / "run")
    assert not (tmp_path / "run" / "privacy.jsonl").exists()


def experiment(method: str = "ccfc++", **privacy: object) -> ClusteringRun:
    settings = parse_assignments((*SETTINGS, *SMALL, "partition.clients=3"))
    tree: Tree = {"privacy": {"level": "image", "epsilon": 1e6, "clip": 0.01, **privacy}}
    return clustering_run(tiny(method, settings, tree))


def test_one_image_changes_what_its_client_sends_by_its_bound_at_most() -> None:
    """Of labels, of Lloyd's sums, of the head's sums, and of a step's first sums."""
    run = experiment(reproducible_noise=True)
    initial = run.algorithm.initial_state(run.randomness)
    states = [initial, *(state for state, _ in run.federation().run(initial))]
    last: EncoderState = states[-1]
    steps = [w for w in run.algorithm.exchanges(2, last) if w.exchange.name.startswith("contrast")]
    works: list[tuple[EncoderState, ServerWork[Any, Any, Any]]] = [
        (last, CollectSizes(10)),
        (last, steps[0]),
        (last, MoveCentroids(REFINEMENT)),
        (states[1], run.algorithm.exchanges(1, states[1])[-2]),
    ]
    assert [w.exchange.name for _, w in works][2:] == [REFINEMENT.name, CENTRES.name]
    whole = run.clients[0]
    clients = [Client(0, "a", whole.images), Client(0, "a", whole.images[:-1])]
    for state, work in works:
        name = work.exchange.name
        sent = [
            pack(
                run.client_side.works[name].local_updates(
                    Task("ccfc++", name, 2, 0), work.broadcast(state), [client], run.randomness
                )[0]
            )
            for client in clients
        ]
        added = {key: sent[0][key] - sent[1][key] for key in sent[0]}
        for group, names in group_names(work.exchange.parts, added).items():
            norm = float(sum(added[key].square().sum() for key in names)) ** 0.5
            assert norm <= 0.01 * (1 + 1e-9), (name, group)
            assert norm > 0.009 or name not in (LABELS.name, REFINEMENT.name, CENTRES.name)


def test_what_no_image_exceeds_is_its_bound_where_the_configured_one_is_larger() -> None:
    run = experiment(clip=100.0)
    config = run.setting.privacy
    known = {name: work.exchange for name, work in run.client_side.works.items()}

    def bound(exchange: str, group: str) -> float:
        return bounds_of(config, known[exchange]).of(group)

    assert bound(LABELS.name, "counts") == 1
    assert bound(REFINEMENT.name, "sums") == 1  # normalised
    assert bound(CENTRES.name, "sums") == 100  # not normalised
    assert bound("contrast step, trip 1", "sums/clusters") == 3**0.5
    assert bound("contrast step, trip 1", "sums/backbone.1") == 100
    assert bound("contrast step, trip 1", "gradient") == 100 / 60


@pytest.mark.parametrize("reproducible", [False, True])
def test_views_follow_from_the_runs_seed_only_where_noise_does(reproducible: bool) -> None:
    """By views that can be drawn again one could tell how many images of a client are shown."""
    run, sources = experiment(reproducible_noise=reproducible), list[Randomness]()

    class Seen:
        """Batches that are never shown."""

        def batch(
            self, task: Task, known: StepMessage, turns: Sequence[BatchPart], randomness: Randomness
        ) -> Batch | None:
            sources.append(randomness)
            return None

    for work in run.client_side.works.values():
        if isinstance(work, StepWork) and work.number == 0:
            assert isinstance(work.steps.bounding, ImageBounding)
            work.steps.batches = Seen()
            for _ in range(2):
                task = Task("ccfc++", work.exchange.name, 0, 0)
                work.local_sum(task, StepMessage(0), run.clients, run.randomness)
    assert len(sources) == 6  # Fed-SCAN's steps, pre-training, contrast: twice each
    assert len(set(sources) | {run.randomness}) == (1 if reproducible else 7)


def test_sums_of_clusters_are_those_of_a_loop_over_images() -> None:
    generator = torch.Generator().manual_seed(3)
    points = torch.randn(12, 4, generator=generator)
    labels = torch.randint(0, 3, (12,), generator=generator)
    config = PrivacyConfig(level="image", clip=0.5, clips={"sums": 1.5})
    exchange = refinement_exchange(unit_length=False)
    for bounding in (None, ImageBounding(config)):
        sums, counts = torch.zeros(3, 4).double(), torch.zeros(3).double()
        for point, label in zip(points.double(), labels.tolist(), strict=True):
            within = 1.0 if bounding is None else min(1.0, 1.5 / float(point.norm()))
            sums[label] += within * point
            counts[label] += 1.0 if bounding is None else 0.5
        found = cluster_sums(points, labels, 3, exchange, bounding, least=0)
        torch.testing.assert_close(found.sums, sums)
        torch.testing.assert_close(found.counts, counts)


@pytest.mark.parametrize("spoilt", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_adds_nothing_to_sums_of_clusters(spoilt: float) -> None:
    generator = torch.Generator().manual_seed(3)
    points, labels = torch.randn(12, 4, generator=generator), torch.arange(12) % 3
    exchange = refinement_exchange(unit_length=False)
    bounding = ImageBounding(PrivacyConfig(level="image", clip=0.5))
    rest = torch.arange(12) != 7
    expected = cluster_sums(points[rest], labels[rest], 3, exchange, bounding, least=0)
    points[7, 2] = spoilt
    found = cluster_sums(points, labels, 3, exchange, bounding, least=0)
    assert torch.equal(found.sums, expected.sums)
