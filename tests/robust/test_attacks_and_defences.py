"""Hostile clients, and defences against them, in whole small runs and step by step."""

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.kmeans.centroids import CentroidUpdate, ClusterSums
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.run import ClusteringRun, clustering_run
from ccfcpp.clustering.systems.ccfc.messages import (
    ClusterSizes,
    TrainingUpdate,
    local_training_exchange,
    refinement_exchange,
)
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import validate
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import Exchange, Metrics, ServerWork, Task
from ccfcpp.engine.payload import pack
from ccfcpp.engine.stages import ExchangeRequest
from ccfcpp.engine.synchronised.contract import PARTS, Contribution, StepMessage
from ccfcpp.engine.transport import Reply
from ccfcpp.engine.update_format import Count, Mean, Opaque, UpdateFormat
from ccfcpp.privacy.trust_summary import trust_rows
from ccfcpp.reports.run_reader import read_run
from ccfcpp.reports.summary_tables import setting
from ccfcpp.robust.attacks import ATTACKS, Attack, acts_on, choose_attackers
from ccfcpp.robust.config import RULES, AttackOfSome, DefenceConfig, RobustMean, ScaledAttack
from ccfcpp.robust.defence import Defence
from supervised.algorithm import training_exchange as classifier_exchange
from supervised.methods.scaffold import SCAFFOLD, ControlledBroadcast, ControlledUpdate
from tests.support.clustering import tiny
from tests.support.command import TINY, refused, succeeded

PRETRAINING = local_training_exchange("pre-training", with_centroids=True)
REFINEMENT = refinement_exchange(unit_length=True)
STEP = Exchange("step, trip 1", StepMessage, Contribution, PARTS)
GROUP: Tree = {"data": {"images": 100}, "partition": {"clients": 9}}
NO_SIZES = {"k-fed": {"false-sizes"}}
SUMS_ALONE = ("fed-scan", "fed-emp", "feddp-kmeans", "fed-km", "fed-fcm", "fed-em")
"""Systems of which the server needs sums that no robust mean stands for."""
GANS = ("sda-fc-km", "sda-fc-fcm", "ppfc-gan")
MEMBERS = [Member(number, f"client {number}", 10) for number in range(9)]


def attack(kind: str, members: Sequence[Member] = MEMBERS, scale: float = 10.0) -> Attack:
    settings: Tree = {"kind": kind, "attackers": 0.3, "scale": scale}
    config = validate(ClusterConfig, {"attack": settings}).attack
    assert isinstance(config, AttackOfSome)
    return Attack(config, "ccfc++", [PRETRAINING, REFINEMENT], members, Randomness(0))


def defence_of(rule: str, **settings: float) -> DefenceConfig:
    return validate(ClusterConfig, {"defence": {"rule": rule, **settings}}).defence


def defence(rule: str, exchange: Exchange[Any, Any], **settings: float) -> Defence:
    return Defence(defence_of(rule, **settings), "ccfc++", [exchange], len(MEMBERS))


class Silent(ServerWork[None, Any, Any]):
    """The server's half of an exchange, of which a stage needs the declaration alone."""

    def __init__(self, exchange: Exchange[Any, Any]) -> None:
        self.exchange = exchange

    def broadcast(self, state: None) -> object:
        raise NotImplementedError

    def update_format(self, message: object) -> UpdateFormat:
        raise NotImplementedError

    def aggregate(
        self, state: None, updates: Iterable[Any], randomness: Randomness
    ) -> tuple[None, Metrics]:
        raise NotImplementedError


def combined(
    rule: str,
    exchange: Exchange[Any, Any],
    message: Any,
    updates: Sequence[Any],
    members: Sequence[Member] = MEMBERS,
    **settings: float,
) -> list[Any]:
    """What the aggregation gets for updates that are as they must be."""
    replies = [Reply(m.id, own, is_checked=True) for m, own in zip(members, updates, strict=True)]
    request = ExchangeRequest(Silent(exchange), Task("test", exchange.name, 0, 0), message, members)
    stage = defence(rule, exchange, **settings)
    return [reply.update for reply in stage.deliver(request, lambda request: iter(replies))]


def model(generator: torch.Generator, size: float = 1.0) -> dict[str, Tensor]:
    return {
        "weight": size * torch.randn(3, 2, generator=generator),
        "norm.running_var": torch.rand(3, generator=generator) + 0.5,
        "norm.num_batches_tracked": torch.randint(1, 9, (), generator=generator),
    }


