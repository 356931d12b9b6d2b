"""What the benchmark calls an exchange is one."""

import torch

from scripts.exchange import CLIENTS, NAME, NUMBERS, TENSORS, echoes, exchange


def test_an_exchange_takes_ten_kilobytes_down_and_up_for_each_client() -> None:
    federation = echoes()
    state = federation.algorithm.initial_state(federation.randomness)
    after, report = federation.run_round(state, 0)
    assert report.bytes_down == report.bytes_up == CLIENTS * TENSORS * NUMBERS * 4
    assert TENSORS * NUMBERS * 4 == 10_240
    for name, entry in state.model.items():
        torch.testing.assert_close(after.model[name], entry)


def test_all_that_follow_the_first_ones_are_measured() -> None:
    (seconds,) = exchange(3).values()
    assert list(exchange(3)) == [NAME]
    assert len(seconds) == 3
    assert min(seconds) > 0
