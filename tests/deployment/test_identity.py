"""How clients know each other in secure sums: a roster of their authority, and their own keys."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("cryptography")

from safetensors.torch import load, save

from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.deployment.client.rules import ForbiddenError
from ccfcpp.deployment.client.sums import KeyIdentity, Rosters
from ccfcpp.deployment.keys.certificates import (
    new_key,
    read_authority,
    read_certificate,
    read_key,
)
from ccfcpp.deployment.keys.creation import (
    make_authority,
    make_client,
    make_roster,
    roster_for_sums,
)
from ccfcpp.deployment.keys.roster import SignedRoster, read_roster
from ccfcpp.deployment.link.packet import Packet
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.engine.exchange import RefusedUpdateError
from ccfcpp.privacy.sums.fixed_point import FixedPoint, Words
from ccfcpp.privacy.sums.identity import SIGNATURE_BYTES, Floor
from ccfcpp.privacy.sums.messages import Begun, numbers_of
from ccfcpp.privacy.sums.protocol import PUBLIC_BYTES
from tests.deployment.test_masked_sums import SIZES, at_stage, over_network
from tests.support.clustering import clients_of_sizes
from tests.support.deployment import trusting

NAMES = "clinic-1", "clinic-2", "clinic-3"
RUN = "a" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Keys of an authority and of three clients."""
    made = tmp_path / "keys"
    make_authority(made, 1)
    for name in NAMES:
        make_client(made, name)
    return made


def rosters_of(folder: Path, name: str = "clinic-1", said: list[str] | None = None) -> Rosters:
    key = folder / "clients" / f"{name}.key"
    say = (lambda line: None) if said is None else said.append
    return Rosters(read_key(key), folder / "ca.crt", folder / f"{name}.state" / "rosters", say)


def told(roster: str, **config: Any) -> RunSpec:
    return RunSpec(command="cluster", config=config, roster=roster)


# --- the signed roster ----------------------------------------------------------------------------


def test_the_authority_signs_who_the_clients_are(folder: Path) -> None:
    signed, path = make_roster(folder, folder / "roster")
    assert path == folder / "roster.signed"
    found = SignedRoster.read(path.read_bytes(), read_certificate(folder / "ca.crt"))
    assert list(found.keys) == list(read_roster(folder / "roster")) == list(NAMES)
    assert found.keys == read_roster(folder / "roster")
    again, _ = make_roster(folder, folder / "roster")
    assert again.content != signed.content
    assert again.digest == signed.digest


def swapped(content: bytes) -> bytes:
    head, one, other, *rest = content.splitlines(keepends=True)
    return b"".join([head, other, one, *rest])


@pytest.mark.parametrize(
    "spoil",
    [
        swapped,
        lambda content: content.replace(b"clinic-2", b"clinic-4"),
        lambda content: content[: content.rindex(b"clinic-3")],
        lambda content: content.partition(b"\n")[2],
        lambda content: b"ccfcpp roster !\n" + content.partition(b"\n")[2],
        lambda content: b"\xff\xfe",
        lambda content: b"",
    ],
)
def test_a_roster_that_was_changed_is_none(spoil: Callable[[bytes], bytes], folder: Path) -> None:
    signed, _ = make_roster(folder, folder / "roster")
    with pytest.raises(UsageError, match="not signed by the authority"):
        SignedRoster.read(spoil(signed.content), read_certificate(folder / "ca.crt"))


def test_a_server_without_the_authoritys_key_needs_the_file(folder: Path) -> None:
    roster = folder / "roster"
    found, is_here = roster_for_sums(folder, roster)
    assert is_here
    assert (folder / "roster.signed").read_bytes() == found.content
    assert roster_for_sums(folder, roster)[0].content == found.content
    key = (folder / "ca.key").read_bytes()
    (folder / "ca.key").unlink()
    again, is_here = roster_for_sums(folder, roster)
    assert (again.content, is_here) == (found.content, False)
    make_client(folder, "clinic-4")
    with pytest.raises(UsageError, match="run ccfcpp keys roster there"):
        roster_for_sums(folder, roster)
    (folder / "ca.key").write_bytes(key)
    assert len(roster_for_sums(folder, roster)[0].keys) == 4


# --- a client's signature -------------------------------------------------------------------------


