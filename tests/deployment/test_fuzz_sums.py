"""Whatever arrives at a stage of a secure sum, the run goes on, and who has sent it is named."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("cryptography")

from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from ccfcpp.deployment.link.messages import Response, new_token
from ccfcpp.deployment.link.packet import Packet
from ccfcpp.engine.exchange import RefusedUpdateError
from ccfcpp.engine.federation import Federation, RoundReport
from ccfcpp.engine.payload import pack
from ccfcpp.privacy.sums.masks import TAG_BYTES
from ccfcpp.privacy.sums.messages import Begun, ClientRows, Letters
from tests.deployment.test_masked_sums import STAGES, at_stage, over_network
from tests.support.clustering import clients_of_sizes
from tests.support.deployment import Grid
from tests.support.fuzz import bytes_like, changes, examples

VICTIM, NUMBER = "client 1", 1
SIZES = 12, 10, 9, 8
MOST_MEMORY = 64 * 2**20


class Sum:
    """One sum of four clients, as often as it is asked for; each time it is a run of its own."""

    def __init__(self, folder: Path) -> None:
        self.federation: Federation[Any, Any]
        self.grid: Grid
        clients = clients_of_sizes(*SIZES)
        self.federation, self.grid = over_network("feddp-kmeans", {}, clients, folder)
        algorithm = self.federation.algorithm
        self.state = algorithm.initial_state(self.federation.randomness)
        self.works = algorithm.exchanges(0, self.state)[:1]
        self.down: Callable[[Packet], Packet] = lambda packet: packet
        self.answers: list[Packet] = []
        push = self.grid.push

        def pushed(node: int, packet: Packet, seconds: float) -> str | None:
            return push(node, self.down(packet) if node == NUMBER else packet, seconds)

        self.grid.push = pushed  # type: ignore[method-assign]
        everybody = frozenset(range(len(SIZES)))
        # Whose part is missing; nothing is known of fewer than three parts.
        self.states = {frozenset[int](): self.run()[0], everybody: pack(self.state)}
        for number, name in enumerate(self.grid.workers):
            self.grid.away.add(name)
            self.states[frozenset({number})] = self.run()[0]
            self.grid.away.clear()

    def run(
        self,
        up: Callable[[Packet], Any] = lambda packet: packet,
        down: Callable[[Packet], Packet] = lambda packet: packet,
    ) -> tuple[dict[str, Tensor], RoundReport]:
        """The state after the sum, where something is done to what one client sends or gets."""
        self.answers.clear()

        def noted(packet: Packet) -> Any:
            self.answers.append(packet)
            return up(packet)

        self.down, self.grid.tampering[VICTIM] = down, noted
        self.federation.transport.run = new_token()
        state, report = self.federation.run_works(self.works, self.state, 0)
        self.grid.requests.clear()
        return pack(state), report


def equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(tensor, expected[name]) for name, tensor in found.items()
    )


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Sum:
    """A sum that all tests share."""
    return Sum(tmp_path_factory.mktemp("sum"))


def assert_survives(one: Sum, found: dict[str, Tensor], report: RoundReport) -> None:
    """The sum is that of all who have no reason against it; and each reason names the client."""
    assert not report.absent
    for number, said in report.refused.items():
        assert all(why.isprintable() and len(why) < 400 for why in said)
        assert number == NUMBER or f"client {NUMBER}" in said[0], said
    assert equal(found, one.states[frozenset(report.refused)])


def spoilt(data: st.DataObject) -> Callable[[Packet], Packet]:
    """Something that is done to the tensors of a packet, or to its bytes."""
    if data.draw(st.integers(0, 3)) == 0:
        drawn: dict[bytes, bytes] = {}

        def other(packet: Packet) -> Packet:
            if packet.payload not in drawn:
                drawn[packet.payload] = data.draw(bytes_like(packet.payload))
            return packet._replace(payload=drawn[packet.payload])

        return other
    change = data.draw(changes())

    def changed(packet: Packet) -> Packet:
        content = change(load(packet.payload)) if packet.payload else {}
        apart = {name: tensor.clone().contiguous() for name, tensor in content.items()}
        return packet._replace(payload=save(apart))

    return changed


def with_its_numbers(honest: Packet, packet: Packet) -> Packet:
    """A packet with a client's honest numbers, where it has others that could be some."""
    try:
        content, numbers = load(packet.payload), load(honest.payload)["words"]
    except Exception:  # whatever safetensors does with what is no file
        return packet
    found = content.get("words", torch.zeros(0))
    if (found.dtype, found.shape) == (numbers.dtype, numbers.shape):
        content["words"] = numbers
    return packet._replace(payload=save(content))


