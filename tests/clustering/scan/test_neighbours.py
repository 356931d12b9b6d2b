"""Neighbours against the obvious loop."""

from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cosine_similarity

from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.scan import neighbours
from ccfcpp.clustering.scan.clients import Pairs
from ccfcpp.clustering.scan.config import ScanConfig
from ccfcpp.clustering.scan.neighbours import nearest_neighbours
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client


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


@pytest.mark.parametrize("spread", [0.2, 1.0], ids=["kinds apart", "one cloud"])
def test_an_index_finds_almost_all_of_them(monkeypatch: pytest.MonkeyPatch, spread: float) -> None:
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randn(20, 16, generator=generator)
    points = kinds.repeat(150, 1) + spread * torch.randn(3000, 16, generator=generator)
    exact = nearest_neighbours(points, 5)
    monkeypatch.setattr(neighbours, "_EXACT_UP_TO", 1000)
    found = nearest_neighbours(points, 5)
    assert (found.dtype, found.shape) == (exact.dtype, exact.shape)
    assert not bool((found == torch.arange(3000).unsqueeze(1)).any())
    shared = (found.unsqueeze(2) == exact.unsqueeze(1)).any(dim=2).double().mean()
    assert float(shared) > 0.97


def test_an_index_of_points_that_are_all_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_EXACT_UP_TO", 10)
    found = nearest_neighbours(torch.ones(300, 4), 3)
    assert found.shape == (300, 3)
    assert 0 <= int(found.min()) <= int(found.max()) < 300


@pytest.mark.parametrize("scale", [1.0, 1e5, 1e-7])
def test_first_neighbours_of_vectors_do_not_depend_on_their_scale(scale: float) -> None:
    kinds = torch.tensor([[1.0, 0.2], [0.2, 1.0]]).repeat_interleave(20, dim=0)
    noise = torch.randn(40, 2, generator=Randomness(0).generator("noise"))
    client = Client(0, "client 0", scale * (kinds + 0.03 * noise))
    pairs = Pairs(ScanConfig(neighbours=5), cast(Any, None), cast(Any, None))
    pairs.find_neighbours(EncoderState({}, 0), client)
    found = client.memory["neighbours"].long() // 20
    assert torch.equal(found, torch.arange(2).repeat_interleave(20).unsqueeze(1).expand(40, 5))
