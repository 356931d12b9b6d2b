"""Parameters of the preprocessing of vectors, as all clients fit it."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class PreprocessingParams:
    """Fitted preprocessing: x, with missing values filled in, becomes (x − m) A.

    Attributes are None before they are fitted, or if they are not needed. Columns of categories
    have become columns of 0 and 1 before, so that there are d columns.

    Attributes:
        fill: Value that replaces missing ones in each column, float64 of shape (d,).
        mean: Mean m, float64 of shape (d,).
        factor: Scales of the columns (diagonal of A), float64 of shape (d,); or principal
            components A of shape (d, components).
        vocabulary: Keys of the categories that have columns of their own, int64 of shape (columns
            of categories, most); −1 is none.
        salt: Chooses how categories get their keys.
    """

    fill: Tensor | None = None
    mean: Tensor | None = None
    factor: Tensor | None = None
    vocabulary: Tensor | None = None
    salt: int = 0