def trained(clients: int = 9, seed: int = 0) -> tuple[EncoderState, list[TrainingUpdate]]:
    generator = torch.Generator().manual_seed(seed)
    updates = [
        TrainingUpdate(
            model(generator), 10, float(n),
            CentroidUpdate(torch.randn(3, 2, generator=generator), torch.ones(3).double()),
        )
        for n in range(clients)
    ]  # fmt: skip
    return EncoderState(model(generator)), updates


# --- who is hostile -----------------------------------------------------------------------------


def test_attackers_follow_from_the_seed_and_are_a_share() -> None:
    clients = [3, 1, 4, 15, 9, 2, 6, 5, 35, 8]
    for share, count in ((0.1, 1), (0.25, 3), (0.3, 3), (0.45, 5)):
        config = ScaledAttack(kind="noise", attackers=share)
        found = choose_attackers(config, clients, 7)
        assert found == choose_attackers(config, clients[::-1], 7)
        assert len(found) == count
        assert set(found) <= set(clients)
    assert len({tuple(choose_attackers(config, clients, seed)) for seed in range(8)}) > 1


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_there_is_a_client_of_either_kind(share: float) -> None:
    with pytest.raises(UsageError, match="leaves one of either kind"):
        choose_attackers(ScaledAttack(kind="noise", attackers=share), range(10), 0)


# --- what they send -----------------------------------------------------------------------------


EXCHANGES: dict[type, Exchange[Any, Any]] = {
    TrainingUpdate: PRETRAINING,
    ClusterSums: REFINEMENT,
    Contribution: STEP,
}


def sent(kind: str, update: Any, message: Any, scale: float = 10.0) -> Any:
    known = attack(kind, scale=scale)
    exchange: Exchange[Any, Any] = EXCHANGES[type(update)]
    task = Task("ccfc++", "x", 2, 0)
    return known.falsify(exchange, task, message, update, known.attackers[0])


def test_a_false_model_differs_as_it_is_said_to() -> None:
    message, (update, *_) = trained()
    before, after = message.model["weight"], update.model["weight"]
    close = torch.testing.assert_close
    close(sent("sign-flip", update, message).model["weight"], 2 * before - after)
    close(sent("scaled", update, message).model["weight"], before + 10 * (after - before))
    assert sent("constant", update, message).model["weight"].unique().numel() == 1
    noise = sent("noise", update, message, scale=3.0).model["weight"] - before
    size = float((after - before).square().mean().sqrt())
    assert 0.2 * 3 * size < float(noise.square().mean().sqrt()) < 3 * 3 * size
    close(noise, sent("noise", update, message, scale=3.0).model["weight"] - before)
    assert sent("false-sizes", update, message).samples == 100
    for kind in ATTACKS:
        false = sent(kind, update, message)
        assert pack(false).keys() == pack(update).keys()
        # Statistics stay: with false ones the server's checks would refuse an update.
        close(false.model["norm.running_var"], update.model["norm.running_var"])
        assert false.model["norm.num_batches_tracked"] == update.model["norm.num_batches_tracked"]


def test_false_centroids_and_sums_differ_as_they_are_said_to() -> None:
    message, (update, *_) = trained()
    assert update.local is not None
    close = torch.testing.assert_close
    close(sent("sign-flip", update, message).local.centroids, -update.local.centroids)
    close(sent("scaled", update, message).local.centroids, 10 * update.local.centroids)
    close(sent("false-sizes", update, message).local.sizes, 10 * update.local.sizes)
    one = sent("one-point", update, message).local.centroids
    close(one, update.local.centroids[:1].expand(3, 2))
    sums = ClusterSums(torch.tensor([[0.0, 0], [2, 4]]).double(), torch.tensor([0.0, 2]).double())
    close(sent("one-point", sums, message).sums, sums.sums)  # the other cluster holds nothing
    both = replace(sums, counts=torch.tensor([3.0, 2]).double(), sums=sums.sums + 3)
    close(sent("one-point", both, message).sums[1], torch.tensor([2.0, 2]).double())
    lied = sent("false-sizes", both, message)
    close(lied.sums, 10 * both.sums)
    close(lied.counts, 10 * both.counts)
    step = Contribution({"a": torch.ones(3).double()}, {}, {"w": torch.ones(2)}, {})
    flipped = sent("sign-flip", step, message)
    close(flipped.gradient["w"], -torch.ones(2))
    close(flipped.sums["a"], torch.ones(3).double())


