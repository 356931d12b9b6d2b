"""Verdicts follow from numbers, and Proposition 1 and the heat maps come out as they must."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccfcpp.core.randomness import Randomness
from ccfcpp.studies.theory.alignment import INITIALISATIONS, heat_maps
from ccfcpp.studies.theory.claim_checks import (
    Simulation,
    Statement,
    about_rates,
    equal,
    smaller,
    worst,
)
from ccfcpp.studies.theory.networks import SplitNetwork
from ccfcpp.studies.theory.problems import CLUSTERS, aligned_start, clustered_data, labelled_data
from ccfcpp.studies.theory.proposition import (
    correlations,
    proposition_statements,
    squared_deviations,
)
from tests.support.theory import normal


@pytest.mark.parametrize(
    ("statement", "verdict"),
    [
        (equal("t", 1.0, 1.0), "holds"),
        (equal("t", 1.05, 1.0), "roughly"),
        (equal("t", -1.0, 1.0), "fails"),
        (equal("t", math.nan, 1.0), "fails"),
        (smaller("t", 2.0, 1.0), "holds"),
        (smaller("t", 1.0, 1.0), "fails"),
        (smaller("t", math.nan, 1.0), "fails"),
        (Statement("t", 0.0, 0.0), "fails"),
    ],
)
def test_the_verdict_is_computed(statement: Statement, verdict: str) -> None:
    assert statement.verdict == verdict
    assert statement.as_json()["verdict"] == verdict


def test_the_worst_setting_is_shown() -> None:
    assert worst([equal("t", x, 1.0) for x in (1.0, 3.0, 2.0)]).predicted == 3.0


def test_a_wrong_formula_for_rates_fails() -> None:
    rates = normal(0, "rates", 10, 1, 2, 3)
    nothing = SplitNetwork((), 1)
    resolved = torch.ones(10, 1, 2, dtype=torch.bool)
    simulation = Simulation(nothing, nothing, torch.arange(10.0), rates, rates, resolved)
    assert about_rates("t", rates, simulation).verdict == "holds"
    assert about_rates("t", 1.01 * rates, simulation).verdict == "roughly"
    wrong = about_rates("t", 1.5 * rates, simulation)
    assert wrong.verdict == "fails"
    assert wrong.relative_error == pytest.approx(0.5)
    assert abs(wrong.simulated) == rates[5].abs().max()


@given(st.integers(0, 10_000), st.integers(3, 20), st.integers(1, 12))
def test_proposition_1_holds_for_correlation_matrices(seed: int, samples: int, d: int) -> None:
    K = correlations(normal(seed, "z", samples, d))
    assert squared_deviations(K) == pytest.approx(float(K.square().sum()) - d, abs=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_where_proposition_1_holds_and_where_it_does_not(seed: int) -> None:
    verdicts = [each.verdict for each in proposition_statements(Randomness(seed))]
    assert verdicts[0] == verdicts[2] == verdicts[3] == "holds"
    assert "holds" not in (verdicts[1], verdicts[4], verdicts[5])


def test_heat_maps_start_unaligned_and_become_aligned() -> None:
    maps = heat_maps(Randomness(0), (0, 10))
    mean = {(m.start, m.time): float(m.cosines.diagonal().mean()) for m in maps}
    default, _, encoder, everywhere = INITIALISATIONS
    assert [mean[everywhere, time] for time in (0, 10)] == pytest.approx([1, 1])
    assert mean[default, 0] < 0.4 < mean[default, 10]
    assert mean[encoder, 0] < 0.4 < mean[encoder, 10]
    errors = {(m.start, m.time): m.error for m in maps}
    assert errors[everywhere, 10] < 1e-6 < 1e-3 < errors[default, 10] < errors[default, 0]
    cosines = torch.stack([each.cosines for each in maps])
    assert cosines.shape == (len(maps), 10, 10)
    assert ((cosines >= 0) & (cosines <= 1 + 1e-9)).all()


def test_clients_hold_what_they_are_said_to_hold() -> None:
    generator = Randomness(0).generator("data")
    data = labelled_data(3, [1, 4, 6], 0.5, generator)
    held = (data.labels.sum(dim=-1) > 0).sum(dim=-1)
    assert held.tolist() == [[1] * 3, [4] * 3, [6] * 3]
    values = torch.linspace(1, 0.5, 5, dtype=torch.float64)
    start = aligned_start(3, (2, 1), 5, values, 0.0, generator)
    clustered = clustered_data(start, [0.0, 1.0], 0.1, 0.5, generator)
    sizes = clustered.members.sum(dim=-1).amax(dim=-1)
    # at p = 1 nearly all samples of a tight cluster get one pseudo-label
    assert (sizes[1] > 2 * sizes[0]).all()
    assert clustered.members.shape == (2, 3, CLUSTERS, 60)
