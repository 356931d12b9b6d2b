"""Seconds of a round of federated classification by method, as in FedDecorr's Table 6."""

import statistics
from collections.abc import Callable
from typing import Any

import torch

from ccfcpp.core.config_layers import resolve
from ccfcpp.data import ImageData
from ccfcpp.models.decorrelation import feddecorr
from ccfcpp.runs.environment import choose_device
from scripts.timing import Seconds, alternate, timed
from supervised.config import ClassifyConfig
from supervised.run import ClassificationRun, classification_run
from supervised.setup import load_images

_BATCH = 64
BASELINE = "FedAvg"
VARIANTS: dict[str, dict[str, Any]] = {
    BASELINE: {"method": "fedavg", "decorrelation": {"kind": "none"}},
    "FedAvg + FedDecorr": {"method": "fedavg", "decorrelation": {"kind": "feddecorr"}},
    "FedProx": {"method": "fedprox", "decorrelation": {"kind": "none"}},
    "MOON": {"method": "moon", "decorrelation": {"kind": "none"}},
}


def method_rounds(
    dataset: str, images: int, device: str, repeats: int
) -> tuple[Seconds, dict[str, float]]:
    """Measure a round of each method with MobileNetV2, ten clients and one local epoch.

    All clients hold equally many images, so that all methods make the same steps.

    Returns:
        Seconds, and the median ratio of each method's round to the FedAvg round just before it.
    """
    data: ImageData | None = None
    work: dict[str, Callable[[], object]] = {}
    for name, variant in VARIANTS.items():
        settings = {
            "dataset": dataset,
            "device": device,
            "data": {"train_images": images, "test_images": 10},
            "partition": {"kind": "iid", "clients": 10},
            "model": {"name": "mobilenetv2"},
            "training": {"local_epochs": 1, "batch_size": _BATCH},
            "augmentation": {"crop_padding": 4, "flip": True},
        }
        config = resolve(ClassifyConfig, "classify", settings, variant)
        data = data or load_images(config)
        work[name] = _round(classification_run(config, data))
    seconds = alternate(work, repeats)
    step = _decorrelation_step(choose_device(device))
    step()
    term = statistics.median(timed(step) for _ in range(50))
    own = images / _BATCH * term / statistics.median(seconds[BASELINE])
    figures = {f"FedDecorr's term by itself / {BASELINE}": own}
    for name in VARIANTS:
        pairs = zip(seconds[name], seconds[BASELINE], strict=True)
        ratio = statistics.median(own / base for own, base in pairs)
        figures[f"{name} / {BASELINE}, median of pairs"] = ratio
    return seconds, figures


def _decorrelation_step(device: torch.device) -> Callable[[], object]:
    """Make a step that computes the term and its gradient for a batch of representations."""
    drawn = torch.rand(1, _BATCH, 1280, device=device, requires_grad=True)
    return lambda: torch.autograd.grad(feddecorr(drawn, "code").sum(), drawn)


def _round(experiment: ClassificationRun) -> Callable[[], object]:
    federation = experiment.federation()
    state = federation.algorithm.initial_state(experiment.randomness)
    # The first round fills caches, and gives MOON's clients a previous model.
    state, _ = federation.run_round(state, 0)
    return lambda: federation.run_round(state, 1)
