"""Measurements on a GPU, which take a few minutes: timings, then the tests that need it.

    python -m scripts.gpu --out gpu.json
    python -m scripts.gpu --run ccfc++-p0.75 --deadline 400 --folder runs

The first command times training by ccfcpp and by plain PyTorch on random images, then runs the
tests marked ``cuda``, and writes all results as one JSON object, even if a later part fails. The
second makes one of the long runs until it is done or the deadline is reached; called again with the
same folder, it resumes the run.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn
from torch.nn import functional as F

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.run import clustering_run
from ccfcpp.clustering.systems.ccfc.config import TrainingConfig
from ccfcpp.clustering.systems.ccfc.losses import siamese
from ccfcpp.clustering.systems.ccfc.network import ContrastiveModel
from ccfcpp.clustering.systems.fed_emp.config import CropsConfig
from ccfcpp.clustering.systems.fed_scan.config import ScanConfig
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import read_yaml, resolve
from ccfcpp.core.presets import preset_file
from ccfcpp.data.images import ImageData
from ccfcpp.engine.federation import Federation
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.models.encoders import ConvBackbone
from ccfcpp.models.steps import capture_failure
from ccfcpp.runs.environment import choose_device, describe_environment
from scripts.timing import timed
from supervised.classification import classification_run
from supervised.config import ClassifyConfig
from supervised.networks import Classifier, MobileNetV2Backbone

CLIENTS = 10
_MOBILE_BATCH, _CCFC_BATCH = 64, 128
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Metrics = dict[str, float]

_PUBLISHED = ["cluster", "--dataset", "mnist", "--preset", "published", "--seed", "100"]
_ALPHA = ["classify", "--config", "classify/cifar10", "--alpha", "0.05", "--set", "seed=100"]
_ALPHA += ["--set", "compute.precision=auto"]
_SYSTEMS: dict[str, list[str]] = {
    "ccfc++": [],
    "ccfc": ["--method", "ccfc"],
    "ccfc++-literal": ["--config", "literal"],
}
RUNS: dict[str, list[str]] = {
    **{
        f"{name}-p{p}": [*_PUBLISHED, *options, "--p", p]
        for p in ("0.75", "0", "1", "0.25", "0.5")
        for name, options in _SYSTEMS.items()
    },
    "fedavg": [*_ALPHA, "--set", "decorrelation.kind=none"],
    "feddecorr": _ALPHA,
}
"""Arguments of the long runs, by name: both papers' main results; ``-literal`` is CCFC++ by the
letter of its paper."""
OF_CIFAR10 = "fedavg", "feddecorr"


def mobilenet(device: torch.device, small: bool) -> Metrics:
    """Time local training of MobileNetV2: one client in plain PyTorch, rounds of ten by ccfcpp."""
    batches, precision = 2 if small else 20, "bfloat16" if device.type == "cuda" else "float32"
    images = CLIENTS * _MOBILE_BATCH * batches
    # The last images are the test set.
    data = _random_images(images + 100, (3, 32, 32), test=100)
    settings: Tree = {
        "dataset": "cifar10",
        "device": device.type,
        "partition": {"kind": "iid", "clients": CLIENTS},
        "model": {"name": "mobilenetv2", "variant": "code"},
        "training": {"local_epochs": 1, "batch_size": _MOBILE_BATCH},
        "compute": {"precision": precision},
        "decorrelation": {"kind": "feddecorr"},
    }
    config = resolve(ClassifyConfig, "classify", settings)
    experiment = classification_run(config, data, tested=False)
    federation = experiment.federation()
    state = federation.algorithm.initial_state(experiment.randomness)
    numbers = iter(range(10**6))

    def ours() -> None:
        federation.run_round(state, next(numbers))

    model = Classifier(MobileNetV2Backbone((3, 32, 32), "code"), classes=10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    shown = torch.rand(_MOBILE_BATCH, 3, 32, 32, device=device)
    labels = torch.randint(10, (_MOBILE_BATCH,), device=device)
    step = partial(_plain_step, model, optimizer, lambda: F.cross_entropy(model(shown)[1], labels))
    return {
        "MobileNetV2, plain PyTorch, TF32, one client, images/s": _MOBILE_BATCH
        / _median(step, small),
        f"MobileNetV2, ccfcpp, {precision}, whole rounds of ten clients, images/s": images
        / _median(ours, small),
    }


def contrastive(device: torch.device, small: bool) -> Metrics:
    """Time CCFC++ as published: a step in plain PyTorch, and rounds of each phase by ccfcpp."""
    images = 1_000 if small else 70_000
    data = _random_images(images, (1, 28, 28))
    settings: Tree = {
        "dataset": "mnist",
        "preset": "published",
        "device": device.type,
        "partition": {"kind": "iid", "clients": CLIENTS},
    }
    # By the letter of the paper, whose step the plain one is.
    config = resolve(ClusterConfig, "cluster", settings, read_yaml(preset_file("literal")))
    experiment = clustering_run(config, data)
    federation, first = experiment.federation(), config.section(TrainingConfig).pretrain_rounds
    memories = ClientMemories(device, 0)
    state: Any = federation.algorithm.initial_state(experiment.randomness)

    def pretraining() -> None:
        nonlocal state
        state, _ = federation.run_round(state, 0)

    def contrast() -> None:
        nonlocal state
        state, _ = federation.run_round(state, first)
        experiment.evaluator.scores(first, state, memories)

    metrics = {"pre-training round of 70,000, s": _median(pretraining, small) * 70_000 / images}
    state, _ = federation.run_round(state, first - 1)
    metrics["contrast round of 70,000 with scores, s"] = _median(contrast, small) * 70_000 / images
    model = ContrastiveModel(ConvBackbone((1, 28, 28), (64, 128, 256)), 256, 256, 16).to(device)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    views = torch.rand(2, _CCFC_BATCH, 1, 28, 28, device=device)

    def loss() -> Tensor:
        (z1, p1), (z2, p2) = model(views[0]), model(views[1])
        return siamese((p1, p2), (z1, z2))

    seconds = _median(partial(_plain_step, model, adam, loss), small)
    metrics["CCFC's step, plain PyTorch, TF32, one client, views/s"] = 2 * _CCFC_BATCH / seconds
    return metrics


def synchronised(device: torch.device, small: bool) -> Metrics:
    """Time the steps of Fed-SCAN and Fed-EMP, which synchronise all clients."""
    images = 1_000 if small else 60_000
    few: Tree = {"scan": {"batch": 100}, "crops": {"batch": 20}} if small else {}
    wide: Tree = {"crops": {"widths": [64, 128, 256, 512], "hidden": 1024}}
    metrics = {}
    for name, method, dataset, own in (
        ("Fed-SCAN on MNIST", "fed-scan", "mnist", {}),
        ("Fed-EMP on CIFAR-10", "fed-emp", "cifar10", {}),
        ("Fed-EMP, wide, on CIFAR-10", "fed-emp", "cifar10", wide),
    ):
        shape = (1, 28, 28) if dataset == "mnist" else (3, 32, 32)
        settings: Tree = {
            "dataset": dataset,
            "method": method,
            "device": device.type,
            "partition": {"kind": "iid", "clients": CLIENTS},
        }
        config = resolve(ClusterConfig, "cluster", own, few, settings)
        experiment = clustering_run(config, _random_images(images, shape))
        federation = experiment.federation()
        states: list[Any] = [federation.algorithm.initial_state(experiment.randomness)]

        def steps(
            federation: Federation[Any, Any] = federation, states: list[Any] = states
        ) -> None:
            states[0], _ = federation.run_round(states[0], 1)

        scan, crops = config.section(ScanConfig), config.section(CropsConfig)
        each = scan.steps_per_round if method == "fed-scan" else crops.steps_per_round
        metrics[f"{name}, a step with its trips, ms"] = 1e3 * _median(steps, small) / each
    return metrics


def commands(small: bool, cifar10: str) -> Metrics:
    """Time whole commands, and return their times and scores."""
    wanted = {
        "cluster --dataset mnist --p 0.75, s": ["cluster", "--dataset", "mnist", "--p", "0.75"],
        "Fed-EMP's steps on CIFAR-10, s": [
            "cluster",
            "--config",
            "cluster/cifar10",
            "--dataset",
            cifar10,
        ],
    }
    if small:
        wanted = {"cluster --dataset digits, s": ["cluster", "--dataset", "digits"]}
    metrics = {}
    for name, command in wanted.items():
        with subprocess.Popen(  # noqa: S603 - commands of this file
            [sys.executable, "-m", "ccfcpp", *command, "--json"],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            began = time.perf_counter()
            output, _ = process.communicate()
            if process.returncode:
                continue  # such as without the data; stderr has said why
        metrics[name] = time.perf_counter() - began
        metrics[f"{name.removesuffix(', s')}, NMI"] = json.loads(output)["nmi"]
    return metrics


def _random_images(count: int, shape: tuple[int, ...], test: int = 0) -> ImageData:
    source = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, *shape), generator=source, dtype=torch.uint8)
    labels = torch.randint(10, (count,), generator=source)
    tested = torch.arange(count) >= count - test if test else None
    return ImageData("random", images, labels, tuple(map(str, range(10))), test=tested)


def _plain_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]
) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(loss())
    optimizer.step()


def _median(work: Callable[[], object], small: bool) -> float:
    """Return the median seconds of seven calls, after three warm-up calls; fewer if ``small``."""
    for _ in range(1 if small else 3):
        work()
    return statistics.median(timed(work) for _ in range(1 if small else 7))


def run_until(deadline: float, command: list[str]) -> str:
    """Run a command of ccfcpp; after ``deadline`` seconds interrupt it, so that it saves its state.

    Returns:
        Text on how it ended.
    """
    with subprocess.Popen([sys.executable, "-m", "ccfcpp", *command]) as process:  # noqa: S603 - as above
        try:
            return f"ended with exit code {process.wait(deadline)}"
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            return f"stopped with exit code {process.wait()}, to be gone on with"


@app.command()
def main(
    out: Annotated[Path | None, typer.Option(help="File of the figures.")] = None,
    run: Annotated[str | None, typer.Option(help=f"A long run: {', '.join(RUNS)}.")] = None,
    deadline: Annotated[float, typer.Option(help="Seconds until a long run stops.")] = 400,
    folder: Annotated[Path, typer.Option(help="Where long runs lie.")] = Path("runs"),
    device: Annotated[str, typer.Option(help="auto, cuda or cpu.")] = "auto",
    small: Annotated[bool, typer.Option(help="Little work, to try the script.")] = False,
    cifar10: Annotated[str, typer.Option(help="CIFAR-10: its name, or a path.")] = "cifar10",
) -> None:
    """Measure and test, or continue a long run."""
    if run is not None:
        if run not in RUNS:
            raise typer.BadParameter(f"--run {run}: it should be one of {', '.join(RUNS)}")
        place = folder / run
        resumed = (place / "config.yaml").exists()
        command = [RUNS[run][0], "--resume"] if resumed else RUNS[run]
        if run in OF_CIFAR10 and not resumed:
            command = [*command, "--dataset", cifar10]
        print(run_until(deadline, [*command, "--out", str(place)]))
        return
    chosen = choose_device(device)
    results: dict[str, Any] = {"environment": describe_environment(chosen), "figures": {}}
    parts: list[Callable[[], Metrics]] = [
        partial(mobilenet, chosen, small),
        partial(contrastive, chosen, small),
        partial(synchronised, chosen, small),
        partial(commands, small, cifar10),
    ]
    for part in parts:
        try:
            results["figures"] |= part()
        except Exception:
            results.setdefault("faults", []).append(traceback.format_exc())
        if reason := capture_failure():
            results["steps that could not be captured"] = reason
        _write(results, out)
    if not small:
        tests = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "tests"]
        done = subprocess.run(tests, capture_output=True, text=True, check=False)  # noqa: S603
        results["tests"] = [done.returncode, *(done.stdout + done.stderr).splitlines()[-25:]]
        _write(results, out)


def _write(results: dict[str, Any], out: Path | None) -> None:
    text = json.dumps(results, indent=1)
    if out is None:
        print(text)
    else:
        out.write_text(text)


if __name__ == "__main__":
    app()
