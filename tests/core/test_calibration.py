"""How sure assignments are beside how many are right."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccfcpp.core.metrics import calibration

PAIRS = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)


@given(PAIRS, st.integers(1, 12))
def test_calibration_is_that_of_the_definition(pairs: list[tuple[float, bool]], n: int) -> None:
    sure = torch.tensor([p for p, _ in pairs], dtype=torch.float64)
    right = torch.tensor([r for _, r in pairs])
    rows, error = calibration(sure, right, n)
    ordered = [pairs[i] for i in sorted(range(len(pairs)), key=lambda i: pairs[i][0])]
    cut = np.array_split(np.arange(len(pairs)), n)
    parts = [[ordered[i] for i in part] for part in cut if len(part)]
    expected = [(np.mean([p for p, _ in q]), np.mean([r for _, r in q]), len(q)) for q in parts]
    np.testing.assert_allclose(rows.numpy(), expected, atol=1e-12)
    apart = sum(abs(p - r) * size for p, r, size in expected) / len(pairs)
    assert error == pytest.approx(apart)


def test_who_is_as_sure_as_right_has_no_error() -> None:
    sure, right = torch.tensor([0.5] * 4 + [1.0] * 4), torch.tensor([1, 0, 1, 0, 1, 1, 1, 1])
    assert calibration(sure, right == 1, 2)[1] == 0
