"""What is measured over several machines is what was sent."""

from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from ccfcpp.core.errors import FederationError
from ccfcpp.deployment.link.packet import Packet
from scripts import deployed
from scripts.deployed import _ask, peak_memory


@pytest.mark.parametrize("answer", [b"payload", b"another"])
def test_an_exchange_that_brings_something_else_back_is_none(answer: bytes) -> None:
    found = [None, Packet(b"{}", answer)] * 2
    link = SimpleNamespace(push=lambda *_: "ticket", pull=lambda _: found.pop(0))
    if answer == b"payload":
        _ask(link, [1, 2], b"payload")
        assert found == []
    else:
        with pytest.raises(FederationError, match="something else came back"):
            _ask(link, [1, 2], b"payload")


def test_memory_is_in_megabytes() -> None:
    assert 10 < peak_memory("self") < 100_000


def test_a_client_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployed, "LARGE", deployed.SMALL)
    seconds, peaks = deployed.deployed(clients=1, repeats=1)
    assert [len(each) for each in seconds.values()] == [1, 1]
    assert all(peak > 10 for peak in peaks.values())


def test_a_client_whose_process_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployed, "_CLIENT", "")
    with pytest.raises(FederationError, match="the process of a client has ended"):
        deployed.deployed(clients=1, repeats=1)