def test_the_server_takes_false_sizes_for_what_is_said() -> None:
    lies = attack("false-sizes")
    known = {member.id: member.samples for member in lies.reported_members(MEMBERS)}
    assert {number for number, size in known.items() if size == 100} == set(lies.attackers)
    assert {size for number, size in known.items() if number not in lies.attackers} == {10}
    assert attack("noise").reported_members(MEMBERS) == MEMBERS


# --- what the server makes of them --------------------------------------------------------------


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
def test_a_models_entries_are_estimated_one_by_one(rule: str) -> None:
    message, updates = trained()
    (found,) = combined(rule, PRETRAINING, message, updates)
    for name in ("weight", "norm.running_var"):
        columns = torch.stack([u.model[name].flatten() for u in updates]).T.tolist()
        cut = 3 if rule == "trimmed-mean" else 4
        slow = [statistics.mean(sorted(column)[cut : 9 - cut]) for column in columns]
        torch.testing.assert_close(found.model[name].flatten(), torch.tensor(slow))
    counters = sorted(int(u.model["norm.num_batches_tracked"]) for u in updates)
    assert int(found.model["norm.num_batches_tracked"]) == counters[4]
    assert list(found.model) == list(message.model)
    assert found.samples == 90
    assert found.loss == 4.0


@pytest.mark.parametrize("rule", ["krum", "multi-krum", "geometric-median"])
def test_neither_parameters_nor_statistics_hide_the_other(rule: str) -> None:
    generator = torch.Generator().manual_seed(1)
    honest = model(generator)
    for part in ("weight", "norm.running_var"):
        message, updates = trained()
        near = [
            replace(u, model={
                name: entry + 0.01 * torch.randn(entry.shape, generator=generator)
                if entry.is_floating_point() else entry
                for name, entry in honest.items()
            })
            for u in updates
        ]  # fmt: skip
        for number in range(4):
            false = near[number].model | {part: near[number].model[part] + 1e6}
            near[number] = replace(near[number], model=false)
        (found,) = combined(
            rule, PRETRAINING, message, near, hostile=0.3 if rule == "krum" else 0.33
        )
        if rule == "multi-krum":
            continue  # four of nine are more than it is set up for
        for name in ("weight", "norm.running_var"):
            torch.testing.assert_close(found.model[name], honest[name], atol=0.3, rtol=0)


def test_centroids_that_come_with_models_become_one_set() -> None:
    message, updates = trained()
    (found,) = combined("median", PRETRAINING, message, updates)
    assert found.local.centroids.shape == (3, 2)
    assert float(found.local.sizes.sum()) == pytest.approx(27)


def test_sums_of_clusters_become_robust_means() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 4, (9, 3), generator=generator).double()
    counts[:, 2] = 0
    sums = torch.randn(9, 3, 2, generator=generator).double() * counts.unsqueeze(2)
    updates = [ClusterSums(s, c) for s, c in zip(sums, counts, strict=True)]
    (found,) = combined("median", REFINEMENT, StepMessage(0), updates)
    for cluster in range(2):
        votes = [
            (s[cluster] / c[cluster]).tolist()
            for s, c in zip(sums, counts, strict=True)
            if c[cluster]
        ]
        slow = torch.tensor([statistics.median(column) for column in zip(*votes, strict=True)])
        mean = found.sums[cluster] / found.counts[cluster]
        torch.testing.assert_close(mean, slow.double(), check_dtype=False)
    torch.testing.assert_close(found.counts, counts.sum(dim=0))
    assert not found.sums[2].any()


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "bound"])
def test_counts_that_are_almost_nothing_make_no_mean_infinite(rule: str) -> None:
    """Distances between infinite means are no numbers, by which a rule could choose."""
    counts = torch.full((9, 2), 3.0, dtype=torch.float64)
    points = torch.randn(9, 2, 2, generator=torch.Generator().manual_seed(0)).double()
    counts[:2], points[:2] = 1e-308, 1e15
    sums = torch.cat([points[:2], 3 * points[2:]])
    updates = [ClusterSums(s, c) for s, c in zip(sums, counts, strict=True)]
    (found,) = combined(rule, REFINEMENT, StepMessage(0), updates)
    means, honest = found.sums / found.counts.unsqueeze(1), points[2:]
    assert bool((means >= honest.amin(dim=0)).all() and (means <= honest.amax(dim=0)).all())


