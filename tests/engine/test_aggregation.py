from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ccfcpp.engine.aggregation import ModelAverage
from ccfcpp.models.state import ModelState


def average_models(models: Sequence[ModelState], weights: Sequence[float]) -> ModelState:
    average = ModelAverage()
    for model, weight in zip(models, weights, strict=True):
        average.add(model, weight)
    return average.result()


def test_weighted_mean_by_hand() -> None:
    models = [{"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([5.0, 0.0])}]
    assert average_models(models, [3, 1])["w"].tolist() == [2.0, 1.5]


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(0, 50)), min_size=1, max_size=6))
def test_mean_stays_between_the_extremes_of_those_that_weigh(
    entries: list[tuple[float, int]],
) -> None:
    values, weights = [e[0] for e in entries], [e[1] for e in entries]
    models = [{"w": torch.tensor([value], dtype=torch.float64)} for value in values]
    if sum(weights) == 0:
        with pytest.raises(ValueError, match="positive weight"):
            average_models(models, weights)
        return
    mean = average_models(models, weights)["w"].item()
    weighing = [value for value, weight in entries if weight > 0]
    assert min(weighing) - 1e-9 <= mean <= max(weighing) + 1e-9


def test_batchnorm_statistics_are_averaged_and_counters_are_not() -> None:
    first, second = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    first.running_mean, second.running_mean = torch.tensor([0.0, 4.0]), torch.tensor([2.0, 0.0])
    first.running_var, second.running_var = torch.tensor([1.0, 1.0]), torch.tensor([3.0, 5.0])
    first.num_batches_tracked, second.num_batches_tracked = torch.tensor(3), torch.tensor(8)
    mean = average_models([first.state_dict(), second.state_dict()], [1, 1])
    assert mean["running_mean"].tolist() == [1.0, 2.0]
    assert mean["running_var"].tolist() == [2.0, 3.0]
    assert mean["num_batches_tracked"].item() == 8
    assert mean["num_batches_tracked"].dtype == torch.int64


def test_one_model_is_its_own_mean() -> None:
    model = nn.Linear(3, 2).state_dict()
    mean = average_models([model], [7])
    assert all(torch.equal(mean[name], model[name]) for name in model)


@pytest.mark.parametrize(
    ("models", "weights"),
    [([], []), ([{"w": torch.zeros(1)}], [0]), ([{"w": torch.zeros(1)}], [-1])],
)
def test_what_has_no_mean_is_refused(
    models: list[dict[str, torch.Tensor]], weights: list[float]
) -> None:
    with pytest.raises(ValueError, match="weight"):
        average_models(models, weights)