def test_a_client_signs_for_a_run_with_a_roster() -> None:
    private = [new_key() for _ in NAMES]
    keys = [key.public_key() for key in private]
    one = KeyIdentity(private[1], keys, b"context")
    for number in range(20):  # numbers of a signature may begin with zeros
        content = bytes([number])
        signature = one.signed(content)
        assert len(signature) == SIGNATURE_BYTES
        one.check(1, signature, content)
    elsewhere = KeyIdentity(private[1], keys, b"another")
    for client, shown, told in (
        (0, signature, content),
        (3, signature, content),
        (-2, signature, content),
        (1, signature, b"else"),
        (1, elsewhere.signed(content), content),
        (1, bytes(SIGNATURE_BYTES), content),
        (1, b"\xff" * SIGNATURE_BYTES, content),
    ):
        with pytest.raises(RefusedUpdateError, match=f"of client {client} are not signed"):
            one.check(client, shown, told)


# --- what a client accepts ------------------------------------------------------------------------


def test_a_client_keeps_a_roster_and_tells_its_owner_once(folder: Path) -> None:
    said: list[str] = []
    signed, _ = make_roster(folder, folder / "roster")
    for _ in range(2):
        rosters_of(folder, said=said).store(signed.content)
    (line,) = said
    assert line == (
        "secure sums with 3 clients, signed by the authority: clinic-1, clinic-2, clinic-3 (roster "
        f"{signed.digest[:16]})"
    )
    guard = rosters_of(folder).safeguard(RUN, told(signed.digest), 0, Floor())
    assert guard.before == {}


def test_a_client_refuses_other_rosters(folder: Path, tmp_path: Path) -> None:
    rosters = rosters_of(folder)
    with pytest.raises(ForbiddenError, match="ccfcpp keys roster"):
        rosters.store(b"")
    for digest in ("", "0" * 64):
        with pytest.raises(ForbiddenError, match="ccfcpp keys roster"):
            rosters.safeguard(RUN, told(digest), 0, Floor())
    make_authority(tmp_path / "other", 1)
    false = SignedRoster.sign(read_roster(folder / "roster"), read_authority(tmp_path / "other")[1])
    with pytest.raises(ForbiddenError, match="not signed by the authority"):
        rosters.store(false.content)
    keys = read_roster(folder / "roster")
    without = {name: key for name, key in keys.items() if name != "clinic-1"}
    other = SignedRoster.sign(without, read_authority(folder)[1])
    with pytest.raises(ForbiddenError, match="this client is not on the signed roster"):
        rosters.store(other.content)


def test_a_number_belongs_to_a_key(folder: Path) -> None:
    signed, _ = make_roster(folder, folder / "roster")
    rosters = rosters_of(folder, "clinic-2")
    rosters.store(signed.content)
    rosters.safeguard(RUN, told(signed.digest), 1, Floor())
    with pytest.raises(ForbiddenError, match="numbers are not those of the signed roster"):
        rosters.safeguard(RUN, told(signed.digest), 0, Floor())


# --- a server that lies to its clients ------------------------------------------------------------


def test_without_a_signed_roster_a_client_refuses(tmp_path: Path) -> None:
    deployed, grid = over_network("fed-scan", {}, clients_of_sizes(*SIZES), tmp_path)
    deployed.transport.spec = deployed.transport.spec.model_copy(update={"roster": ""})
    grid.workers["client 1"].rosters = None
    _, report = deployed.run_round(deployed.algorithm.initial_state(Randomness(0)), 0)
    assert report.refused.keys() == {0, 1, 2, 3}
    assert all("let the server's operator get one" in why[0] for why in report.refused.values())


def with_other_keys(packet: Packet) -> Packet:
    """The server's own keys in place of a client's, whose signature it has."""
    found = load(packet.payload)
    found["public"] = torch.randint(256, (PUBLIC_BYTES,), dtype=torch.uint8)
    return packet._replace(payload=save(found))


def test_keys_that_a_client_has_not_signed_are_refused_by_all(tmp_path: Path) -> None:
    deployed, grid = over_network("fed-scan", {}, clients_of_sizes(*SIZES), tmp_path)
    grid.tampering["client 2"] = at_stage(grid, "keys", with_other_keys)
    state = deployed.algorithm.initial_state(Randomness(0))
    _, report = deployed.run_round(state, 0)
    for number in (0, 1, 3):
        assert "the keys of client 2 are not signed by that client" in report.refused[number][0]


