"""Whose turn it is in a step."""

from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

from ccfcpp.clustering.scan.neighbours import drawn_neighbours
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.synchronised.descent import turn


@given(st.integers(1, 30), st.floats(0.01, 40), st.integers(1, 40))
def test_all_images_have_their_turn_equally_often(samples: int, share: float, steps: int) -> None:
    source = Randomness(3).of_client(1)
    shown = [turn(samples, share, step, source).tolist() for step in range(steps)]
    counts = Counter(image for images in shown for image in images)
    in_all = [counts[image] for image in range(samples)]
    assert max(in_all) - min(in_all) <= 1
    assert abs(sum(in_all) - steps * share) < 1
    assert all(abs(len(images) - share) < 1 for images in shown)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(2, 40))
def test_all_clients_together_show_the_batch(sizes: list[int], batch: int) -> None:
    shown = sum(
        len(turn(size, batch * size / sum(sizes), step, Randomness(0).of_client(number)))
        for step in range(10)
        for number, size in enumerate(sizes)
    )
    assert abs(shown - 10 * batch) < len(sizes)


@given(st.integers(1, 30), st.floats(0.01, 40), st.floats(0, 9), st.integers(0, 40))
def test_who_fills_the_batch_goes_on_to_the_images_that_come_next(
    samples: int, share: float, more: float, step: int
) -> None:
    source = Randomness(3).of_client(1)
    rest = [turn(samples, share, later, source).tolist() for later in range(step, step + 400)]
    coming = [image for images in rest for image in images]
    found = turn(samples, share, step, source, more=more).tolist()
    assert abs(len(found) - share - more) < 1
    known = min(len(found), len(coming))
    assert found[:known] == coming[:known]
    assert found[: len(rest[0])] == rest[0]


def test_small_clients_do_not_all_show_an_image_in_the_same_step() -> None:
    shown = [
        sum(len(turn(70, 1.4, step, Randomness(0).of_client(n))) for n in range(200))
        for step in range(8)
    ]
    assert max(shown) < 1.15 * min(shown)


def test_a_turn_does_not_depend_on_the_round() -> None:
    source = Randomness(0).of_client(2)
    for step in range(5):
        first, second = (turn(20, 7.3, step, source.at_round(number)) for number in (1, 4))
        assert torch.equal(first, second)


def test_neighbours_are_drawn_from_those_of_the_image() -> None:
    neighbours = torch.tensor([[1, 2], [0, 2], [0, 1]], dtype=torch.int32)
    chosen = torch.tensor([2, 0, 1] * 30)
    drawn = drawn_neighbours(neighbours, chosen, Randomness(0), 0)
    assert all(int(d) in neighbours[c].tolist() for c, d in zip(chosen, drawn, strict=True))
    assert len(set(zip(chosen.tolist(), drawn.tolist(), strict=True))) == 6