@pytest.mark.parametrize("stage", STAGES)
def test_what_a_client_sends(stage: str, one: Sum) -> None:
    """Nobody can tell wrong numbers under masks from right ones: these stay as they are."""

    @examples(10)
    @given(st.data())
    def survives(data: st.DataObject) -> None:
        change = spoilt(data)
        up = (lambda p: with_its_numbers(p, change(p))) if stage == "under masks" else change
        assert_survives(one, *one.run(up=at_stage(one.grid, stage, up)))

    survives()


@pytest.mark.parametrize("stage", STAGES)
def test_what_a_server_sends(stage: str, one: Sum) -> None:
    """The client refuses it, or takes it for what it could be: its work does not fail."""

    @examples(10)
    @given(st.data())
    def survives(data: st.DataObject) -> None:
        change = spoilt(data)

        def down(packet: Packet) -> Packet:
            if stage.encode() not in packet.header:
                return packet
            if stage != "under masks":
                return change(packet)
            # What it is to be summed of is the system's own.
            content = load(packet.payload)
            mail = {name: each for name, each in content.items() if name.startswith("mail/")}
            try:
                other = load(change(packet._replace(payload=save(mail))).payload)
            except Exception:  # whatever safetensors does with bytes that are no file of its own
                other = {}
            rest = {name: each for name, each in content.items() if name not in mail}
            return packet._replace(payload=save(rest | other))

        found, report = one.run(down=down)
        answers = [Response.read(answer.header) for answer in one.answers]
        assert not any(answer.status == "failed" for answer in answers)
        assert_survives(one, found, report)

    survives()


@pytest.mark.parametrize("rows", [10**6, 2 * 10**7])
def test_names_of_many_clients_fill_no_memory(rows: int) -> None:
    numbers = torch.arange(rows, dtype=torch.int32)
    table = ClientRows(
        numbers, torch.zeros(1, TAG_BYTES, dtype=torch.uint8).expand(rows, TAG_BYTES)
    )
    readings: list[Callable[[], object]] = [
        Begun(numbers).read,
        lambda: table.read(TAG_BYTES),
        lambda: Letters(torch.zeros_like(numbers), table).read(0, TAG_BYTES),
    ]
    for read in readings:
        tracemalloc.start()
        try:
            with pytest.raises(RefusedUpdateError, match=f"it names {rows} clients"):
                read()
            assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
        finally:
            tracemalloc.stop()


def more_tags(content: dict[str, Tensor]) -> dict[str, Tensor]:
    strangers = torch.arange(4, 500, dtype=torch.int32)
    return {
        "tags/clients": torch.cat([content["tags/clients"], strangers]),
        "tags/rows": torch.cat([content["tags/rows"], torch.zeros(496, TAG_BYTES).byte()]),
    }


ALONE: dict[str, tuple[str, Callable[[dict[str, Tensor]], dict[str, Tensor]], str]] = {
    "no key": ("keys", lambda c: {"public": c["public"] * (torch.arange(64) < 32)}, "is none"),
    "one key for both": ("keys", lambda c: {"public": c["public"][:32].repeat(2)}, "not its own"),
    "tags for strangers": ("under masks", more_tags, "its tags are not for its neighbours"),
}


def with_others(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Any:
    def changed(packet: Packet) -> Packet:
        content = load(packet.payload)
        return packet._replace(payload=save(content | change(content)))

    return changed


@pytest.mark.parametrize("what", ALONE)
def test_who_would_spoil_a_sum_is_left_out_alone(what: str, one: Sum) -> None:
    stage, change, reason = ALONE[what]
    found, report = one.run(up=at_stage(one.grid, stage, with_others(change)))
    assert [*report.refused] == [NUMBER]
    assert reason in report.refused[NUMBER][0]
    assert equal(found, one.states[frozenset({NUMBER})])


def test_a_wrong_share_gives_no_sum_rather_than_a_wrong_one(one: Sum) -> None:
    def wrong(content: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"seeds/rows": (content["seeds/rows"] + 1) % 65_537}

    found, report = one.run(up=at_stage(one.grid, "unmasking", with_others(wrong)))
    assert len(report.refused) == len(SIZES)
    assert all("do not fit each other; one of client" in why[0] for why in report.refused.values())
    assert equal(found, one.states[frozenset(report.refused)])


def test_who_spoils_the_letters_for_many_is_named(one: Sum) -> None:
    """Two of four clients cannot open them, and the two that are left are too few for a sum."""

    def wrong(content: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"rows": content["rows"] ^ torch.tensor([[1], [1], [0]], dtype=torch.uint8)}

    found, report = one.run(up=at_stage(one.grid, "shares", with_others(wrong)))
    assert len(report.refused) == len(SIZES)
    sealed = "what client 1 has sealed was changed on its way"
    assert all(sealed in why for (why,) in report.refused.values())
    assert "2 clients at the stage of masked vectors, and it needs 3" in report.refused[3][0]
    assert equal(found, one.states[frozenset(report.refused)])
