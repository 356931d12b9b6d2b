"""Image data sets: named ones, image folders and `.npz` files, all as uint8 tensors."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccfcpp.data.images import ImageData
    from ccfcpp.data.sources import load

__all__ = ["ImageData", "load"]


def __getattr__(name: str) -> object:
    # Imported when they are first used: they bring torch, and the names of the data sets, which the
    # help of a command shows, need none of it.
    if name == "ImageData":
        from ccfcpp.data.images import ImageData

        return ImageData
    if name == "load":
        from ccfcpp.data.sources import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