def test_a_second_sum_for_a_task_is_over_the_same_clients(tmp_path: Path) -> None:
    """Also where the server says that the run is another one in between."""
    deployed, grid = over_network("fed-scan", {}, clients_of_sizes(*SIZES), tmp_path)
    deployed.run_round(deployed.algorithm.initial_state(Randomness(0)), 0)
    name, order = next((n, p) for n, p in grid.requests if b"secure sum, keys" in p.header)

    def asked(begun: Begun, **changed: Any) -> dict[str, Any]:
        head = json.loads(order.header) | {"nonce": f"{len(grid.requests):032x}"} | changed
        grid.requests.append((name, order))
        packet = Packet(json.dumps(head).encode(), save(vars(begun)))
        answer: dict[str, Any] = json.loads(grid.workers[name].answer(packet).header)
        return answer

    fewer = Begun(numbers_of([0, 1, 2]))
    assert "a second sum for the same task" in asked(fewer)["reason"]
    assert "status" not in asked(fewer, run="b" * 32)
    assert "a second sum for the same task" in asked(fewer)["reason"]
    assert "status" not in asked(Begun(numbers_of([0, 1, 2, 3])))


def test_a_round_that_is_run_again_has_the_same_bits(tmp_path: Path) -> None:
    """A server that was interrupted repeats rounds; its clients have stayed."""
    deployed, _ = over_network("fed-scan", {}, clients_of_sizes(*SIZES), tmp_path)
    state = deployed.algorithm.initial_state(Randomness(0))
    first, again = deployed.run_round(state, 0), deployed.run_round(state, 0)
    assert not again[1].refused
    assert first[1].figures == again[1].figures


def test_an_owners_floor_is_checked_before_a_sum(tmp_path: Path) -> None:
    deployed, grid = over_network("fed-scan", {}, clients_of_sizes(*SIZES), tmp_path)
    grid.workers["client 1"].rules = trusting(smallest_count=0, honest=4)
    grid.workers["client 2"].rules = trusting(smallest_count=0, colluders=1)
    _, report = deployed.run_round(deployed.algorithm.initial_state(Randomness(0)), 0)
    assert "its owner wants 4 honest clients in each sum" in report.refused[1][0]
    assert 2 not in report.refused or "wants" not in report.refused[2][0]


def test_signatures_are_of_the_task(tmp_path: Path) -> None:
    """A signature of an older task does not serve for a later one."""
    deployed, grid = over_network("fed-scan", {}, clients_of_sizes(*SIZES), tmp_path)
    kept: list[Packet] = []

    def replayed(packet: Packet) -> Packet:
        kept.append(packet)
        return packet._replace(payload=kept[0].payload)

    grid.tampering["client 2"] = at_stage(grid, "keys", replayed)
    _, report = deployed.run_round(deployed.algorithm.initial_state(Randomness(0)), 0)
    assert len(kept) > 1
    assert "the keys of client 2 are not signed" in report.refused[0][0]


def test_clients_that_are_told_different_things_do_not_know_each_others_keys(folder: Path) -> None:
    """Else settings with which all other vectors vanish would leave one client alone."""
    signed, _ = make_roster(folder, folder / "roster")
    found = []
    for number, name in enumerate(NAMES):
        rosters = rosters_of(folder, name)
        rosters.store(signed.content)
        settings = {"privacy": {"smallest_count": 5 if number == 0 else 10**6}}
        found.append(
            rosters.safeguard(RUN, told(signed.digest, **settings), number, Floor()).identity
        )
    found[1].check(2, found[2].signed(b"keys"), b"keys")
    with pytest.raises(RefusedUpdateError, match="of client 0 are not signed"):
        found[1].check(0, found[0].signed(b"keys"), b"keys")


def test_clients_that_answer_different_messages_have_no_sum(tmp_path: Path) -> None:
    """A model with which other clients' gradients vanish would leave one client alone."""
    deployed, grid = over_network("fed-scan", {}, clients_of_sizes(*SIZES), tmp_path)
    state = deployed.algorithm.initial_state(Randomness(0))
    push, changed = grid.push, []

    def other(node: int, packet: Packet, seconds: float) -> str | None:
        if node == 1 and b"under masks" in packet.header:
            found = load(packet.payload)
            names = [n for n in found if n.startswith("message/") and found[n].is_floating_point()]
            changed.extend(names)
            packet = packet._replace(
                payload=save({n: t * 0 if n in names else t for n, t in found.items()})
            )
        return push(node, packet, seconds)

    totals: list[float] = []
    decode = FixedPoint.decode

    def decoded(form: FixedPoint, total: Words) -> torch.Tensor:
        found = decode(form, total)
        totals.append(float(found.abs().median()))
        return found

    grid.push = other  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FixedPoint, "decode", decoded)
        deployed.run_round(state, 0)
    assert changed
    # What masks are left is uniform up to 2^31.
    assert max(totals) > 1e8
