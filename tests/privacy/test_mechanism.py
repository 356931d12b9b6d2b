"""Clipping and noise beside obvious loops, and the accountant beside closed forms."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import kstest, norm

from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.exchange import Exchange
from ccfcpp.engine.synchronised.contract import PARTS, Contribution, StepMessage
from ccfcpp.engine.update_format import group_names
from ccfcpp.privacy.noise.accountant import (
    Accountant,
    Budget,
    Release,
    add_to_ledger,
    epsilon,
    least_noise,
    read_ledger,
)
from ccfcpp.privacy.noise.mechanism import Bounds, NoiseSource, shares

pytest.importorskip("dp_accounting", reason="dp-accounting is an extra: ccfcpp[privacy]")

STEP = Exchange("step", StepMessage, Contribution, PARTS)
NAMES = ["sums/a", "sums/b", "gradient/w", "gradient/v", "figures/loss"]


def group_of(name: str) -> str:
    (group,) = group_names(PARTS, [name])
    return group


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(0, 2**32))
def test_a_contribution_is_within_its_bounds(clip: float, other: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    bounds = Bounds(STEP, clip, {"sums/a": other}, batch=4.0)
    parts = {n: 10 * torch.randn(3, generator=generator, dtype=torch.float64) for n in NAMES}
    found = bounds.clip_parts(parts)
    expected = {"sums/a": other, "sums/b": clip, "gradient": clip / 4, "figures": clip / 4}
    for group, names in group_names(PARTS, parts).items():
        before = math.sqrt(sum(x * x for name in names for x in parts[name].tolist()))
        factor = min(1.0, expected[group] / before)
        for name in names:
            assert found[name].tolist() == pytest.approx([factor * x for x in parts[name].tolist()])


def test_whoever_contributes_changes_the_scaled_sum_by_one_at_most() -> None:
    """What the accountant is told: divided by the noise's deviation over z, parts have norm 1."""
    bounds, z = Bounds(STEP, 0.5, {"sums": 3.0}), 2.0
    parts = {name: torch.full((4,), 1e6, dtype=torch.float64) for name in NAMES}
    found = bounds.clip_parts(parts)
    weights = shares(PARTS, group_names(PARTS, parts))
    assert sum(weights.values()) == pytest.approx(1)
    squares = 0.0
    for name, part in found.items():
        deviation = z * bounds.of(group_of(name)) / math.sqrt(weights[group_of(name)])
        squares += float((part * z / deviation).square().sum())
    assert squares == pytest.approx(1)


@pytest.mark.parametrize("spoilt", [math.nan, math.inf, -math.inf, 1e200])
def test_no_contributor_can_spoil_a_sum(spoilt: float) -> None:
    """What is not finite adds nothing, alone or among others."""
    bounds, good = Bounds(STEP, 0.5, {}), torch.tensor([0.1, 0.2], dtype=torch.float64)
    bad = torch.tensor([spoilt, 1.0], dtype=torch.float64)
    assert bounds.clip_parts({"sums/a": bad})["sums/a"].tolist() == [0, 0]
    together = bounds.clip_and_sum({"sums/a": torch.stack([good, bad])})
    assert together["sums/a"].tolist() == good.tolist()


def test_noise_has_the_deviation_that_the_accountant_is_told() -> None:
    bounds, z, size = Bounds(STEP, 0.5, {"sums": 3.0}), 2.0, 100_000
    zeros = {name: torch.zeros(size, dtype=torch.float64) for name in NAMES}
    weights = shares(PARTS, group_names(PARTS, zeros))
    for name, noise in bounds.add_noise(zeros, z, NoiseSource()).items():
        expected = z * bounds.of(group_of(name)) / math.sqrt(weights[group_of(name)])
        assert float(noise.std()) == pytest.approx(expected, rel=0.015)
        assert abs(float(noise.mean())) < 5 * expected / math.sqrt(size)


def test_what_clients_round_makes_more_noise() -> None:
    """Rounding after clipping takes d numbers beyond their bound by √d steps at most."""
    bounds, size, step = Bounds(STEP, 0.5, {}), 40_000, 0.25
    zeros = {"sums/a": torch.zeros(size, dtype=torch.float64)}
    noise = bounds.add_noise(zeros, 2.0, NoiseSource(), step)["sums/a"]
    assert float(noise.std()) == pytest.approx(2.0 * (0.5 + 200 * step), rel=0.02)
    rows = torch.randn(50, size, dtype=torch.float64)
    clipped = bounds.clip_parts({"sums/a": rows[0]})["sums/a"]
    rounded = (clipped / step).round() * step
    assert float((rounded - clipped).norm()) <= 200 * step / 2


@pytest.mark.parametrize("source", [NoiseSource(), NoiseSource(Randomness(1))])
def test_noise_is_normal_and_samples_are_uniform(source: NoiseSource) -> None:
    normal = source.normal(torch.zeros(3, 33_333))
    assert normal.shape == (3, 33_333)
    assert kstest(normal.flatten().numpy(), "norm").pvalue > 1e-4
    assert abs(float((normal[0, :-1] * normal[0, 1:]).mean())) < 0.03
    uniform = source.uniform(100_001)
    assert kstest(uniform.numpy(), "uniform").pvalue > 1e-4
    assert float(uniform.min()) >= 0
    assert float(uniform.max()) < 1


def test_noise_does_not_follow_from_the_seed_unless_it_is_to() -> None:
    like = torch.zeros(5)
    secret = [NoiseSource().normal(like) for _ in range(2)]
    assert not torch.equal(*secret)
    open_ = [NoiseSource(Randomness(3)).normal(like) for _ in range(2)]
    assert torch.equal(*open_)
    again = NoiseSource(Randomness(3))
    assert not torch.equal(again.normal(like), again.normal(like))


