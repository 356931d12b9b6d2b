"""Neighbours against the obvious loop."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cosine_similarity

from ccfcpp.clustering.scan import neighbours
from ccfcpp.clustering.scan.neighbours import nearest_neighbours


@given(st.integers(2, 12), st.integers(1, 14), st.integers(0, 10**6))
def test_they_are_the_most_similar_others(samples: int, count: int, seed: int) -> None:
    points = torch.randn(samples, 5, generator=torch.Generator().manual_seed(seed))
    found = nearest_neighbours(points, count)
    assert found.shape == (samples, min(count, samples - 1))
    assert found.dtype == torch.int32
    for own, row in zip(range(samples), found.tolist(), strict=True):
        others = [other for other in range(samples) if other != own]
        cosines = {o: float(cosine_similarity(points[own], points[o], dim=0)) for o in others}
        assert own not in row
        assert len(set(row)) == len(row)
        best = sorted(cosines.values(), reverse=True)[: len(row)]
        assert [cosines[other] for other in row] == pytest.approx(best, abs=1e-6)


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    points = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    whole = nearest_neighbours(points, 7)
    monkeypatch.setattr(neighbours, "_SIMILARITIES", 120)
    assert torch.equal(nearest_neighbours(points, 7), whole)


def test_one_that_is_alone_is_its_own_neighbour() -> None:
    assert nearest_neighbours(torch.ones(1, 3), 10).tolist() == [[0]]
