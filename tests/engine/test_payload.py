from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.engine.payload import not_finite, pack, size, unpack


@dataclass
class Inner:
    values: Tensor
    count: int = 1


@dataclass
class Outer:
    model: dict[str, Tensor]
    rate: float
    done: bool = False
    inner: Inner | None = None
    extra: dict[str, Tensor] = field(default_factory=dict)


@given(
    st.dictionaries(st.text("abc.", min_size=1), st.integers(0, 5), max_size=4),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none() | st.integers(0, 2**62),
)
def test_unpack_undoes_pack(
    sizes: dict[str, int], rate: float, done: bool, count: int | None
) -> None:
    inner = None if count is None else Inner(torch.arange(3), count)
    payload = Outer({name: torch.rand(n, 2) for name, n in sizes.items()}, rate, done, inner)
    again = unpack(Outer, pack(payload))
    assert (again.rate, again.done) == (rate, done)
    assert again.model.keys() == payload.model.keys()
    assert all(torch.equal(again.model[name], payload.model[name]) for name in sizes)
    if inner is None:
        assert again.inner is None
    else:
        assert again.inner is not None
        assert again.inner.count == count
        assert torch.equal(again.inner.values, inner.values)


def test_sizes_are_counted_in_bytes() -> None:
    payload = Outer(
        {"w": torch.zeros(3, 2)}, rate=0.5, inner=Inner(torch.zeros(4, dtype=torch.int8))
    )
    assert size(pack(payload)) == 3 * 2 * 4 + 8 + 1 + 4 + 8


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_found(bad: float) -> None:
    good = Outer({"w": torch.tensor([1e38, 3e38])}, rate=1.0)
    assert not_finite(pack(good)) is None
    assert not_finite(pack(Outer({"w": torch.tensor([1.0, bad])}, rate=1.0))) == "model/w"
    assert not_finite(pack(Outer({}, rate=bad))) == "rate"


def test_what_is_no_tensor_or_number_is_refused() -> None:
    @dataclass
    class Wrong:
        text: str

    with pytest.raises(TypeError, match="'text' holds a str"):
        pack(Wrong("x"))


def test_a_missing_field_is_named() -> None:
    with pytest.raises(KeyError, match="rate"):
        unpack(Outer, {"model/w": torch.zeros(1)})