def test_noise_is_a_cryptographic_stream_of_the_operating_systems_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys and nonces are its own; the numbers are those of ChaCha20, by RFC 8439's test vector."""
    pytest.importorskip("cryptography")
    asked: list[int] = []

    def zeros(size: int) -> bytes:
        asked.append(size)
        return bytes(size)

    monkeypatch.setattr("ccfcpp.privacy.noise.mechanism.secrets.token_bytes", zeros)
    block = np.frombuffer(bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28"), "<u8")
    expected = (block >> np.uint64(11)) * 2.0**-53
    assert NoiseSource().uniform(2).tolist() == expected.tolist()
    assert asked == [32, 16]


def gaussian_delta(most: float, mu: float) -> float:
    """δ of the Gaussian mechanism with sensitivity/deviation μ (Balle and Wang 2018, Theorem 8)."""
    lower = most + norm.logcdf(-most / mu - mu / 2)
    return float(norm.cdf(mu / 2 - most / mu) - math.exp(lower))


@settings(max_examples=15, deadline=None)
@given(st.floats(1.5, 20), st.integers(1, 50), st.sampled_from([1, 2, 4]))
def test_epsilon_without_sampling_is_near_the_exact_one(
    noise: float, rounds: int, sums: int
) -> None:
    """Gaussians add up to one Gaussian, whose exact ε is below the accountants', and not far."""
    mu = math.sqrt(rounds * sums) / noise
    exact = brentq(lambda most: gaussian_delta(most, mu) - 1e-5, 0, 5000)
    releases = Counter({Release(1.0, sums): rounds})
    by_distributions = epsilon(releases, noise, 1e-5, "pld")
    by_divergences = epsilon(releases, noise, 1e-5, "rdp")
    # The bound by Rényi divergences, by its formula, at the best of all orders above 1.
    renyi = minimize_scalar(
        lambda k: (
            mu * mu * (1 + math.exp(k)) / 2
            - math.log1p(math.exp(-k))
            - math.log(1e-5 * (1 + math.exp(k))) / math.exp(k)
        ),
        bounds=(-8, 8),
        method="bounded",
        options={"xatol": 1e-9},
    ).fun
    assert by_divergences >= renyi * (1 - 1e-6)
    assert by_divergences <= 1.02 * renyi + 0.02
    assert exact <= by_distributions <= by_divergences
    if exact < 80:
        assert by_distributions <= 1.001 * exact + 1e-3


@pytest.mark.parametrize(("sampled", "noise"), [(0.01, 0.7), (0.2, 1.5), (0.9, 4.0)])
def test_epsilon_of_one_sampled_release_is_the_exact_one(sampled: float, noise: float) -> None:
    """D((1−q)N(0) + qN(1) ‖ N(0)) at e^ε is q D(N(1) ‖ N(0)) at (e^ε − 1 + q)/q."""

    def delta(most: float) -> float:
        return sampled * gaussian_delta(math.log1p(math.expm1(most) / sampled), 1 / noise)

    exact = brentq(lambda most: delta(most) - 1e-5, 1e-9, 100)
    found = epsilon(Counter({Release(sampled, 1): 1}), noise, 1e-5)
    assert exact <= found <= 1.001 * exact + 1e-3


@settings(max_examples=10, deadline=None)
@given(st.floats(0.02, 0.98), st.floats(1.5, 10), st.integers(2, 100), st.floats(1e-8, 1e-3))
def test_the_second_accountant_gives_more_and_not_much(
    sampled: float, noise: float, steps: int, delta: float
) -> None:
    releases = Counter({Release(sampled, 2): steps, Release(1.0, 1): 2})
    by_distributions = epsilon(releases, noise, delta, "pld")
    by_divergences = epsilon(releases, noise, delta, "rdp")
    assert by_distributions <= by_divergences
    assert by_divergences <= 1.6 * by_distributions + 0.1


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("budget", [0.1, 3.0, 300.0])
def test_the_least_noise_meets_the_budget(budget: float, accountant: Accountant) -> None:
    releases = Counter({Release(0.25, 4): 20, Release(1.0, 1): 1})
    noise = least_noise(releases, budget, 1e-5, accountant)
    assert epsilon(releases, noise, 1e-5, accountant) <= budget
    assert budget < epsilon(releases, 0.99 * noise, 1e-5, accountant)


def test_a_budget_ends() -> None:
    budget, release = Budget(5.0, 2.0, 1e-5), [Release(1.0, 1)]
    rounds = 0
    while budget.allows(release):
        budget.spend(release)
        rounds += 1
    assert rounds > 0
    assert budget.spent <= 2.0
    budget.spend(release)
    assert budget.spent > 2.0


def test_no_noise_is_enough_for_a_budget_of_almost_nothing() -> None:
    with pytest.raises(UsageError, match=r"privacy\.epsilon = 1e-09 allows no run"):
        least_noise(Counter({Release(1.0, 1): 10**6}), 1e-9, 1e-12)


@pytest.mark.parametrize("kept", [1, 30, -1])
def test_a_ledger_whose_last_line_was_cut_short_forgets_no_round(kept: int, tmp_path: Path) -> None:
    ledger, whole = tmp_path / "privacy.jsonl", [Release(0.5, 4), Release(1.0, 1)]
    for number in range(3):
        add_to_ledger(ledger, number, whole)
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines[:-1]) + lines[-1][:kept])
    assert read_ledger(ledger) == Counter(3 * whole)
    add_to_ledger(ledger, 2, whole)
    assert read_ledger(ledger) == Counter(4 * whole)
    assert len(ledger.read_text().splitlines()) == 4
