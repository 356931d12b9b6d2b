"""Long-tailed parts of data sets."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness, generator_of
from ccfcpp.data.images import ImageData
from ccfcpp.data.imbalance import long_tailed, long_tailed_sizes
from ccfcpp.data.open import load
from tests.support.originals import REAL_DATA

RATIOS = st.sampled_from([1.0, 2.0, 10.0, 100.0]) | st.floats(1, 1e6)


def labelled(sizes: list[int], seed: int = 0) -> ImageData:
    """Classes of given sizes, mixed; the pixels of an image spell its number."""
    labels = torch.repeat_interleave(torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=generator_of(seed))]
    numbers = torch.arange(len(labels))
    images = torch.stack([numbers // 256, numbers % 256], dim=1).to(torch.uint8).view(-1, 1, 1, 2)
    names = tuple(f"class {c}" for c in range(len(sizes)))
    return ImageData("mine", images, labels, names, labels % 2, ("even", "odd"))


def numbers(data: ImageData) -> list[int]:
    return [256 * high + low for high, low in data.images.flatten(1).tolist()]


def sizes_of(data: ImageData) -> list[int]:
    assert data.labels is not None
    return torch.bincount(data.labels, minlength=len(data.classes)).tolist()


def test_sizes_by_hand() -> None:
    assert long_tailed_sizes(100, 3, 4) == [100, 50, 25]
    assert long_tailed_sizes(6313, 10, 10)[::9] == [6313, 631]
    assert long_tailed_sizes(10, 3, 10_000) == [10, 1, 1]
    assert long_tailed_sizes(7, 1, 50) == [7]


@given(st.integers(1, 7000), st.integers(2, 100), RATIOS)
def test_sizes_fall_by_the_same_factor_from_class_to_class(
    largest: int, classes: int, imbalance: float
) -> None:
    sizes = long_tailed_sizes(largest, classes, imbalance)
    assert len(sizes) == classes
    assert sizes[0] == largest
    assert all(a >= b >= 1 for a, b in pairwise(sizes))
    assert sizes[-1] == pytest.approx(max(1, largest / imbalance), abs=0.5 + 1e-6)
    # The slow and obvious way: step by step, by the factor that leads to the ratio in the end.
    exact, factor = float(largest), math.exp(-math.log(imbalance) / (classes - 1))
    for size in sizes:
        assert size == pytest.approx(max(1, exact), abs=0.5 + 1e-6)
        exact *= factor


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), RATIOS, st.integers(0, 50))
def test_a_part_has_those_sizes_and_keeps_images_as_they_are(
    sizes: list[int], imbalance: float, seed: int
) -> None:
    data = labelled(sizes, seed)
    part = long_tailed(data, imbalance, Randomness(0).generator("imbalance"))
    assert sizes_of(part) == long_tailed_sizes(min(sizes), len(sizes), imbalance)
    kept = numbers(part)
    assert kept == sorted(set(kept))
    assert data.labels is not None
    assert part.labels is not None
    assert torch.equal(part.labels, data.labels[kept])
    assert part.owners is not None
    assert torch.equal(part.owners, part.labels % 2)
    assert (part.name, part.classes) == (data.name, data.classes)


def test_images_are_drawn_at_random() -> None:
    data = labelled([50, 50])
    parts = [numbers(long_tailed(data, 10, generator_of(seed))) for seed in (0, 0, 1)]
    assert parts[0] == parts[1] != parts[2]
    # Each image of the second class is kept as often as any other.
    assert data.labels is not None
    counts = torch.zeros(100)
    for seed in range(400):
        counts[numbers(long_tailed(data, 10, generator_of(seed)))] += 1
    second = counts[data.labels == 1]
    assert second.sum() == 400 * 5
    assert second.min() > 15  # five standard deviations below 40
    assert second.max() < 70


def test_without_labels_there_is_no_imbalance() -> None:
    unlabelled = ImageData("mine", torch.zeros(4, 1, 2, 2, dtype=torch.uint8), None, ())
    with pytest.raises(UsageError, match=r"imbalance = 2.5 needs class labels, and mine has none"):
        long_tailed(unlabelled, 2.5, generator_of(0))


def test_a_class_without_images_is_named() -> None:
    with pytest.raises(UsageError, match="there are none of 'class 1': leave it out"):
        long_tailed(labelled([3, 0, 2]), 10, generator_of(0))


def test_all_of_mnist() -> None:
    if not (REAL_DATA / "mnist" / "train-images-idx3-ubyte.gz").is_file():
        pytest.skip(f"needs the real data set: no {REAL_DATA}/mnist/train-images-idx3-ubyte.gz")
    whole = load("mnist", data_root=REAL_DATA)
    part = long_tailed(whole, 10, Randomness(0).generator("imbalance"))
    assert min(sizes_of(whole)) == 6313
    sizes = sizes_of(part)
    assert (sizes[0], sizes[-1]) == (6313, 631)
