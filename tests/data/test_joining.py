"""Two data sets as one."""

from dataclasses import replace

import numpy as np

from ccfcpp.data.joining import joined
from ccfcpp.data.vectors import vectors_from


def test_newcomers_keep_their_digits() -> None:
    small = vectors_from("a", np.array([[1, 2]], np.uint8), "a")
    precise = vectors_from("b", np.array([[1.7e9 + 1, 2]]), "b")
    small, precise = (replace(each, notes=(f"note on {each.name}",)) for each in (small, precise))
    assert joined(small, precise, "b").notes == ("note on a", "note on b")
    assert joined(small, precise, "b").vectors.tolist() == [[1, 2], [1.7e9 + 1, 2]]