def test_a_bound_is_the_median_of_the_norms_and_of_the_sizes() -> None:
    message, updates = trained()
    members = [replace(member, samples=10 if member.id else 500) for member in MEMBERS]
    updates[0] = replace(updates[0], samples=500)
    norms = [float((u.model["weight"] - message.model["weight"]).norm()) for u in updates]
    limit = statistics.median(norms)
    found = combined("bound", PRETRAINING, message, updates, members)
    assert [own.samples for own in found] == [20, *[10] * 8]
    for own, before, norm in zip(found, updates, norms, strict=True):
        change = own.model["weight"] - message.model["weight"]
        expected = (before.model["weight"] - message.model["weight"]) * min(1, limit / norm)
        torch.testing.assert_close(change, expected)


def test_a_bound_of_sums_is_that_of_one_image() -> None:
    parts = [[3.0, 4.0], [0.6, 0.8], [0.3, 0.4], [30.0, 40.0], *[[0.6, 0.8]] * 5]
    updates = [Contribution(gradient={"w": torch.tensor(part)}) for part in parts]
    members = [replace(m, samples=50 if m.id == 3 else 10) for m in MEMBERS]
    found = combined("bound", STEP, StepMessage(0), updates, members, norm=1.0, weight=2.0)
    norms = [math.hypot(*own.gradient["w"].tolist()) for own in found]
    # The median of the norms for each image is 0.1; client 3 may count for 20 images of its 50.
    assert norms == pytest.approx([1.0, 1.0, 0.5, 2.0, *[1.0] * 5])


def test_a_sum_beside_a_mean_is_bounded_by_the_median_of_the_clients() -> None:
    """Whatever their numbers of images: it is a sum over clients."""
    message = ControlledBroadcast({"w": torch.zeros(2)}, torch.zeros(2))
    changes = [[3.0, 4.0], [0.6, 0.8], [0.3, 0.4], [300.0, 400.0], *[[0.6, 0.8]] * 5]
    updates = [
        ControlledUpdate({"w": torch.ones(2)}, 10, 4, control_change=torch.tensor(change))
        for change in changes
    ]
    exchange = classifier_exchange(SCAFFOLD, logs_terms=False)
    members = [replace(m, samples=15 if m.id == 2 else 10) for m in MEMBERS]
    found = combined("bound", exchange, message, updates, members, norm=1.0, weight=2.0)
    norms = [float(own.control_change.norm()) for own in found]
    assert norms == pytest.approx([1.0, 1.0, 0.5, 1.0, *[1.0] * 5])


@dataclass(frozen=True)
class Steps:
    """A mean that counts from 0, by steps, and a table of whole numbers."""

    direction: Tensor
    steps: int
    table: Tensor
    slack: float | None = None


STEPS = Exchange(
    "steps", StepMessage, Steps,
    {
        "direction": Mean("steps"), "steps": Count(), "table": Count(),
        "slack": Mean("steps", optional=True),
    },
)  # fmt: skip


def stepped() -> list[Steps]:
    return [
        Steps(torch.full((2,), float(n)), 7 + n, torch.tensor([0, 1, 8]), None if n == 0 else 1.0)
        for n in range(9)
    ]


def test_means_from_zero_and_numbers_that_some_do_not_have_are_defended() -> None:
    bounded = combined("bound", STEPS, StepMessage(0), stepped(), norm=1.0)
    assert [float(own.direction[0]) for own in bounded] == pytest.approx([*range(5), *[4] * 4])
    assert [own.slack for own in bounded] == [None, *[1.0] * 8]
    (found,) = combined("median", STEPS, StepMessage(0), stepped())
    assert found.direction.tolist() == [4.0, 4.0]
    assert found.slack == 1.0


def test_who_counts_for_less_holds_nothing_more_than_before() -> None:
    """Of whole numbers what is 0 stays 0, and what is not stays 1 at least."""
    members = [replace(member, samples=1000 if member.id == 0 else 10) for member in MEMBERS]
    first, *_ = combined("bound", STEPS, StepMessage(0), stepped(), members, weight=1.0)
    assert first.table.tolist() == [0, 1, 1]
    assert first.steps == 1


