"""Where new clusters of a run that goes on begin."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccfcpp.clustering.systems.fed_scan.newcomers import (
    cluster_centres,
    cluster_unexplained,
    heads_for,
)
from ccfcpp.core.randomness import generator_of


@given(st.integers(1, 3), st.integers(0, 3), st.integers(0, 2**32))
def test_what_known_centres_do_not_explain(new: int, known: int, seed: int) -> None:
    """Of groups far from each other, some with known centres: the others' means are found."""
    generator = generator_of(seed)
    places = torch.eye(known + new + 1).repeat(1, 2) * 50
    groups = [place + torch.randn(7, places.shape[1], generator=generator) for place in places]
    centres = torch.stack([group.mean(dim=0) for group in groups])
    held = torch.cat(groups[: known + new])
    fixed = torch.cat([centres[:known], centres[-1:]])
    found = cluster_unexplained(held, fixed, new, generator)
    expected = centres[known : known + new]
    order = torch.cdist(expected, found.centroids).argmin(dim=1)
    torch.testing.assert_close(found.centroids[order], expected)
    assert found.sizes.tolist() == [7] * new


def test_newcomers_that_hold_the_same_have_one_new_cluster() -> None:
    generator = generator_of(0)
    known, place = torch.zeros(1, 4), torch.full((4,), 20.0)
    held = [place + torch.randn(size, 4, generator=generator) for size in (9, 30)]
    found = [cluster_unexplained(own, known, 2, generator) for own in held]
    points, sizes = (torch.cat([getattr(one, n) for one in found]) for n in ("centroids", "sizes"))
    starts = cluster_centres(points, sizes, 1, seed=0)
    torch.testing.assert_close(starts, torch.cat(held).mean(dim=0, keepdim=True))


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**32))
def test_a_new_head_leads_at_its_centre(new: int, known: int, seed: int) -> None:
    generator = generator_of(seed)
    centres, weight, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((new, 6), (known, 6), (known,))
    )
    heads, offsets = heads_for(centres, weight, bias)
    for i in range(new):
        together = sum(float((weight[j] @ centres[i] + bias[j]).exp()) for j in range(known))
        leads = float(heads[i] @ centres[i] + offsets[i]) - float(np.log(together))
        assert leads == pytest.approx(1)
