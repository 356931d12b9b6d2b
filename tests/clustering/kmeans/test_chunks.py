"""Sums over the clients of one process."""

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from ccfcpp.clustering.kmeans.chunks import join_small


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(1, 40))
def test_small_clients_are_joined_in_their_order_and_others_stay_alone(
    sizes: list[int], columns: int
) -> None:
    rows, most = torch.arange(sum(sizes) * columns).view(-1, columns), 30 * columns
    holdings = [*torch.split(rows, sizes)]
    joined = [*join_small(iter(holdings), most)]
    assert torch.equal(torch.cat(joined), rows)
    alone = {id(each) for each in holdings}
    assert all(each.numel() <= most or id(each) in alone for each in joined)
    # What follows would not have fitted in.
    by_start = {int(each[0, 0]): each for each in holdings}
    for first, second in pairwise(joined):
        assert first.numel() + by_start[int(second[0, 0])].numel() > most