@pytest.mark.parametrize("kind", ["sign-flip", "false-sizes"])
def test_weights_are_false_where_sizes_are(kind: str) -> None:
    """A weight need not be a number of images."""
    attacking = attack(kind)
    task = Task("test", "steps", 0, 0)
    client = attacking.attackers[0]
    false: Any = attacking.falsify(STEPS, task, StepMessage(0), stepped()[2], client)
    assert false.steps == (100 if kind == "false-sizes" else 9)


def test_a_rule_that_cannot_be_is_refused_in_a_line() -> None:
    with pytest.raises(UsageError, match="take bound"):
        defence("median", STEP)
    with pytest.raises(UsageError, match="takes 3 of 6 clients to be hostile"):
        Defence(RobustMean(rule="krum", hostile=0.45), "ccfc++", [REFINEMENT], 6)
    with pytest.raises(UsageError, match="for which it needs 5"):
        Defence(RobustMean(rule="trimmed-mean", hostile=0.45), "ccfc++", [REFINEMENT], 4)
    for parts in ({}, {"counts": Opaque()}):
        opaque = Exchange("images", EncoderState, ClusterSizes, parts)
        with pytest.raises(UsageError, match=r"each client's part '(update|counts)' as it is"):
            defence("bound", opaque)


# --- whole runs ---------------------------------------------------------------------------------


def run(method: str, *trees: Tree) -> tuple[Any, ClusteringRun]:
    experiment = clustering_run(tiny(method, GROUP, *trees))
    federation = experiment.federation()
    state = experiment.algorithm.initial_state(experiment.randomness)
    for after, report in federation.run(state):
        state = after
        assert not report.refused
    return state, experiment


def hostile(kind: str, rule: str = "none") -> Tree:
    return {"attack": {"kind": kind, "attackers": 0.3}, "defence": {"rule": rule}}


@pytest.mark.parametrize("rule", RULES)
def test_models_and_centroids_go_through_every_rule(rule: str) -> None:
    state, experiment = run("ccfc++", hostile("noise", rule))
    assert torch.isfinite(state.centroids).all()
    assert all(entry.isfinite().all() for entry in state.model.values())
    assert experiment.defender is not None


@pytest.mark.parametrize("method", sorted(METHODS.own()))
def test_every_system_is_defended_and_attacked_or_says_why_not(method: str) -> None:
    known = [
        work.exchange for work in clustering_run(tiny(method, GROUP)).client_side.works.values()
    ]
    opaque = METHODS[method].centralised or method in ("spp-fgc", *GANS)
    acted = {kind for kind in ATTACKS if any(acts_on(kind, exchange) for exchange in known)}
    assert acted == (set() if opaque else set(ATTACKS) - NO_SIZES.get(method, set()))
    defended = {"bound"} if method in SUMS_ALONE else set() if method == "fed-dcn" else set(RULES)
    for rule in RULES:
        if rule not in defended or opaque:
            with pytest.raises(UsageError, match=f"defence.rule = {rule}"):
                Defence(defence_of(rule), method, known, len(MEMBERS))
        elif rule in ("bound", "median"):
            state, experiment = run(method, hostile("none", rule))
            assert experiment.algorithm.knows_clusters(state)
        else:
            Defence(defence_of(rule), method, known, len(MEMBERS))


def test_where_one_exchange_needs_a_sum_there_is_the_bound_alone() -> None:
    start: Tree = {"training": {"pretraining": "neighbours"}}
    assert run("ccfc++", hostile("none", "bound"), start)[1].defender is not None
    with pytest.raises(UsageError, match="in ccfc\\+\\+'s exchange 'step, trip 1'"):
        run("ccfc++", hostile("none", "multi-krum"), start)


@pytest.mark.parametrize("kind", ATTACKS)
def test_an_attack_changes_the_result_and_is_the_same_each_time(kind: str) -> None:
    plain, _ = run("k-fed" if kind == "one-point" else "ccfc++")
    method = "k-fed" if kind == "one-point" else "ccfc++"
    first, second = (run(method, hostile(kind))[0] for _ in range(2))
    assert not torch.equal(first.centroids, plain.centroids)
    torch.testing.assert_close(first.centroids, second.centroids, rtol=0, atol=0)


