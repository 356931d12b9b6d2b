"""The last round's local models beside the global one: what a run keeps of them."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.run import ClusteringRun, clustering_run
from ccfcpp.clustering.systems.ccfc.network import ContrastiveModel, make_model
from ccfcpp.core.config_layers import merge, parse_assignments, resolve
from ccfcpp.core.metrics import effective_rank, spectrum
from ccfcpp.data.images import to_float
from ccfcpp.models.state import ModelState
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.local_spectra import LocalSpectra, describe_spectra
from ccfcpp.runs.run import AnyLocalRun
from supervised.classification import ClassificationRun, classification_run
from supervised.config import ClassifyConfig
from tests.support.command import TINY_TREE, ccfcpp

SMALL_CLASSIFIER = (
    "training.rounds=2",
    "training.local_epochs=1",
    "partition.clients=3",
    "model.widths=[4]",
    "model.representation=6",
    "data.train_images=150",
    "data.test_images=60",
)


def clustering(*settings: str) -> ClusteringRun:
    tree = merge(TINY_TREE, parse_assignments(settings))
    return clustering_run(resolve(ClusterConfig, "cluster", tree))


def classification(*settings: str) -> ClassificationRun:
    tree = parse_assignments([*SMALL_CLASSIFIER, *settings])
    return classification_run(resolve(ClassifyConfig, "classify", tree))


def models_of_the_last_round(experiment: AnyLocalRun) -> dict[int, ModelState]:
    """Copies of all local models, by a federation of its own."""
    last = experiment.algorithm.rounds - 1
    seen: dict[int, ModelState] = {}

    def look(number: int, client: int, model: ModelState) -> None:
        if number == last:
            seen[client] = {name: entry.clone() for name, entry in model.items()}

    federation = experiment.federation(observer=look)
    for _ in federation.run(experiment.algorithm.initial_state(experiment.randomness)):
        pass
    return seen


@torch.no_grad()
def plain_latents(model: ContrastiveModel, weights: ModelState, images: Tensor) -> Tensor:
    model.load_state_dict(weights)
    model.eval()
    latents, _ = model(to_float(images.cpu()))
    assert isinstance(latents, Tensor)
    return latents


def finished(experiment: AnyLocalRun, path: Path, config: Any) -> dict[str, Any]:
    folder = RunFolder.create(path, config)
    return experiment.run(folder)


def test_spectra_of_local_models_are_those_of_plain_modules(tmp_path: Path) -> None:
    experiment = clustering()
    models = models_of_the_last_round(clustering())
    summary = finished(experiment, tmp_path / "run", experiment.config)
    module = make_model(experiment.evaluator.config, (1, 8, 8))
    with np.load(tmp_path / "run/spectra.npz") as arrays:
        assert arrays["client"].tolist() == sorted(models) == [0, 1, 2, 3]
        ranks, gaps = [], []
        for client, values in zip(arrays["client"], arrays["local"], strict=True):
            latents = plain_latents(module, models[int(client)], experiment.data.values)
            expected = np.linalg.svd(np.cov(latents.double().numpy().T, bias=True))[1]
            assert values == pytest.approx(expected, rel=1e-3, abs=1e-9)
            ranks.append(effective_rank(torch.from_numpy(values)))
            gaps.append(float(np.mean(np.log(values / arrays["global"]))))
    assert summary["local_effective_rank"] == pytest.approx(np.mean(ranks))
    assert summary["gap"] == pytest.approx(np.mean(gaps))


def test_the_global_spectrum_is_that_of_the_mean_of_the_local_models(tmp_path: Path) -> None:
    experiment = clustering("centroids.encoder=local")
    models = models_of_the_last_round(clustering("centroids.encoder=local"))
    sizes = {client.id: len(client) for client in experiment.clients}
    total = sum(sizes.values())
    mean = {
        name: sum(sizes[client] / total * model[name] for client, model in models.items())
        for name, entry in models[0].items()
        if entry.is_floating_point()
    }
    counters = {n: e for n, e in models[0].items() if not e.is_floating_point()}
    summary = finished(experiment, tmp_path / "run", experiment.config)
    module = make_model(experiment.evaluator.config, (1, 8, 8))
    averaged: Any = mean | counters
    expected = spectrum(plain_latents(module, averaged, experiment.data.values))
    with np.load(tmp_path / "run/spectra.npz") as arrays:
        assert arrays["global"] == pytest.approx(expected.numpy(), rel=1e-3, abs=1e-9)
    assert summary["effective_rank"] == pytest.approx(effective_rank(expected), rel=1e-3)


def test_classification_compares_local_models_on_all_test_images(tmp_path: Path) -> None:
    experiment = classification()
    models = models_of_the_last_round(classification())
    summary = finished(experiment, tmp_path / "run", experiment.config)
    (tested,) = experiment.evaluator.test_sets
    with np.load(tmp_path / "run/spectra.npz") as arrays:
        assert arrays["global"] == pytest.approx(arrays["singular_values"][0])
        for client, values in zip(arrays["client"], arrays["local"], strict=True):
            seen, _ = experiment.evaluator.predict(models[int(client)], tested.images)
            assert values == pytest.approx(spectrum(seen).numpy(), rel=1e-4, abs=1e-9)
    assert summary["gap"] is not None


@pytest.mark.parametrize("method", ["km", "k-fed"])
def test_systems_without_models_have_no_spectra(method: str, tmp_path: Path) -> None:
    result = ccfcpp("cluster", "--method", method, "--out", tmp_path / "run", "--json")
    assert "gap" not in json.loads(result.stdout)
    assert not (tmp_path / "run/spectra.npz").exists()


def test_normalisations_of_their_own_leave_no_model_to_compare(tmp_path: Path) -> None:
    experiment = classification("method=fedbn")
    summary = finished(experiment, tmp_path / "run", experiment.config)
    assert "gap" not in summary
    assert summary["effective_rank"] is not None


def test_only_the_last_round_is_looked_at_and_only_so_many_models() -> None:
    values: dict[str, list[float]] = {}
    looked: list[int] = []

    def represent(client: int, model: ModelState) -> Tensor | None:
        looked.append(client)
        return None if client == 3 else model["points"]

    spectra = LocalSpectra(4, represent, values)
    for number in (3, 4, 5):
        for client in range(25):
            spectra(number, client, {"points": torch.randn(9, 2)})
    assert looked == list(range(21))
    arrays = spectra.arrays(torch.ones(2, dtype=torch.float64))
    assert arrays["client"].tolist() == [client for client in range(21) if client != 3]
    assert arrays["local"].shape == (20, 2)


def test_a_summary_of_no_models_or_of_diverged_ones_has_no_number() -> None:
    ones = torch.ones(3, dtype=torch.float64)
    nothing = describe_spectra(LocalSpectra(0, lambda c, m: None, {}).arrays(ones))
    assert nothing["gap"] is None
    assert nothing["effective_rank"] == pytest.approx(3)
    diverged = describe_spectra({"global": ones, "local": torch.full((1, 3), math.nan)})
    assert diverged["gap"] is None
    assert diverged["local_effective_rank"] is None


def test_looking_changes_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local models pass through the network that holds the frozen global model."""
    seen = clustering()
    seen_summary = finished(seen, tmp_path / "seen", seen.config)
    monkeypatch.setattr(LocalSpectra, "__call__", lambda *arguments: None)
    unseen = clustering()
    unseen_summary = finished(unseen, tmp_path / "unseen", unseen.config)
    for key in ("nmi", "kappa", "bytes_up", "effective_rank"):
        assert seen_summary[key] == unseen_summary[key]
    for name in ("model.safetensors", "assignments.npz"):
        assert (tmp_path / "seen" / name).read_bytes() == (tmp_path / "unseen" / name).read_bytes()
