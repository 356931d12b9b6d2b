"""Images, clusters and a partition, as a configuration asks for them."""

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccfcpp.clustering.client_data import partition
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.setup import load_data, number_of_clusters
from ccfcpp.core.config import Tree
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.images import ImageData, Samples
from ccfcpp.data.imbalance import long_tailed_sizes
from ccfcpp.data.partition import dirichlet_partition
from ccfcpp.data.vectors import VectorData
from tests.support.clustering import digits, tiny


def some_digits(count: int = 40, labelled: bool = True) -> ImageData:
    images, labels = digits()
    classes = tuple(map(str, range(10)))
    if not labelled:
        return ImageData("mine", images[:count], None, ())
    return ImageData("mine", images[:count], labels[:count], classes)


def owned(count: int = 40) -> ImageData:
    """Of two owners, of whom one holds a quarter."""
    owners = (torch.arange(count) % 4 == 0).long()
    return replace(some_digits(count), owners=owners, owner_names=("north", "south"))


def test_a_part_of_the_images_is_alike_for_every_seed() -> None:
    configs = [tiny("km", {"data": {"images": 60}, "seed": seed}) for seed in (0, 1)]
    first, second = map(load_data, configs)
    assert len(first) == 60
    assert torch.equal(first.values, second.values)
    assert first.labels is not None
    images, labels = digits()
    places = [int((images == image).flatten(1).all(1).nonzero()[0]) for image in first.values]
    assert places == sorted(places)
    assert torch.equal(labels[places], first.labels)
    assert len(load_data(tiny("km", {"data": {"images": 5000}}))) == 1797


def sizes_of(data: Samples) -> list[int]:
    assert data.labels is not None
    return torch.bincount(data.labels, minlength=10).tolist()


def test_an_imbalance_is_of_the_images_that_are_used_and_alike_for_every_seed() -> None:
    some = load_data(tiny("km", {"data": {"images": 600}}))
    configs = [
        tiny("km", {"data": {"images": 600, "imbalance": 5}, "seed": seed}) for seed in (0, 1)
    ]
    first, second = map(load_data, configs)
    assert torch.equal(first.values, second.values)
    assert sizes_of(first) == long_tailed_sizes(min(sizes_of(some)), 10, 5)
    assert all((some.values == image).flatten(1).all(1).any() for image in first.values)
    # Of all 1,797 digits the smallest class has 174.
    assert sizes_of(load_data(tiny("km", {"data": {"imbalance": 5}})))[0] == 174


@pytest.mark.parametrize("images", [None, 60])
def test_without_an_imbalance_classes_are_as_they_are(images: int | None) -> None:
    plain, balanced = (
        load_data(tiny("km", {"data": {"images": images} | more}))
        for more in ({}, {"imbalance": 1})
    )
    assert torch.equal(plain.values, balanced.values)
    assert len(plain) == (images or 1797)


@pytest.mark.parametrize("ratio", [0.5, 0, -1, float("nan"), float("inf")])
def test_an_imbalance_is_a_ratio_from_1_on(ratio: float) -> None:
    with pytest.raises(UsageError, match=r"^data.imbalance = .* is refused: it should be"):
        tiny("km", {"data": {"imbalance": ratio}})


@pytest.mark.parametrize(
    ("asked", "images", "fewest", "most"),
    [("auto", 100, 2, 5), (" auto", 1700, 2, 30), ("5-12", 60, 5, 12)],
)
def test_a_number_that_is_to_be_found_has_bounds(
    asked: str, images: int, fewest: int, most: int
) -> None:
    config = tiny("fed-scan", {"clusters": asked})
    assert (config.fewest_clusters, number_of_clusters(config, some_digits(images))) == (
        fewest,
        most,
    )


COUNTING = {"fed-scan", "fed-emp", "fed-km", "fed-fcm", "fed-em"}


@pytest.mark.parametrize("method", sorted(set(METHODS.own()) - COUNTING))
def test_a_system_that_finds_no_number_is_named_in_one_line(method: str) -> None:
    with pytest.raises(
        UsageError, match=rf"auto is refused: {re.escape(method)} with .* needs the"
    ):
        tiny(method, {"clusters": "auto"})


