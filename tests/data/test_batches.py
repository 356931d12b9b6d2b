import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccfcpp.core.randomness import Randomness
from ccfcpp.data.batches import CohortBatch, cohort_batches

CPU = torch.device("cpu")


def epoch(sizes: list[int], batch_size: int, seed: int = 0) -> list[CohortBatch]:
    generators = [Randomness(seed, 0, c).generator("batches") for c in range(len(sizes))]
    return list(cohort_batches(sizes, batch_size, generators, CPU))


def counted(batch: CohortBatch, client: int) -> list[int]:
    """The samples of a client that count in a batch."""
    if client >= len(batch):
        return []
    mask = torch.ones(batch.index.shape[1]) if batch.mask is None else batch.mask[client]
    return batch.index[client][mask > 0].tolist()


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(2, 10), st.integers(0, 9))
def test_an_epoch_visits_each_sample_once_save_a_last_single_one(
    sizes: list[int], batch_size: int, seed: int
) -> None:
    sizes = sorted(sizes, reverse=True)
    batches = epoch(sizes, batch_size, seed)
    for client, size in enumerate(sizes):
        own = [counted(batch, client) for batch in batches if counted(batch, client)]
        visited = [sample for batch in own for sample in batch]
        first = sum(sizes[:client])
        assert len(visited) == len(set(visited)) == size - (size % batch_size == 1)
        assert set(visited) <= set(range(first, first + size))
        assert all(2 <= len(batch) <= batch_size for batch in own)
        # Padding shows samples of the same client.
        shown = [s for batch in batches for s in batch.index[client : client + 1].flatten()]
        assert all(first <= sample < first + size for sample in shown)


@given(st.lists(st.integers(1, 60), min_size=2, max_size=5), st.integers(2, 10))
def test_a_client_visits_its_samples_in_the_same_order_whoever_else_is_there(
    sizes: list[int], batch_size: int
) -> None:
    sizes = sorted(sizes, reverse=True)
    together = epoch(sizes, batch_size)
    for client, size in enumerate(sizes):
        generator = Randomness(0, 0, client).generator("batches")
        alone = cohort_batches([size], batch_size, [generator], CPU)
        first = sum(sizes[:client])
        expected = [[first + s for s in counted(batch, 0)] for batch in alone]
        found = [counted(batch, client) for batch in together]
        assert [batch for batch in found if batch] == expected


def test_a_mask_is_there_only_where_a_batch_is_padded() -> None:
    assert [batch.mask is None for batch in epoch([8, 8, 6], 4)] == [True, False]
    assert [batch.mask is None for batch in epoch([8, 8, 4], 4)] == [True, True]


def test_one_sample_alone_gives_no_batch() -> None:
    assert epoch([1], 8) == []


def test_sizes_must_descend() -> None:
    with pytest.raises(ValueError, match="descending order"):
        epoch([3, 5], 2)
