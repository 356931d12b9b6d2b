"""The size in which images meet, against the rule in words, and by parts."""

from hypothesis import given
from hypothesis import strategies as st

from ccfcpp.data.image_size import LARGEST_KEPT, Shape, Sizes, common_shape

Found = list[tuple[int, int]]
sides = st.sampled_from([1, 7, 8, 15, 16, 20, 32, 64, 100, 256, 257, 4000])
some_sizes = st.lists(st.tuples(sides, sides), min_size=1, max_size=30) | st.tuples(
    st.tuples(sides, sides), st.integers(1, 40), st.lists(st.tuples(sides, sides), max_size=4)
).map(lambda each: [each[0]] * each[1] + each[2])


def in_words(sizes: Found, colour: bool) -> Shape:
    """Slow and obvious: what nine of ten have, else the largest square that half of them reach."""
    channels = 3 if colour else 1
    for size in sizes:
        if sizes.count(size) >= 0.9 * len(sizes) and max(size) <= LARGEST_KEPT:
            return channels, *size
    reached = [
        side for side in (8, 16, 32, 64) if sum(min(s) >= side for s in sizes) * 2 >= len(sizes)
    ]
    return channels, max(reached, default=8), max(reached, default=8)


@given(some_sizes, st.booleans())
def test_it_is_that_of_the_rule(sizes: Found, colour: bool) -> None:
    assert common_shape([Sizes.of(sizes, colour)]) == in_words(sizes, colour)


@given(st.lists(st.tuples(some_sizes, st.booleans()), min_size=1, max_size=4))
def test_clients_meet_where_their_images_would_in_one_place(
    clients: list[tuple[Found, bool]],
) -> None:
    apart = [Sizes.of(sizes, colour) for sizes, colour in clients]
    together = [size for sizes, _ in clients for size in sizes]
    assert all(each.is_sound for each in apart)
    # Twenty sizes of a client travel; here it has fewer.
    if all(len(set(sizes)) <= 20 for sizes, _ in clients):
        assert common_shape(apart) == in_words(together, any(colour for _, colour in clients))


def test_the_users_size_is_over_all() -> None:
    grey, colour = Sizes.of([(20, 30)], colour=False), Sizes.of([(9, 9)], colour=True)
    assert common_shape([grey], 12) == (1, 12, 12)
    assert common_shape([grey, colour], 12) == (3, 12, 12)
