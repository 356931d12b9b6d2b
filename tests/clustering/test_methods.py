"""Every system runs on the engine: whole runs, failures, order, interruption, and bytes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from ccfcpp.clustering.ccfc.algorithm import CCFC
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.estimator import FederatedClustering
from ccfcpp.clustering.experiment import ClusteringExperiment
from ccfcpp.clustering.kmeans.server import kmeans
from ccfcpp.clustering.methods import METHODS, ClusteringAlgorithm, Setting
from ccfcpp.clustering.shallow.pixels import PixelRule
from ccfcpp.clustering.synthetic.pooled import ImagesUpdate, PooledClustering, PooledState
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import merge, resolve
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import RefusedUpdateError
from ccfcpp.engine.federation import Federation, RoundReport
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.payload import pack
from ccfcpp.runs.experiment import StoppedError
from ccfcpp.runs.folder import RunFolder
from tests.support.clustering import clients_of_sizes, digits
from tests.support.command import ccfcpp

TINY: Tree = {
    "model": {"widths": [4, 6], "projector_width": 12, "latent": 8, "predictor_width": 4},
    "training": {"rounds": 1, "pretrain_rounds": 1},
    "centroids": {"restarts": 2, "iterations": 10, "refine_steps": 1},
    "fuzzy": {"iterations": 5, "restarts": 2},
    "ffcm": {"rounds": 3},
    "gan": {
        "noise": 5, "generator_width": 16, "generator_channels": [6, 4], "batch_size": 16,
        "discriminator_channels": [4, 6], "discriminator_width": 8, "epochs": 3,
    },
    "dcn": {"widths": [16], "latent": 4, "pretrain_epochs": 2, "epochs": 2},
}  # fmt: skip
GANS: tuple[MethodName, ...] = ("sda-fc-km", "sda-fc-fcm", "ppfc-gan")
CPU = torch.device("cpu")
every_method = pytest.mark.parametrize("method", list(METHODS))


def tiny(method: str, *trees: Tree) -> ClusterConfig:
    tree = TINY
    for other in ({"method": method}, *trees):
        tree = merge(tree, other)
    return resolve(ClusterConfig, "cluster", {}, tree)


def made(
    config: ClusterConfig, clusters: int = 3, device: torch.device = CPU
) -> ClusteringAlgorithm[Any]:
    setting = Setting(config, (1, 8, 8), clusters, 30, 3, device)
    return METHODS[config.method].make(setting)


def run(
    config: ClusterConfig,
    clients: Sequence[Client],
    availability: Availability | None = None,
    device: torch.device = CPU,
) -> tuple[Any, list[RoundReport], Tensor]:
    """State, reports, and the clusters of some images, after all rounds."""
    algorithm = made(config, device=device)
    there = [Client(client.id, client.name, client.images.to(device)) for client in clients]
    federation: Federation[Any] = Federation(
        algorithm,
        there,
        availability or Availability(),
        Randomness(0),
        ClientMemories(device, budget=10**9),
    )
    state: Any = algorithm.initial_state(Randomness(0))
    reports = []
    for after, report in federation.run(state):
        state = after
        reports.append(report)
    probe = Client(-1, "probe", digits()[0][:200].to(device))
    return state, reports, algorithm.assign(state, probe).cpu()


def test_the_registry_has_every_name_of_the_configuration() -> None:
    assert tuple(METHODS) == get_args(MethodName)


@every_method
def test_a_whole_run(method: str, device: torch.device) -> None:
    state, reports, clusters = run(tiny(method), clients_of_sizes(30, 21, 12), device=device)
    assert 1 <= len(state.centroids) <= 3
    assert set(clusters.tolist()) <= set(range(len(state.centroids)))
    assert all(not report.refused for report in reports)
    assert reports[-1].bytes_up > 0


@every_method
def test_the_order_of_clients_does_not_matter(method: str) -> None:
    clients = clients_of_sizes(30, 21, 12)
    first, _, clusters = run(tiny(method), clients)
    second, _, others = run(tiny(method), clients[::-1])
    assert torch.equal(clusters, others)
    for name, entry in pack(first).items():
        assert torch.equal(entry, pack(second)[name]), name


@every_method
@pytest.mark.usefixtures("double_precision")
def test_cohorts_give_what_clients_one_by_one_do(method: str) -> None:
    clients = clients_of_sizes(30, 21, 12)
    states = [run(tiny(method, {"compute": {"cohort": n}}), clients)[0] for n in (1, 3)]
    alone, together = map(pack, states)
    for name, entry in alone.items():
        if name.startswith("samples"):  # rounded to bytes
            assert (entry.int() - together[name].int()).abs().max() <= 1
        else:
            assert torch.allclose(entry.double(), together[name].double(), atol=1e-4), name


@every_method
def test_a_client_that_is_absent_and_one_of_a_single_image(method: str) -> None:
    clients = clients_of_sizes(30, 21, 1)
    state, reports, _ = run(tiny(method), clients, Availability(dropout_rate=0.4))
    # GANs need no connection: in two of three rounds nobody is missed.
    assert any(len(report.clients) < 3 for report in reports) or method in GANS or len(reports) == 1
    assert state.centroids is None or bool(torch.isfinite(state.centroids).all())


@every_method
def test_a_run_that_is_stopped_after_each_round_ends_the_same(method: str, tmp_path: Path) -> None:
    config = tiny(method, {"partition": {"clients": 4}, "availability": {"dropout_rate": 0.2}})
    whole = ClusteringExperiment(config).run(RunFolder.create(tmp_path / "whole", config))
    folder = RunFolder.create(tmp_path / "broken", config)
    stops = 0
    while True:
        try:
            broken = ClusteringExperiment(config).run(folder, should_stop=lambda: True)
        except StoppedError:
            stops += 1
            continue
        break
    assert stops == whole["rounds"] - 1
    for key in ("nmi", "kappa", "bytes_up", "bytes_down", "rounds", "communication_rounds"):
        assert broken[key] == whole[key], key
    first, second = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "broken"))
    assert all(torch.equal(entry, second[name]) for name, entry in first.items())


@every_method
def test_the_estimator_takes_every_method(method: str) -> None:
    images = digits()[0][:90, 0].numpy()
    model = FederatedClustering(n_clusters=3, method=method, settings=TINY)
    model.fit(images, clients=np.array(["a", "b", "c"]).repeat(30))
    assert np.array_equal(model.predict(images[7:9]), model.labels_[7:9])
    assert model.cluster_centers_.shape[0] <= 3


# --- systems that send images -------------------------------------------------------------------


def test_km_is_k_means_of_all_images() -> None:
    clients = clients_of_sizes(30, 21, 12)
    config = tiny("km")
    state, (report,), clusters = run(config, clients)
    rule = PixelRule(config.pixels, (1, 8, 8))
    pooled = rule.points(torch.cat([client.images for client in clients]))
    seed = Randomness(0, 0).integer("k-means")
    found = kmeans(pooled, 3, seed=seed, restarts=2, iterations=10)
    assert torch.equal(state.centroids, found.centroids)
    assert torch.equal(clusters, rule.assign(digits()[0][:200], found.centroids))
    assert (report.bytes_down, report.bytes_up) == (0, 63 * 64 + 3 * 8)


@pytest.mark.parametrize("method", GANS)
def test_synthetic_images_travel_once_and_nothing_else_does(method: str) -> None:
    config = tiny(method, {"gan": {"images": 40}})
    state, reports, _ = run(config, clients_of_sizes(30, 21))
    assert [report.bytes_up for report in reports] == [0, 0, 2 * (40 * 64 + 8)]
    assert all(report.bytes_down == 0 for report in reports)
    assert {name: len(images) for name, images in state.samples.items()} == {"0": 24, "1": 24}
    assert {"generator_loss", "discriminator_loss"} <= reports[0].figures.keys()


@pytest.mark.parametrize("method", GANS)
def test_networks_are_forgotten_once_the_images_are_made(method: str) -> None:
    config = tiny(method)
    algorithm = made(config)
    memories = ClientMemories(CPU, budget=10**9)
    federation: Federation[Any] = Federation(
        algorithm, clients_of_sizes(30), Availability(), Randomness(0), memories
    )
    state = algorithm.initial_state(Randomness(0))
    for number in range(algorithm.rounds):
        state, _ = federation.run_round(state, number)
        assert (len(memories.take(0)) > 0) == (number < algorithm.rounds - 1)


def test_a_client_of_one_image_sends_nothing_and_the_others_do() -> None:
    state, reports, _ = run(tiny("sda-fc-km"), clients_of_sizes(30, 1))
    assert [list(report.refused) for report in reports] == [[], [], [1]]
    assert "a GAN needs two" in reports[-1].refused[1][0]
    assert list(state.samples) == ["0"]


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(0, 1, 8, 8, dtype=torch.uint8),
        torch.zeros(4, 1, 8, 7, dtype=torch.uint8),
        torch.zeros(4, 3, 8, 8, dtype=torch.uint8),
        torch.zeros(4, 1, 8, 8),
    ],
)
def test_what_are_no_images_is_refused(images: Tensor) -> None:
    algorithm = made(tiny("km"))
    assert isinstance(algorithm, PooledClustering)
    with pytest.raises(RefusedUpdateError, match="images are"):
        algorithm.pooling.check(PooledState(), ImagesUpdate(0, images))


def test_a_run_leaves_a_sheet_of_each_clients_images(tmp_path: Path) -> None:
    config = tiny("sda-fc-km", {"partition": {"clients": 3}})
    ClusteringExperiment(config).run(RunFolder.create(tmp_path / "run", config))
    sheets = sorted((tmp_path / "run" / "figures").glob("*.png"))
    assert [path.name for path in sheets] == [f"synthetic-client-{n}.png" for n in range(3)]
    assert Image.open(sheets[0]).size == (10 * 58 + 2, 8 * 58 + 2)


# --- the command --------------------------------------------------------------------------------


def test_the_summary_says_what_leaves_a_client(tmp_path: Path) -> None:
    result = ccfcpp("cluster", "--method", "k-fed", "--json", "--out", tmp_path / "run")
    summary = json.loads(result.stdout)
    assert summary["sends"] == "centroids"
    assert (summary["rounds"], summary["communication_rounds"]) == (1, 1)
    assert summary["local_clusters"] == 10
    assert "pretrain_rounds" not in summary


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--method", "km", "--eta", "0.1"), "loss.eta has no effect on km"),
        (("--method", "k-means"), "method = k-means is refused"),
        (("--method", "k-fed", "--set", "kfed.local_clusters=11"), "more than the 10 clusters"),
        (("--method", "fcm", "--set", "fuzzy.m=1"), "fuzzy.m = 1 is refused"),
        (
            ("--method", "ppfc-gan", "--set", "gan.discriminator_channels=[4,4,4,4]"),
            "gan.discriminator_channels",
        ),
        (("--method", "ppfc-gan", "--set", "gan.generator_channels=[]"), "gan.generator_channels"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: tuple[str, ...], complaint: str) -> None:
    result = ccfcpp("cluster", *arguments, "--out", tmp_path / "run")
    assert result.code == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_part_of_the_images_is_alike_for_every_seed() -> None:
    experiments = [
        ClusteringExperiment(tiny("km", {"data": {"images": 60}, "seed": seed})) for seed in (0, 1)
    ]
    first, second = (experiment.data for experiment in experiments)
    assert len(first) == 60
    assert torch.equal(first.images, second.images)
    assert first.labels is not None
    images, labels = digits()
    places = [int((images == image).flatten(1).all(1).nonzero()[0]) for image in first.images]
    assert places == sorted(places)
    assert torch.equal(labels[places], first.labels)
    assert len(ClusteringExperiment(tiny("km", {"data": {"images": 5000}})).data) == 1797


def test_ccfc_is_what_it_was() -> None:
    assert isinstance(made(tiny("ccfc")), CCFC)
