"""The server's optimizers against PyTorch's, and against what their papers promise."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccfcpp.engine.synchronised.optimizers import Adam, Muon, orthogonalise
from ccfcpp.models.state import ModelState

SHAPES = {"conv": (6, 2, 3, 3), "linear": (4, 7), "bias": (5,), "head": (3, 4)}


def drawn(seed: int) -> ModelState:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


@pytest.mark.usefixtures("double_precision")
def test_adam_is_pytorchs() -> None:
    start, ours = drawn(0), drawn(0)
    theirs = {name: torch.nn.Parameter(value.clone()) for name, value in start.items()}
    reference = torch.optim.Adam(theirs.values(), 0.01)
    adam = Adam(0.01)
    descent = adam.begin(start)
    for step in range(5):
        gradient = drawn(step + 1)
        for name, parameter in theirs.items():
            parameter.grad = gradient[name].clone()
        reference.step()
        ours, descent = adam.step(ours, gradient, descent, 1.0)
        descent = type(descent)(step + 1, descent.first, descent.second)
    for name, parameter in theirs.items():
        torch.testing.assert_close(ours[name], parameter.detach())
    assert all(torch.equal(value, drawn(0)[name]) for name, value in start.items())


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 10**6))
def test_a_matrix_keeps_its_singular_vectors_and_gets_values_about_1(
    rows: int, columns: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    small = min(rows, columns)
    u, _ = torch.linalg.qr(torch.randn(rows, small, generator=generator, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(columns, small, generator=generator, dtype=torch.float64))
    values = 0.1 + torch.rand(small, generator=generator, dtype=torch.float64)
    values = values / values.norm()
    within = u.T @ orthogonalise(u @ torch.diag(values) @ v.T) @ v
    found = torch.diagonal(within)
    torch.testing.assert_close(within, torch.diag(found), rtol=0, atol=1e-9)
    near = values >= 0.02
    assert bool((found[near] > 0.6).all())
    assert bool((found < 1.3).all())


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 10**6))
def test_products_in_16_bits_lead_to_nearly_the_same_matrix(
    rows: int, columns: int, seed: int
) -> None:
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    rounded = orthogonalise(matrix, torch.bfloat16)
    assert rounded.dtype == torch.bfloat16
    found, exact = rounded.float(), orthogonalise(matrix)
    assert float((found - exact).norm()) < 0.25 * float(exact.norm())


def test_muon_with_products_in_16_bits_keeps_the_parameters_precision() -> None:
    start, gradient = drawn(0), drawn(1)
    plain, rounded = (Muon(0.1, Adam(0.01), (), precision=own) for own in (None, torch.bfloat16))
    moved, _ = rounded.step(start, gradient, rounded.begin(start), 1.0)
    wanted, _ = plain.step(start, gradient, plain.begin(start), 1.0)
    assert all(moved[name].dtype == start[name].dtype for name in start)
    assert not torch.equal(moved["conv"], wanted["conv"])
    for name in start:
        change = (wanted[name] - start[name]).norm()
        assert float((moved[name] - wanted[name]).norm()) < 0.2 * float(change)


def test_muon_moves_matrices_by_a_set_size_and_the_rest_by_adam() -> None:
    start, gradient = drawn(0), drawn(1)
    adam = Adam(0.01)
    muon = Muon(0.1, adam, ["head"])
    moved, _ = muon.step(start, gradient, muon.begin(start), 0.5)
    rest, _ = adam.step(start, gradient, adam.begin(start), 0.5)
    for name in ("bias", "head"):
        assert torch.equal(moved[name], rest[name])
    for name, side, rank in (("conv", 18, 6), ("linear", 7, 4)):
        change = (moved[name] - start[name]).norm() / (0.1 * 0.5 * 0.2 * side**0.5)
        assert 0.7 * rank**0.5 < float(change) < 1.2 * rank**0.5
    bigger, _ = muon.step(start, {n: 100 * g for n, g in gradient.items()}, muon.begin(start), 0.5)
    torch.testing.assert_close(bigger["conv"], moved["conv"])


def test_muon_keeps_second_moments_of_what_adam_moves_alone() -> None:
    descent = Muon(0.1, Adam(0.01), ["head"]).begin(drawn(0))
    assert descent.first.keys() == SHAPES.keys()
    assert descent.second.keys() == {"bias", "head"}
