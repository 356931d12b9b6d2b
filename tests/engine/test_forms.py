"""Updates beside the form that they must have, with random tensors and random forms."""

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import (
    Exchange,
    Metrics,
    Nothing,
    RefusedUpdateError,
    ServerWork,
    Task,
)
from ccfcpp.engine.payload import check_format
from ccfcpp.engine.stages import ExchangeRequest, check_reply, count_sent_bytes
from ccfcpp.engine.transport import Reply
from ccfcpp.engine.update_format import Rows, Spec, UpdateFormat, format_of

NAMES = ["a", "b/c", "b/d", "e"]
DTYPES = [torch.float32, torch.float64, torch.int64, torch.bool]
LENGTHS = st.integers(0, 4)


def tensors(shapes: st.SearchStrategy[list[int]]) -> st.SearchStrategy[Tensor]:
    return st.builds(lambda shape, dtype: torch.zeros(shape, dtype=dtype), shapes, dtypes())


def dtypes() -> st.SearchStrategy[torch.dtype]:
    return st.sampled_from(DTYPES)


rows = st.builds(
    lambda least, more: Rows(least + more, least), st.integers(0, 2), st.integers(0, 3)
)
specs = st.builds(
    lambda dtype, shape, optional: Spec(dtype, tuple(shape), optional),
    dtypes(),
    st.lists(LENGTHS | rows, max_size=3),
    st.booleans(),
)
forms = st.dictionaries(st.sampled_from(NAMES), specs, max_size=4)
anything = st.dictionaries(
    st.sampled_from([*NAMES, "of nobody"]), tensors(st.lists(LENGTHS, max_size=3)), max_size=4
)


@st.composite
def like(draw: st.DrawFn, form: dict[str, Spec], length: int) -> dict[str, Tensor]:
    """Tensors of a form, all with as many rows where that is left to the client."""
    found = {}
    for name, spec in form.items():
        if spec.optional and draw(st.booleans()):
            continue
        shape = [length if isinstance(of, Rows) else of for of in spec.shape]
        found[name] = torch.zeros(shape, dtype=spec.dtype)
    return found


@st.composite
def pairs(draw: st.DrawFn) -> tuple[dict[str, Spec], dict[str, Tensor]]:
    """A form, and tensors that have it, or have all but a little of it, or have nothing of it."""
    form = draw(forms)
    has_it = draw(st.booleans())
    found = draw(like(form, draw(LENGTHS))) if has_it else draw(anything)
    is_changed = draw(st.booleans())
    if found and is_changed:
        name = draw(st.sampled_from(sorted(found)))
        found = {**found, name: draw(tensors(st.lists(LENGTHS, max_size=3)))}
    return form, found


def has_format(form: dict[str, Spec], found: dict[str, Tensor]) -> bool:
    """The obvious loop."""
    lengths = set()
    for name, spec in form.items():
        if name not in found:
            if not spec.optional:
                return False
            continue
        tensor = found[name]
        if tensor.dtype is not spec.dtype or len(tensor.shape) != len(spec.shape):
            return False
        for length, wanted in zip(tensor.shape, spec.shape, strict=True):
            if isinstance(wanted, Rows):
                if length not in range(wanted.least, wanted.most + 1):
                    return False
                lengths.add(length)
            elif length != wanted:
                return False
    return set(found) <= set(form) and len(lengths) <= 1


def refusal(form: dict[str, Spec], found: dict[str, Tensor]) -> str | None:
    """Why tensors are refused; None where they are not."""
    try:
        check_format(form, found)
    except RefusedUpdateError as error:
        return str(error)
    return None


@settings(max_examples=400, deadline=None)
@given(pairs())
def test_tensors_are_refused_where_they_have_not_the_form_and_nowhere_else(
    pair: tuple[dict[str, Spec], dict[str, Tensor]],
) -> None:
    form, found = pair
    reason = refusal(form, found)
    assert (reason is None) == has_format(form, found)
    if reason is not None:
        assert "\n" not in reason
        known = any(repr(name) in reason for name in form.keys() | found.keys())
        assert known or "different numbers of rows" in reason


@settings(max_examples=50, deadline=None)
@given(anything)
def test_tensors_have_their_own_form(found: dict[str, Tensor]) -> None:
    check_format(format_of(found), found)
    check_format({name: Spec(t.dtype, tuple(t.shape), True) for name, t in found.items()}, {})


def of_every_kind() -> list[Tensor]:
    """A row of two of each type that there is, and what is no plain array of numbers."""
    plain = torch.ones(2)
    kinds = {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
    found = [torch.zeros(2, d.itemsize, dtype=torch.uint8).view(d)[:, 0] for d in kinds - QUANTISED]
    quantised = [torch.quantize_per_tensor(plain, 1.0, 0, dtype) for dtype in QUANTISED]
    return [*found, *quantised, plain.to_sparse(), torch.ones(2, device="meta"), plain[:1]]


QUANTISED = {torch.qint8, torch.quint8, torch.qint32}


@pytest.mark.filterwarnings("ignore")
def test_only_what_is_declared_is_looked_at() -> None:
    """Some kinds of tensors have no arithmetic: nothing may be asked of them."""
    members = [Member(0, "a", 1)]
    for kind in (torch.float32, torch.int64):
        work = Taking({"value": Spec(kind, (2,))})
        request = ExchangeRequest(work, Task("test", "take", 0, 0), Nothing(), members)
        for tensor in of_every_kind():
            plain = tensor.layout == torch.strided and not tensor.is_meta and len(tensor) == 2
            if plain and tensor.dtype == kind:
                check_reply(request, Reply(0, One(tensor)))
            else:
                with pytest.raises(RefusedUpdateError, match="'value' is"):
                    check_reply(request, Reply(0, One(tensor)))


@pytest.mark.parametrize("value", [2**70, "x", [1.0], object(), {"a": 3}, {"a": None}, b"x"])
def test_what_is_no_tensor_is_refused(value: object) -> None:
    request = ExchangeRequest(
        Taking({}), Task("test", "take", 0, 0), Nothing(), [Member(0, "a", 1)]
    )
    with pytest.raises(RefusedUpdateError):
        check_reply(request, Reply(0, One(value)))  # type: ignore[arg-type]
    assert count_sent_bytes(Reply(0, One(value))) == 0  # type: ignore[arg-type]


@dataclass(frozen=True)
class One:
    """An update of a single part."""

    value: Tensor


class Taking(ServerWork[None, Nothing, One]):
    """An exchange with any form."""

    exchange = Exchange("take", Nothing, One)

    def __init__(self, wanted: UpdateFormat) -> None:
        self.wanted = wanted

    def broadcast(self, state: None) -> Nothing:
        return Nothing()

    def update_format(self, message: Nothing) -> UpdateFormat:
        return self.wanted

    def aggregate(
        self, state: None, updates: Iterable[One], randomness: Randomness
    ) -> tuple[None, Metrics]:
        raise NotImplementedError
