import itertools

import torch

from ccfcpp.core.randomness import Randomness


def test_equal_purposes_give_equal_numbers() -> None:
    first = torch.rand(5, generator=Randomness(3).at_round(2).of_client(7).generator("views"))
    second = torch.rand(5, generator=Randomness(3).of_client(7).at_round(2).generator("views"))
    assert torch.equal(first, second)


def test_every_coordinate_changes_the_numbers() -> None:
    grid = itertools.product(range(3), range(-1, 3), range(-1, 3), ("a", "b"))
    integers = {Randomness(s, r, c).integer(purpose) for s, r, c, purpose in grid}
    assert len(integers) == 3 * 4 * 4 * 2
    assert all(0 <= integer < 2**63 for integer in integers)


def test_neighbouring_coordinates_do_not_run_together() -> None:
    assert Randomness(1, 11, 1).integer("x") != Randomness(1, 1, 11).integer("x")


def test_the_global_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    torch.rand(3, generator=Randomness(0).generator("views"))
    assert torch.equal(before, torch.random.get_rng_state())