def test_there_are_as_many_clusters_as_classes_or_as_were_asked_for() -> None:
    assert number_of_clusters(tiny("km"), some_digits()) == 10
    assert number_of_clusters(tiny("km", {"clusters": 4}), some_digits()) == 4
    assert number_of_clusters(tiny("km", {"clusters": 4}), some_digits(labelled=False)) == 4


@pytest.mark.parametrize(
    ("settings", "data", "complaint"),
    [
        (
            {"partition": {"clients": 3}},
            some_digits(labelled=False),
            "^clusters is not given and mine has no labels: give --clusters$",
        ),
        ({}, some_digits(labelled=False), "no labels: give --clusters and --clients$"),
        (
            {"partition": {"kind": "folders"}},
            replace(owned(), labels=None, classes=()),
            "each of the 2 folders of mine is a client, .* Give --clusters; or .* leave out",
        ),
        ({"clusters": 41}, some_digits(40), "clusters = 41 is more than the 40 images"),
        (
            {"method": "fed-scan", "clusters": "5-41"},
            some_digits(40),
            "clusters = 5-41 is more than the 40 images: give at most 40",
        ),
        (
            {"method": "fed-scan", "clusters": "auto"},
            some_digits(59),
            "clusters = auto needs 60 images at least, and there are 59: give a number",
        ),
    ],
)
def test_numbers_of_clusters_that_cannot_be(
    settings: Tree, data: ImageData, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        number_of_clusters(tiny("km", settings), data)


@pytest.mark.parametrize("kind", ["iid", "skew"])
def test_more_clients_than_rows_are_counted_in_rows(kind: str) -> None:
    rows = VectorData("mine", torch.eye(3), torch.arange(3), ("a", "b", "c"))
    config = tiny("fed-km", {"partition": {"kind": kind, "clients": 4}})
    with pytest.raises(UsageError, match="clients = 4 is more than the 3 vectors: give at most 3"):
        partition(config, rows, Randomness(0))


@pytest.mark.parametrize(
    ("choice", "data", "expected"),
    [
        ({"kind": "skew"}, some_digits(), 10),
        ({"kind": "skew", "clients": 3}, some_digits(), 3),
        ({"kind": "classes"}, some_digits(), 10),
        ({"kind": "classes", "clients": 5}, some_digits(), 5),
        ({"kind": "dirichlet", "min_samples": 1}, some_digits(), 10),
        ({"kind": "dirichlet", "alpha": 5, "clients": 3}, some_digits(), 3),
        ({"kind": "iid"}, some_digits(), 10),
        ({"kind": "iid", "clients": 3}, some_digits(labelled=False), 3),
        ({"kind": "skew", "clients": 3}, some_digits(labelled=False), 3),
        ({"kind": "folders"}, owned(), 2),
        ({"kind": "folders", "clients": 2}, owned(), 2),
    ],
)
def test_no_image_belongs_to_two_clients(choice: Tree, data: ImageData, expected: int) -> None:
    parts = partition(tiny("km", {"partition": choice}), data, Randomness(0))
    assert len(parts) == expected
    held = torch.cat(parts).tolist()
    assert len(set(held)) == len(held)
    # The published skew rounds shares off, so that some may be nobody's.
    assert set(held) == set(range(len(data))) or choice["kind"] == "skew"
    assert len(held) > len(data) - expected


@pytest.mark.parametrize(("clients", "each", "holders"), [(10, 2, 2), (5, 2, 1), (3, 5, None)])
def test_clients_hold_so_many_classes(clients: int, each: int, holders: int | None) -> None:
    data = some_digits(200)
    assert data.labels is not None
    choice: Tree = {"kind": "classes", "clients": clients, "classes_per_client": each}
    parts = partition(tiny("km", {"partition": choice}), data, Randomness(0))
    held = [set(data.labels[part].tolist()) for part in parts]
    assert {len(own) for own in held} == {each}
    numbers = {sum(c in own for own in held) for c in range(10)}
    assert numbers == ({holders} if holders else {1, 2})


@pytest.mark.parametrize(
    ("clients", "each", "complaint"),
    [(4, 2, "without a client"), (1, 9, "without a client"), (10, 11, "does not fit 10 classes")],
)
def test_no_class_is_left_without_a_client(clients: int, each: int, complaint: str) -> None:
    choice: Tree = {"kind": "classes", "clients": clients, "classes_per_client": each}
    with pytest.raises(UsageError, match=complaint):
        partition(tiny("km", {"partition": choice}), some_digits(200), Randomness(0))


@given(st.floats(0.05, 100), st.integers(1, 6), st.integers(1, 12), st.integers(0, 99))
def test_a_dirichlet_partition_is_that_of_classification(
    alpha: float, clients: int, least: int, seed: int
) -> None:
    data = some_digits(200)
    assert data.labels is not None
    choice: Tree = {"kind": "dirichlet", "alpha": alpha, "min_samples": least, "clients": clients}
    parts = partition(tiny("km", {"partition": choice}), data, Randomness(seed))
    expected = dirichlet_partition(data.labels, 10, clients, alpha, Randomness(seed), least)
    assert [part.tolist() for part in parts] == [part.tolist() for part in expected]


@pytest.mark.parametrize(
    ("choice", "words", "degree"),
    [
        ({}, "skew, p = 0", {"p": 0.0}),
        ({"p": 0.75, "alpha": 0.1}, "skew, p = 0.75", {"p": 0.75}),
        ({"kind": "dirichlet", "alpha": 0.1, "p": 1}, "dirichlet, alpha = 0.1", {"alpha": 0.1}),
        ({"kind": "dirichlet", "alpha": "inf"}, "dirichlet, alpha = inf", {"alpha": "inf"}),
        ({"kind": "classes", "p": 1}, "2 classes a client", {"classes_per_client": 2}),
        ({"kind": "iid", "p": 0.75, "alpha": 0.1}, "iid", {}),
        ({"kind": "folders"}, "folders", {}),
    ],
)
def test_a_partition_is_named_with_what_counts_for_it(
    choice: Tree, words: str, degree: Tree
) -> None:
    chosen = tiny("km", {"partition": choice}).partition
    assert (chosen.in_words, chosen.degree) == (words, degree)


def test_each_folder_is_a_client() -> None:
    north, south = partition(tiny("km", {"partition": {"kind": "folders"}}), owned(), Randomness(0))
    assert south.tolist() == list(range(0, 40, 4))
    assert len(north) == 30


@pytest.mark.parametrize(
    ("choice", "data", "complaint"),
    [
        ({"kind": "folders"}, some_digits(), "needs an image folder, or .* and mine is neither"),
        ({"kind": "folders", "clients": 3}, owned(), "clients = 3 does not fit the 2 folders"),
        ({"kind": "iid"}, some_digits(labelled=False), "clients is not given and mine has no"),
        (
            {"kind": "skew", "p": 0.5, "clients": 3},
            some_digits(labelled=False),
            "partition.kind = skew needs class labels",
        ),
        (
            {"kind": "dirichlet", "clients": 3},
            some_digits(labelled=False),
            "dirichlet needs class labels, and mine has none: take --partition iid or",
        ),
        ({"kind": "dirichlet"}, some_digits(), "10 clients with 10 samples at least need 100 of"),
    ],
)
def test_partitions_that_the_images_do_not_allow(
    choice: Tree, data: ImageData, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        partition(tiny("km", {"partition": choice}), data, Randomness(0))


def test_one_class_alone_is_no_number_of_clusters() -> None:
    alike = replace(some_digits(), labels=torch.zeros(40, dtype=torch.int64), classes=("x",))
    with pytest.raises(UsageError, match=r"mine has one class alone, 'x'.*give --clusters"):
        number_of_clusters(tiny("fed-km", {"clusters": None}), alike)
    assert number_of_clusters(tiny("fed-km", {"clusters": 1}), alike) == 1
