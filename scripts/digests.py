"""Digests (hashes) of short runs of all methods, to check that a change of code keeps all results.

The output must be the same before and after the change. Runs are made by the command line, on the
digits data set, with one thread:

    python scripts/digests.py > before.json
    python scripts/digests.py > after.json
    diff before.json after.json
"""

import concurrent.futures
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors import safe_open

from ccfcpp.clustering.methods import METHODS
from supervised.classifiers import CLASSIFIERS

_JOBS = 2
_INTERRUPTED = 130
_TIMES = frozenset({"seconds", "out"})
"""Keys whose values differ between equal runs."""

_CLUSTER = ["cluster", "--p", "0.75", "--seed", "3"]
_PUBLISHED = ["--preset", "published"]  # which has pre-training
_TWO_ROUNDS = [*_PUBLISHED, "--pretrain-rounds", "1", "--rounds", "1"]
_SHORT = {
    "ffcm-avg": ["--set", "ffcm.rounds=2"],
    "ffcm-km": ["--set", "ffcm.rounds=2"],
    "sda-fc-km": ["--set", "gan.epochs=2"],
    "sda-fc-fcm": ["--set", "gan.epochs=2"],
    "ppfc-gan": [
        *("--set", "gan.epochs=2", "--set", "dcn.epochs=2", "--set", "dcn.pretrain_epochs=2"),
    ],
    "fed-dcn": [
        *("--rounds", "2", "--set", "dcn.pretrain_epochs=2", "--set", "dcn.epochs=2"),
        *("--set", "dcn.synthetic=100"),
    ],
    "orchestra": ["--rounds", "2", "--set", "orchestra.server_steps=20"],
    **dict.fromkeys(("ccfc", "ccfc++"), _TWO_ROUNDS),
    "fed-km": ["--set", "means.rounds=3"],
    "fed-fcm": ["--set", "means.rounds=3"],
    "fed-em": ["--set", "mixture.rounds=3", "--set", "mixture.covariance=diag"],
    "fed-scan": ["--set", "scan.steps=30"],
    "fed-emp": ["--set", "crops.steps=8", "--set", "crops.steps_per_round=4"],
}
_VARIANTS = {
    # They cover every kind of exchange, absent clients, and cohorts of several sizes.
    "ccfc++ global": [
        *("--method", "ccfc++", *_PUBLISHED, "--pretrain-rounds", "1"),
        *("--rounds", "2", "--cohort", "3"),
        *("--set", "centroids.encoder=global", "--set", "centroids.refine_steps=2"),
        *("--disconnection-rate", "0.2", "--dropout-rate", "0.2"),
    ],
    "fed-scan lagged": [
        *("--method", "fed-scan", "--set", "scan.steps=30", "--set", "scan.lagged=true"),
        *("--disconnection-rate", "0.2", "--dropout-rate", "0.2"),
    ],
    "ccfc++ without pre-training": [
        *("--method", "ccfc++", *_PUBLISHED, "--pretrain-rounds", "0"),
        *("--rounds", "2", "--cohort", "1"),
    ],
}
_CLASSIFY = [
    *("classify", "--alpha", "0.1", "--seed", "3", "--rounds", "2", "--local-epochs", "1"),
    *("--dropout-rate", "0.2"),
]


def commands() -> dict[str, list[str]]:
    """Return the arguments of ``ccfcpp`` for each uninterrupted run, by name."""
    clustering = {
        method: [*_CLUSTER, "--method", method, *_SHORT.get(method, [])] for method in METHODS.own()
    }
    variants = {name: [*_CLUSTER, *flags] for name, flags in _VARIANTS.items()}
    classification = {m: [*_CLASSIFY, "--method", m] for m in CLASSIFIERS.own()}
    return clustering | variants | classification


def resumed_runs() -> dict[str, list[str]]:
    """Return the arguments of ``ccfcpp`` for each run that is interrupted and resumed, by name."""
    scan = [*_CLUSTER, "--method", "fed-scan", "--set", "scan.steps=90"]
    cluster = [*_CLUSTER, "--method", "ccfc++", *_PUBLISHED, "--pretrain-rounds", "3"]
    classify = [*_CLASSIFY, "--method", "scaffold", "--rounds", "8"]
    return {
        "ccfc++ resumed": [*cluster, "--rounds", "3"],
        "fed-scan resumed": scan,
        "scaffold resumed": classify,
    }


def _start(arguments: list[str], folder: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ccfcpp", *arguments, "--out", str(folder), *more]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(  # noqa: S603 - our own command
        command, env=one_thread, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def _finish(process: subprocess.Popen[bytes], *codes: int) -> int:
    _, errors = process.communicate()
    if process.returncode not in codes:
        raise RuntimeError(f"{process.args!r} ended with {process.returncode}: {errors.decode()}")
    return process.returncode


def run(arguments: list[str], folder: Path) -> dict[str, str]:
    """Make a run in ``folder``, and return its digests."""
    _finish(_start([*arguments, "--device", "cpu"], folder), 0)
    return digest(folder)


def run_interrupted(arguments: list[str], folder: Path) -> dict[str, str]:
    """Make a run, interrupt it after the first round, and resume it; return its digests."""
    metrics = folder / "metrics.jsonl"
    process = _start([*arguments, "--device", "cpu"], folder)
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    if _finish(process, 0, _INTERRUPTED) == 0:
        raise RuntimeError(f"{folder.name} ended before it could be interrupted: give it rounds")
    _finish(_start(arguments[:1], folder, "--resume"), 0)
    return digest(folder)


def digest(folder: Path) -> dict[str, str]:
    """Return the digests of a run's folder.

    Returns:
        ``model``: hash of ``model.safetensors``; ``tensors``: hash of its tensors without their
        names; ``metrics`` and ``summary``: hashes of these files without times; ``headline``: the
        main scores.
    """
    rounds = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    return {
        "model": _hash((folder / "model.safetensors").read_bytes()),
        "tensors": _tensors(folder / "model.safetensors"),
        "metrics": _hash(json.dumps([_timeless(row) for row in rounds], sort_keys=True).encode()),
        "summary": _hash(json.dumps(_timeless(summary), sort_keys=True).encode()),
        "headline": json.dumps({k: summary.get(k) for k in ("nmi", "kappa", "accuracy")}),
    }


def _tensors(model: Path) -> str:
    with safe_open(model, framework="np") as file:
        contents = [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118 - no mapping
    parts = sorted(f"{t.dtype} {t.shape} {_hash(t.tobytes())}" for t in contents)
    return _hash("\n".join(parts).encode())


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in _TIMES}


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def main() -> None:
    """Print the digests of all runs as one JSON object with a line for each run."""
    with (
        tempfile.TemporaryDirectory() as work,
        concurrent.futures.ThreadPoolExecutor(_JOBS) as pool,
    ):
        place = Path(work)
        jobs = {
            **{name: pool.submit(run, args, place / name) for name, args in commands().items()},
            **{n: pool.submit(run_interrupted, a, place / n) for n, a in resumed_runs().items()},
        }
        digests = {name: job.result() for name, job in jobs.items()}
    lines = [f" {json.dumps(name)}: {json.dumps(each)}" for name, each in digests.items()]
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
