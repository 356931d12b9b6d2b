"""The machine that a run uses: device, threads, memory, versions."""

import ctypes
import importlib.metadata
import os
import platform
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import torch

from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.torchrun import process_count
from ccfcpp.core.version import VERSION
from ccfcpp.data.registry import root_folder

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_M_ARENA_MAX = -8
"""Names of glibc's malloc options, from its <malloc.h>."""

_RECORDED = ("torch", "torchvision", "numpy", "scipy", "scikit-learn")


def choose_device(wanted: str) -> torch.device:
    """Return the device for ``auto``, ``cpu`` or ``cuda``; make CUDA deterministic if it is chosen.

    Raises:
        UsageError: CUDA was asked for and is not available.
    """
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            KeyValue("device", "cuda"),
            " is refused: PyTorch finds no CUDA device; take --device cpu",
        )
    device = torch.device(wanted)
    if device.type == "cuda":
        _make_deterministic()
    return device


def _make_deterministic() -> None:
    """Make CUDA deterministic, so that equal commands give bitwise equal results.

    Without this a run that was stopped and resumed differs from the uninterrupted run.
    """
    # cuBLAS reads it when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    # Else convolutions round to TF32 where ``compute.precision`` says float32.
    torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Nothing here reads memory before it is written, and filling it takes time.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010


def check_precision(wanted: str, device: torch.device) -> None:
    """Raise ``UsageError`` if the precision ``wanted`` is ``tf32`` and ``device`` is not CUDA."""
    if wanted == "tf32" and device.type != "cuda":
        raise UsageError(
            f"compute.precision = 'tf32' is refused: the device is {device}, and only CUDA devices "
            "have it; take float32"
        )


def keep_freed_memory() -> None:
    """Let glibc keep freed memory instead of returning it to the system.

    Each training step allocates and frees the same tens of megabytes; getting them from the system
    each time, page by page, can take longer than the arithmetic. All threads share one pool, since
    the separate pools that glibc gives to threads become fragmented.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    set_option = getattr(library, "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_MAX, 0)
        set_option(_M_TRIM_THRESHOLD, 2**31 - 1)
        set_option(_M_ARENA_MAX, 1)


def use_processors(jobs: int = 1) -> None:
    """Set torch's and faiss's number of threads to this machine's processors divided by ``jobs``.

    ``jobs`` processes share the processors that this process may use. ``OMP_NUM_THREADS`` overrides
    the number; set it if other work uses the processors, too.
    """
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if hasattr(os, "sched_getaffinity"):
        available = len(os.sched_getaffinity(0))
    else:
        available = os.cpu_count() or 1  # macOS and Windows cannot tell
    is_number = given.isdecimal() and int(given) > 0
    torch.set_num_threads(int(given) if is_number else max(1, available // jobs))


def describe_environment(device: torch.device) -> dict[str, object]:
    """Describe the environment by JSON values: versions, machine, device and source revision."""
    return {
        "command": sys.argv,
        "ccfcpp": VERSION,
        "revision": _source_revision(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in _RECORDED},
        "faiss": _faiss_version(),
        "platform": platform.platform(),
        "processor": _processor_name(),
        "processes": process_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "data_root": str(root_folder(None).absolute()),
        "cuda_device": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }


def _faiss_version() -> str | None:
    """Return the version of the installed build of faiss; None if there is none."""
    for build in ("faiss-gpu", "faiss-cpu"):
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(build)
    return None


def _processor_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _source_revision() -> str | None:
    """Return the git commit of a source checkout; None for an installed package or without git."""
    folder = Path(__file__).parent.parent.parent
    if not (folder / ".git").exists():
        return None
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],  # noqa: S607 - git from PATH
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()
