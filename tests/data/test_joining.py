"""Two data sets as one."""

from dataclasses import replace

import numpy as np

from ccfcpp.data.joining import join_samples
from ccfcpp.data.vectors import vectors_from


def test_newcomers_keep_their_digits() -> None:
    small = vectors_from("a", np.array([[1, 2]], np.uint8), "a")
    precise = vectors_from("b", np.array([[1.7e9 + 1, 2]]), "b")
    small, precise = (replace(each, notes=(f"note on {each.name}",)) for each in (small, precise))
    assert join_samples(small, precise, "b").notes == ("note on a", "note on b")
    assert join_samples(small, precise, "b").vectors.tolist() == [[1, 2], [1.7e9 + 1, 2]]


def test_classes_in_other_spellings_are_the_same() -> None:
    rows = np.eye(2)
    first, second = (
        vectors_from(name, rows, name, labels=np.array(labels))
        for name, labels in (("a", ["01", "x"]), ("b", ["1.0", "y"]))
    )
    whole = join_samples(first, second, "b")
    assert whole.labels is not None
    assert (whole.classes, whole.labels.tolist()) == (("01", "x", "y"), [0, 1, 0, 2])
