"""Encoders with seeded weights, in files as users have them, and photos for them."""

import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torchvision import models

NETWORK = "mobilenet_v3_small"
"""A small one: it takes milliseconds for an image."""
COLOURS = {"red": (200, 60, 60), "green": (60, 200, 60), "blue": (60, 60, 200)}


def network(seed: int = 0) -> nn.Module:
    """A network of torchvision with first weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module: nn.Module = models.get_model(NETWORK, weights=None)
    return module.eval()


def save_program(module: nn.Module, path: Path) -> None:
    """Save a module as TorchScript."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch would rather export
        traced = torch.jit.trace(module, torch.zeros(2, 3, 8, 8))  # type: ignore[no-untyped-call]
        traced.save(str(path))


def weights_file(folder: Path, seed: int = 0, kind: str = "safetensors") -> Path:
    """Its weights, in a file."""
    path, state = folder / f"weights-{seed}.{kind}", network(seed).state_dict()
    if kind == "safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


def encoder_of(file: Path) -> str:
    """What a user types for it."""
    return f"torchvision:{NETWORK}@{file}"


class Small(nn.Module):
    """A program of its own: the mean of each colour, three times."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean(dim=(2, 3)).repeat(1, 3)


def write_photos(folder: Path, each: int = 4, sizes: tuple[int, int] = (40, 90)) -> None:
    """Write photos of three colours at each of three clients, in many sizes, some in grey."""
    source = np.random.default_rng(0)
    for client in ("east", "north", "west"):
        for colour, mean in COLOURS.items():
            place = folder / client / colour
            place.mkdir(parents=True)
            for number in range(each):
                shape = (*source.integers(*sizes, 2), 3)
                pixels = source.normal(mean, 30, shape).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
