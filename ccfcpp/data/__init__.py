"""Image data sets: named ones, image folders and `.npz` files, all as uint8 tensors."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccfcpp.data.images import ImageData
    from ccfcpp.data.open import load

__all__ = ["ImageData", "load"]

_PLACES = {"ImageData": "ccfcpp.data.images", "load": "ccfcpp.data.open"}


def __getattr__(name: str) -> object:
    # Both import torch, which the names of the data sets, shown in the help, do without.
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
