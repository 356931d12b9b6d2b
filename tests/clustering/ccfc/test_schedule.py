"""Which round is of which phase, and how fast clients learn in it."""

import pytest

from ccfcpp.clustering.ccfc.config import TrainingConfig
from ccfcpp.clustering.ccfc.schedule import Schedule, contrast_learning_rate


def phases(schedule: Schedule) -> str:
    """A letter a round: p(re-training) or c(ontrast), in capitals where centroids are due."""
    letters = ["p" if schedule.pretrains(n) else "c" for n in range(schedule.rounds)]
    return "".join(
        letter.upper() if schedule.ends_with_centroids(n) else letter
        for n, letter in enumerate(letters)
    )


@pytest.mark.parametrize(
    ("pretrain_rounds", "rounds", "expected"),
    [(3, 2, "ppPCC"), (1, 1, "PC"), (0, 2, "CC"), (2, 0, "pP")],
)
def test_the_last_pre_training_round_and_all_after_it_end_with_centroids(
    pretrain_rounds: int, rounds: int, expected: str
) -> None:
    training = TrainingConfig(pretrain_rounds=pretrain_rounds, rounds=rounds)
    assert phases(Schedule(training, from_global=False)) == expected
    assert phases(Schedule(training, from_global=True)) == expected


def test_trained_models_give_centroids_unless_the_global_one_does() -> None:
    training = TrainingConfig(pretrain_rounds=2, rounds=1)
    own, of_global = (Schedule(training, from_global) for from_global in (False, True))
    assert [own.trained_give_centroids(number) for number in range(3)] == [False, True, True]
    assert not any(of_global.trained_give_centroids(number) for number in range(3))


def test_the_averaged_model_may_give_the_first_centroids_alone() -> None:
    training = TrainingConfig(pretrain_rounds=2, rounds=2)
    schedule = Schedule(training, from_global=False, first_from_global=True)
    rounds = range(schedule.rounds)
    assert [schedule.trained_give_centroids(n) for n in rounds] == [False, False, True, True]
    due = [schedule.ends_with_centroids(n) and schedule.global_gives_centroids(n) for n in rounds]
    assert due == [False, True, False, False]


def test_the_learning_rate_of_each_cluster_round() -> None:
    constant = TrainingConfig(pretrain_rounds=2, rounds=4)
    cosine = TrainingConfig(pretrain_rounds=2, rounds=4, schedule="cosine")
    assert [contrast_learning_rate(constant, number) for number in range(2, 6)] == [1e-3] * 4
    rates = [contrast_learning_rate(cosine, number) for number in range(2, 6)]
    half = 0.5**0.5 / 2
    assert rates == pytest.approx([1e-3, 1e-3 * (0.5 + half), 5e-4, 1e-3 * (0.5 - half)])
