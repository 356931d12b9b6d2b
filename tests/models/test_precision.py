"""What products round to, by the configuration and the device."""

from collections.abc import Mapping

import pytest
import torch

from ccfcpp.models.network import FlatNetwork
from ccfcpp.models.pooled import rounding_dtype

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, torch.bfloat16),
        ({"avx512_bf16": False, "amx_bf16": True}, torch.bfloat16),
        ({"avx512_bf16": False, "avx512_f": True}, None),
        ({}, None),
    ],
)
def test_auto_is_sixteen_bits_where_the_processor_multiplies_them(
    there: Mapping[str, bool], expected: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: there)
    assert rounding_dtype("auto", CPU) == expected
    assert rounding_dtype("bfloat16", CPU) == torch.bfloat16
    assert rounding_dtype("float32", CPU) is None
    assert rounding_dtype("tf32", CPU) is None


@pytest.mark.parametrize("able", [True, False])
def test_a_gpu_says_itself_what_it_multiplies(able: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: able)
    assert rounding_dtype("auto", torch.device("cuda")) == (torch.bfloat16 if able else None)


@pytest.mark.parametrize("has", [True, False])
def test_networks_take_auto_as_what_it_stands_for(
    has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has})
    shown = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    state = torch.nn.Sequential(torch.nn.Linear(8, 4)).state_dict()
    found = []
    for precision in ("auto", "bfloat16" if has else "float32"):
        network = FlatNetwork(
            lambda: torch.nn.Sequential(torch.nn.Linear(8, 4)), CPU, precision=precision
        )
        network.load(state)
        found.append(network(shown)[0])
    assert torch.equal(found[0], found[1])
