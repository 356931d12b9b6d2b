"""Whatever a client sends in whatever exchange: it alone is refused, and the run goes on."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.preprocessing.parameters import PreprocessingParams
from ccfcpp.clustering.preprocessing.vectors import VectorPhase
from ccfcpp.core.config import RunConfig, Tree, VectorsConfig
from ccfcpp.deployment.link.packet import Packet
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import RefusedUpdateError
from supervised.classifiers import CLASSIFIERS
from tests.clustering.test_exchanges import TWO_ROUNDS, VARIANTS
from tests.support.classification import labelled_clients, small_config
from tests.support.clustering import tiny
from tests.support.fuzz import (
    Change,
    Spoil,
    Target,
    Where,
    assert_survives,
    bytes_like,
    changes,
    examples,
    filled,
)

VICTIM = "client 1"
FEW, MANY = (30, 21, 12), (28, 25, 20, 20, 15, 12)
KRUM: Tree = {"defence": {"rule": "multi-krum", "hostile": 0.1}}
STAGES: dict[str, tuple[str, Tree]] = {
    "k-fed, multi-krum": ("k-fed", KRUM),
    "ccfc++, multi-krum": ("ccfc++", KRUM),
    "ffcm-km, median": ("ffcm-km", {"defence": {"rule": "median"}}),
    "fed-scan, bound": ("fed-scan", {"defence": {"rule": "bound"}}),
    "fed-scan, private": (
        "fed-scan",
        {"privacy": {"level": "client", "noise": 30.0, "reproducible_noise": True}},
    ),
}
"""Systems with something between transport and aggregation."""
SLOW = {"ccfc++ 3", "ccfc++ 4", "ccfc++ 5", "ccfc++ 6", "ccfc++, multi-krum", "fed-scan 0"}
SLOW |= {"fed-scan, bound", "fed-scan, private"}
"""They take half of the time: the suite draws fewer examples of them."""
BY_CELLS = {"fed-km 0", "fed-fcm 0", "fed-em 0"}
"""How many numbers a client of theirs sends depends on what has come from all clients before."""


def _targets() -> dict[str, Callable[[Path], Target]]:
    found: dict[str, Callable[[Path], Target]] = {}

    def add(name: str, config: Callable[[], RunConfig], sizes: tuple[int, ...]) -> None:
        lives = name in BY_CELLS
        found[name] = lambda folder: Target(config(), labelled_clients(*sizes), folder, lives)

    few = {"steps": 2, "steps_per_round": 1, "mine_every": 2, "overclustering": 2}
    shared: Tree = {"device": "cpu", "clusters": 3, "scan": few}
    for method in METHODS.own():
        for number, tree in enumerate([{}, *VARIANTS.get(method, [])]):
            add(
                f"{method} {number}",
                lambda m=method, t=tree: tiny(m, TWO_ROUNDS, t, shared),  # type: ignore[misc]
                FEW,
            )
    for name, (method, tree) in STAGES.items():
        add(
            name,
            lambda m=method, t=tree: tiny(m, TWO_ROUNDS, t, shared),  # type: ignore[misc]
            MANY,
        )
    for method in CLASSIFIERS.own():
        settings = f"method={method}", "device=cpu", "compute.cohort=1", "training.rounds=2"
        add(method, lambda s=settings: small_config(*s), FEW)  # type: ignore[misc]
    return found


TARGETS = _targets()


@pytest.fixture(scope="module")
def target_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Target]:
    """Each run is recorded once."""

    @cache
    def made(name: str) -> Target:
        return TARGETS[name](tmp_path_factory.mktemp("target"))

    return made


def with_tensors(change: Change) -> Spoil:
    def spoilt(packet: Packet) -> Packet:
        content = change(load(packet.payload))
        # Views of one memory are refused by safetensors.
        apart = {name: tensor.clone().contiguous() for name, tensor in content.items()}
        return packet._replace(payload=save(apart))

    return spoilt


@pytest.mark.parametrize("name", TARGETS)
def test_any_tensors(name: str, target_of: Callable[[str], Target]) -> None:
    target = target_of(name)

    @examples(2 if name in SLOW else 4)
    @given(st.sampled_from(target.places(VICTIM)), changes())
    def survives(where: Where, change: Change) -> None:
        assert_survives(target, where, with_tensors(change))

    survives()


@pytest.mark.parametrize("name", ["fed-em 0", "feddp-kmeans 0"])
def test_the_largest_numbers_that_are_finite(name: str, target_of: Callable[[str], Target]) -> None:
    """Each tensor of doubles by itself: two such numbers have no finite sum."""
    target = target_of(name)
    for where in target.places(VICTIM):
        content = load(target.tape.answers[where].payload)
        for own in (key for key, tensor in content.items() if tensor.dtype == torch.float64):

            def huge(content: dict[str, Tensor], own: str = own) -> dict[str, Tensor]:
                return {**content, own: filled(content[own], 1.7e308, everywhere=True)}

            assert_survives(target, where, with_tensors(huge))


def test_sums_of_a_table_that_no_rows_have() -> None:
    config = VectorsConfig(categories=("a",), components=2, missing="mean")
    known, member = PreprocessingParams(mean=torch.zeros(61)), Member(0, "a", 10)
    for work in VectorPhase(config, 3).last_exchanges():
        form: Any = work.update_format(known)
        sums = {name: torch.zeros(spec.shape).double() for name, spec in form.items()}
        update = work.exchange.update(**sums)
        work.check(known, update, [member])
        for name in sums.keys() - {"counts"}:
            with pytest.raises(RefusedUpdateError):
                work.check(known, replace(update, **{name: sums[name] + 1.7e308}), [member])


@pytest.mark.parametrize("name", ["k-fed 0", "fed-scan 0", "scaffold"])
def test_any_bytes(name: str, target_of: Callable[[str], Target]) -> None:
    target = target_of(name)
    places = target.places(VICTIM)

    @examples(5 if name in SLOW else 12)
    @given(st.data())
    def survives(data: st.DataObject) -> None:
        where = data.draw(st.sampled_from(places))
        honest = target.tape.answers[where]
        payload = data.draw(bytes_like(honest.payload))
        header = data.draw(st.none() | bytes_like(honest.header))

        def spoilt(packet: Packet) -> Packet:
            return Packet(packet.header if header is None else header, payload)

        assert_survives(target, where, spoilt)

    survives()
