"""Scikit-learn's digits as four domains: each a quarter of them, shown in a way of its own."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter

from ccfcpp.core.randomness import Randomness
from ccfcpp.data import load

NAME = "digit-domains"
"""The name of their folder."""

_DOMAINS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "plain": lambda image: image,
    "inverted": lambda image: image.point(lambda value: 255 - value),
    "turned": lambda image: image.transpose(Image.Transpose.ROTATE_90),
    "blurred": lambda image: image.filter(ImageFilter.GaussianBlur(1)),
}


def write_digit_domains(folder: Path) -> Path:
    """Write the images as ``digit-domains/DOMAIN/CLASS/NUMBER.png``, unless they are there."""
    path = folder / NAME
    done = path.with_suffix(".done")
    if done.is_file():
        return path
    data = load("digits")
    assert data.labels is not None
    order = torch.randperm(len(data), generator=Randomness(0).generator("digit domains"))
    for (name, show), part in zip(_DOMAINS.items(), order.chunk(len(_DOMAINS)), strict=True):
        for index in part.tolist():
            place = path / name / data.classes[int(data.labels[index])] / f"{index:04}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            show(Image.fromarray(np.asarray(data.images[index, 0]))).save(place)
    done.touch()
    return path
