"""Updates of any declaration as parts that add up, and the update that stands for all of them."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.engine.exchange import Exchange, RefusedUpdateError
from ccfcpp.engine.payload import pack, sum_updates
from ccfcpp.engine.update_format import (
    Addends,
    Count,
    Mean,
    Part,
    Spec,
    Sum,
    UpdateFormat,
    format_of,
)
from ccfcpp.privacy.sums.aggregation import Addition

FLOATS = [torch.float64, torch.float32, torch.bfloat16]
KINDS: dict[str, tuple[Any, Part]] = {
    "model": (dict[str, Tensor], Mean("samples")),
    "loss": (float | None, Mean("samples", report=True, optional=True)),
    "sums": (dict[str, Tensor], Sum(each=True)),
    "table": (Tensor, Sum()),
    "centres": (Tensor, Sum(count="held")),
    "held": (Tensor, Count()),
    "samples": (int, Count()),
    "steps": (int, Count()),
}


@dataclass(frozen=True)
class Down:
    """What goes down."""

    model: dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """An exchange, what went down, and what some clients send.

    Attributes:
        exchange: Of an update of some of the fields of ``KINDS``.
        message: What went down.
        updates: One for each client.
        form: That of the updates.
    """

    exchange: Exchange[Any, Any]
    message: Down
    updates: list[Any]
    form: UpdateFormat


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any declaration with a part at least; means have a weight, and counters beside floats."""
    fields = draw(
        st.sets(st.sampled_from(["model", "loss", "sums", "table", "centres", "steps"]), min_size=1)
    )
    if fields & {"model", "loss"}:
        fields.add("samples")
    if "centres" in fields:
        fields.add("held")
    names = [name for name in KINDS if name in fields]
    update = dataclasses.make_dataclass("Drawn", [(n, KINDS[n][0]) for n in names], frozen=True)
    exchange: Exchange[Any, Any] = Exchange(
        "drawn", Down, update, {name: KINDS[name][1] for name in names}
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    shapes = draw(
        st.lists(st.sampled_from([(), (1,), (3,), (2, 4), (0, 2)]), min_size=1, max_size=3)
    )
    dtypes = [draw(st.sampled_from(FLOATS)) for _ in shapes]

    def tensors() -> dict[str, Tensor]:
        drawn = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
        return {
            f"{i}.w": t.to(dtype) for i, (t, dtype) in enumerate(zip(drawn, dtypes, strict=True))
        }

    counter = {"norm.num_batches_tracked": torch.tensor(7)}
    values: dict[str, Callable[[], Any]] = {
        "model": lambda: tensors() | {k: v + 5 for k, v in counter.items()},
        "loss": lambda: draw(st.none() | st.floats(-10, 10)),
        "sums": tensors,
        "table": lambda: torch.randint(0, 99, (2, 2), generator=generator),
        "centres": lambda: torch.randn(3, 2, generator=generator, dtype=torch.float64),
        "held": lambda: torch.randint(0, 9, (3,), generator=generator).double(),
        "samples": lambda: draw(st.integers(1, 1000)),
        "steps": lambda: draw(st.integers(0, 1000)),
    }
    clients = draw(st.integers(1, 4))
    updates = [update(**{name: values[name]() for name in names}) for _ in range(clients)]
    form = format_of({n: t for n, t in pack(updates[0]).items() if n != "loss"})
    if "loss" in names:
        form["loss"] = Spec(torch.float64, optional=True)
    return Case(exchange, Down(tensors() | counter), updates, form)


@dataclass(frozen=True)
class Summed:
    """Addends in a dataclass, which can be added up."""

    parts: dict[str, Tensor]


def total(addition: Addition, updates: list[Any]) -> Addends:
    return sum_updates(Summed(addition.parts(update)) for update in updates).parts


def close(found: Tensor, expected: Tensor, like: Tensor) -> None:
    """Up to the rounding of a dtype."""
    assert found.dtype == like.dtype
    assert found.shape == like.shape
    tolerance = 4 * torch.finfo(like.dtype).eps
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=max(1e-12, tolerance))


def mean(values: list[Tensor], weights: list[float]) -> Tensor:
    """Weighted mean in float64."""
    return sum(
        (w * v.double() for v, w in zip(values, weights, strict=True)), torch.zeros(())
    ) / sum(weights)