def test_clients_work_in_the_order_of_their_true_sizes() -> None:
    # The last client is the smallest, and lies: the server takes it for one of the largest.
    config = ScaledAttack(kind="false-sizes", attackers=0.3)
    seed = next(s for s in range(99) if 8 in choose_attackers(config, range(9), s))
    uneven: Tree = {"data": {"images": 104}, "seed": seed, "compute": {"cohort": 9}}
    state, experiment = run("ccfc++", hostile("false-sizes"), uneven)
    assert [len(client) for client in experiment.clients] == [12] * 8 + [8]
    assert torch.isfinite(state.centroids).all()


def test_an_attack_that_has_nothing_to_act_on_is_refused() -> None:
    with pytest.raises(UsageError, match="finds nothing to act on in k-fed"):
        clustering_run(tiny("k-fed", GROUP, hostile("false-sizes")))
    assert not acts_on("noise", replace(PRETRAINING, travels=False))


def test_a_median_stands_what_a_mean_does_not() -> None:
    # Centroids of pixels lie in [0, 1]; attackers send them ten times as large.
    found = {}
    for rule in ("none", "median"):
        state, _ = run("ffcm-avg", hostile("scaled", rule))
        found[rule] = float(state.centroids.max())
    assert found["none"] > 1.1
    assert found["median"] < 1.01


def test_the_command_says_who_attacks_and_takes_bad_input_in_a_line(tmp_path: Path) -> None:
    out = tmp_path / "run"
    few = ("--set", "data.images=100", "--clients", "9")
    result = succeeded(
        "cluster", *TINY, *few, "--attack", "sign-flip", "--attackers", "0.3", "--defence",
        "median", "--out", out,
    )  # fmt: skip
    assert "ATTACK, to measure its effect: sign-flip by 3 of 9 clients" in result.stderr
    assert "defence: median" in result.stderr
    assert '"share": 0.3333333333333333' in (out / "summary.json").read_text()
    assert "sign-flip by 33% of the clients" in result.stdout
    told = setting(read_run(out))
    assert re.fullmatch(r"sign-flip by 33% of the clients \(\d, \d, \d\)", told["attack"])
    assert told["defence"] == "median"
    for flags, said in (
        (("--attack", "flip"), "--attack flip is refused"),
        (("--defence", "mean"), "--defence mean is refused"),
        (("--attack", "noise", "--attackers", "1.3"), "--attackers 1.3 is refused"),
        (("--attack", "noise", "--attackers", "1"), "makes 9 of 9 clients hostile"),
        (("--defence", "krum", "--set", "defence.hostile=0.5"), "defence.hostile"),
        (("--defence", "trimmed-mean", "--clients", "2"), "takes 1 of 2 clients"),
        (("--defence", "median", "--secure-sums"), "needs each client's update"),
        (("--attackers", "0.3"), "--attackers 0.3 has no effect: it needs --attack sign-flip"),
        (("--set", "defence.norm=2"), "defence.norm = 2 has no effect: it needs --defence bound"),
        (("--epsilon", "8"), "--epsilon 8 has no effect: it needs --privacy client"),
    ):
        assert said in refused("cluster", *TINY, *few, *flags, "--out", tmp_path / "other")


def test_trust_in_words() -> None:
    private = {
        "level": "image", "epsilon": 7.98765, "budget": 8.0, "delta": 1e-5, "hides": "an image",
        "budget_ended_the_run": True, "reproducible_noise": True,
    }  # fmt: skip
    attacked = {"kind": "noise", "attackers": list(range(25)), "share": 0.25}
    rows = trust_rows({"privacy": private, "attack": attacked, "defence": "krum"})
    assert rows["privacy"].startswith("image level: ε = 7.99 of 8, δ = 1e-05; it hides an image")
    assert "ended the run before its last round" in rows["privacy"]
    assert "protects NOTHING" in rows["privacy"]
    assert rows["attack"].startswith("noise by 25% of the clients (0, 1, 2")
    assert rows["attack"].endswith("19 and 5 more)")
    assert rows["defence"] == "krum"
    assert trust_rows({"privacy": {"secure_sums": True}}) == {"secure sums": "yes"}
    assert trust_rows({}) == {}
