"""Two data sets as one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ccfcpp.core.errors import UsageError
from ccfcpp.data.concatenation import join_samples
from ccfcpp.data.images import ImageData
from ccfcpp.data.vectors import VectorData, vectors_from


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


def test_vectors_of_two_encoders_do_not_meet() -> None:
    vectors = torch.zeros(3, 2)
    one, other = (VectorData("v", vectors, encoder=name * 64) for name in "ab")
    with pytest.raises(UsageError, match="were not made by the same encoder"):
        join_samples(one, other, "new")
    assert len(join_samples(one, one, "new")) == 6


def test_categories_of_newcomers_keep_their_texts() -> None:
    one, other = (VectorData("v", torch.zeros(1, 1), texts=own) for own in ({1.0: "a"}, {2.0: "b"}))
    assert join_samples(one, other, "new").texts == {1.0: "a", 2.0: "b"}


def test_joined_samples_have_the_labels_of_both() -> None:
    def held(classes: tuple[str, ...], *names: str) -> ImageData:
        images = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
        return ImageData("i", images, torch.tensor([0, 1]), classes, names=names)

    whole = join_samples(held(("cat", "dog"), "a", "b"), held(("dog", "fox"), "a", "c"), "new")
    assert whole.labels is not None
    assert [whole.classes[label] for label in whole.labels] == ["cat", "dog", "dog", "fox"]
    assert whole.names == ("a", "b", "new/a", "new/c")
    unlabelled = ImageData("u", torch.zeros(1, 1, 4, 4, dtype=torch.uint8), None, ())
    assert join_samples(whole, unlabelled, "new").labels is None