@settings(max_examples=100, deadline=None)
@given(cases())
def test_what_stands_for_all_is_the_sum_and_the_mean_of_what_each_has_sent(case: Case) -> None:
    """Of one client it is what it has sent, but for counters, which stay as they went down."""
    addition = Addition(case.exchange, case.message)
    for update in case.updates:
        parts, like = addition.parts(update), addition.zeros(case.form)
        assert parts.keys() == like.keys()
        assert all(parts[name].shape == like[name].shape for name in like)
        assert all(part.dtype == torch.float64 for part in parts.values())
    whole = addition.whole(case.form, total(addition, case.updates), contributors=1.0)
    assert type(whole) is case.exchange.update
    found, sent = pack(whole), [pack(update) for update in case.updates]
    assert found.keys() - {"loss"} == sent[0].keys() - {"loss"}
    for name, tensor in found.items():
        there = [own for own in sent if name in own]
        values = [own[name] for own in there]
        weights = [float(own["samples"]) for own in there if "samples" in own]
        if name.endswith("num_batches_tracked"):
            assert int(tensor) == 7
        elif name == "loss" or name.startswith("model/"):
            close(tensor, mean(values, weights), values[0])
        elif tensor.is_floating_point():
            close(tensor, torch.stack(values).double().sum(dim=0), values[0])
        else:
            assert tensor.tolist() == torch.stack(values).sum(dim=0).tolist()
    assert ("loss" in found) == any("loss" in own for own in sent)


@settings(max_examples=100, deadline=None)
@given(cases(), st.floats(0.5, 20.0))
def test_where_all_count_alike_means_have_a_fixed_divisor(case: Case, contributors: float) -> None:
    """Numbers of images, and what serves the report alone, are then not sent beside a mean."""
    addition = Addition(case.exchange, case.message, alike=True)
    totals = total(addition, case.updates)
    assert totals.keys() == addition.zeros(case.form).keys()
    is_sum = not case.exchange.parts.keys() & {"model", "loss"}
    for name, part in case.exchange.parts.items():
        sent = is_sum or name == "held" if isinstance(part, Count) else name != "loss"
        assert any(key.split("/")[0] == name for key in totals) == sent
    assert not any("num_batches_tracked" in name or "present" in name for name in totals)
    whole = pack(addition.whole(case.form, totals, contributors))
    before = pack(case.message)
    for name, tensor in whole.items():
        values = [pack(update)[name] for update in case.updates]
        if name.startswith("model/") and tensor.is_floating_point():
            change = sum((v.double() - before[name].double() for v in values), torch.zeros(()))
            close(tensor, before[name].double() + change / contributors, values[0])
        elif (
            name.split("/")[0] in ("sums", "table", "centres", "held")
            and values[0].is_floating_point()
        ):
            assert tensor.dtype == torch.float64  # what has noise keeps all its digits
            torch.testing.assert_close(tensor, torch.stack(values).double().sum(dim=0))
    if not is_sum:
        assert whole["samples"] == max(1, round(contributors))
        assert "loss" not in whole


@dataclass(frozen=True)
class Point:
    """A mean that is one tensor, and its weight."""

    point: Tensor
    samples: int


@dataclass(frozen=True)
class Late:
    """A counter that did not go down, and a number that some do not have."""

    seen: Tensor
    slack: float | None
    samples: int


LATE = Exchange(
    "late", Down, Late,
    {"seen": Mean("samples"), "slack": Mean("samples", optional=True), "samples": Count()},
)  # fmt: skip


@pytest.mark.parametrize("alike", [False, True])
def test_a_counter_that_did_not_go_down_and_a_number_that_few_have(alike: bool) -> None:
    """With noise all are divided by the same number, and nobody is told how many have it."""
    addition = Addition(LATE, Down({}), alike)
    updates = [Late(torch.tensor(3), 2.0, 2), Late(torch.tensor(4), None, 6)]
    form = {**format_of(pack(updates[0])), "slack": Spec(torch.float64, optional=True)}
    totals = total(addition, updates)
    assert totals.keys() == addition.zeros(form).keys()
    assert len(totals) == (1 if alike else 3)
    whole = addition.whole(form, totals, contributors=4.0)
    assert isinstance(whole, Late)
    assert whole.slack == (0.5 if alike else 2.0)
    assert whole.samples == (4 if alike else 8)
    assert int(whole.seen) == 0


def test_weights_that_come_to_nothing_are_a_refusal() -> None:
    """Under masks nobody sees that a client claims fewer images than none."""
    exchange = Exchange("points", Down, Point, {"point": Mean("samples"), "samples": Count()})
    addition = Addition(exchange, Down({}))
    updates = [Point(torch.ones(2), 3), Point(torch.ones(2), -3)]
    with pytest.raises(RefusedUpdateError, match="the clients' weights in the mean of 'point'"):
        addition.whole(format_of(pack(updates[0])), total(addition, updates), 1.0)
