from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.engine.payload import (
    INLINE,
    PayloadError,
    count_bytes,
    find_non_finite,
    pack,
    parametrize,
    sum_updates,
    unpack,
)

First = TypeVar("First")
Second = TypeVar("Second")


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
    assert count_bytes(pack(payload)) == 3 * 2 * 4 + 8 + 1 + 4 + 8


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_found(bad: float) -> None:
    good = Outer({"w": torch.tensor([1e38, 3e38])}, rate=1.0)
    assert find_non_finite(pack(good)) is None
    assert find_non_finite(pack(Outer({"w": torch.tensor([1.0, bad])}, rate=1.0))) == "model/w"
    assert find_non_finite(pack(Outer({}, rate=bad))) == "rate"


def test_what_is_no_tensor_or_number_is_refused() -> None:
    @dataclass
    class Wrong:
        text: str

    with pytest.raises(TypeError, match="'text' holds a str"):
        pack(Wrong("x"))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"rate": None}, "Outer needs 'rate'"),
        ({"more": torch.zeros(1)}, "Outer has no 'more'"),
        ({"inner/more": torch.zeros(1)}, "Inner has no 'more'"),
        ({"rate": torch.zeros(3, dtype=torch.float64)}, r"'rate' is torch.float64 \(3,\)"),
        ({"inner/count": torch.tensor(2.5)}, "'count' is torch.float32"),
        ({"done": torch.tensor(1)}, "'done' is torch.int64"),
    ],
)
def test_what_is_not_of_a_dataclass_is_named(
    changed: dict[str, Tensor | None], reason: str
) -> None:
    content = pack(Outer({"w": torch.zeros(1)}, 0.5, inner=Inner(torch.zeros(2)))) | changed
    with pytest.raises(PayloadError, match=reason):
        unpack(Outer, {name: tensor for name, tensor in content.items() if tensor is not None})


@dataclass(frozen=True)
class Pair(Generic[First, Second]):
    first: First = field(metadata=INLINE)
    second: Second | None = None


@pytest.mark.parametrize("second", [None, Pair(Inner(torch.ones(2), 3))])
def test_generic_dataclasses_are_unpacked_by_their_arguments(second: Pair[Inner, None]) -> None:
    kind = parametrize(Pair, Outer, parametrize(Pair, Inner, Inner))
    packed = pack(Pair(Outer({"w": torch.zeros(1)}, 0.5), second))
    assert packed.keys() == {"model/w", "rate", "done"} | (
        {"second/values", "second/count"} if second else set()
    )
    again = unpack(kind, packed)
    assert type(again) is Pair
    assert torch.equal(again.first.model["w"], torch.zeros(1))
    assert (again.second is None) == (second is None)
    if again.second is not None:
        assert again.second.first.count == 3
    with pytest.raises(PayloadError, match="Outer has no 'more'"):
        unpack(kind, packed | {"more": torch.zeros(1)})


def test_sums_are_taken_part_by_part_and_change_none() -> None:
    parts = [Inner(torch.full((2,), float(number)), number) for number in (1, 2, 4)]
    total = sum_updates(parts)
    assert total.values.tolist() == [7, 7]
    assert total.count == 7
    assert parts[0].values.tolist() == [1, 1]
