"""The 8×8 handwritten digits that come with scikit-learn, available without a network.

They are read from the file inside the installed package, since importing scikit-learn takes longer
than everything else that a command does before it starts.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ccfcpp.core.errors import UsageError
from ccfcpp.data.registry import DataSet

if TYPE_CHECKING:
    from ccfcpp.data.images import ImageData

_LARGEST = 16  # of the values of a pixel


class Digits(DataSet):
    """The data set of scikit-learn's 8×8 digits, without a test set."""

    def place(self, root: Path) -> str:
        """Describe where the data set is found."""
        return "scikit-learn"

    def load(self, root: Path) -> ImageData:
        """Read the images: uint8 `(1797, 1, 8, 8)`, scaled so that the largest value is 255."""
        import torch

        from ccfcpp.data.images import ImageData

        spec = find_spec("sklearn")
        if spec is None or spec.origin is None:
            raise UsageError("'digits' come with scikit-learn, which is not installed: install it")
        file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
        # A row has the pixels of an image and its label.
        rows = np.loadtxt(file, delimiter=",")
        pixels = np.rint(rows[:, :-1] * (255 / _LARGEST)).astype(np.uint8)
        return ImageData(
            self.name,
            torch.from_numpy(pixels.reshape(-1, *self.shape)),
            torch.from_numpy(rows[:, -1].astype(np.int64)),
            tuple(str(digit) for digit in range(self.classes)),
        )


DIGITS = Digits("digits", 1797, 10, (1, 8, 8))
