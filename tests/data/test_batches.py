import torch
from hypothesis import given
from hypothesis import strategies as st

from ccfcpp.data.batches import shuffled_batches
from ccfcpp.randomness import Randomness


@given(st.integers(0, 60), st.integers(2, 10), st.integers(0, 9))
def test_an_epoch_visits_each_sample_once_save_a_last_single_one(
    samples: int, size: int, seed: int
) -> None:
    batches = list(shuffled_batches(samples, size, Randomness(seed).generator("batches")))
    visited = torch.cat([torch.empty(0, dtype=torch.int64), *batches]).tolist()
    assert len(visited) == len(set(visited)) == samples - (samples % size == 1)
    assert set(visited) <= set(range(samples))
    assert all(2 <= len(batch) <= size for batch in batches)


def test_one_sample_alone_gives_no_batch() -> None:
    assert list(shuffled_batches(1, 8, Randomness(0).generator("batches"))) == []
