"""Image data sets: named ones, image folders and `.npz` files, all as uint8 tensors."""

from ccfcpp.data.images import ImageData
from ccfcpp.data.sources import load

__all__ = ["ImageData", "load"]
