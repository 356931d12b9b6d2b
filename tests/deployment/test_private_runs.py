"""Differential privacy over a network: bounds at the clients, noise at the server."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file, save

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import merge
from ccfcpp.core.errors import UsageError
from ccfcpp.core.permissions import KINDS
from ccfcpp.core.randomness import Randomness
from ccfcpp.deployment.client.privacy_spent import Spending
from ccfcpp.deployment.link.packet import Packet
from ccfcpp.deployment.server.run import DeployedRun
from ccfcpp.engine.exchange import AnyExchange, Exchange
from ccfcpp.engine.federation import RoundReport
from ccfcpp.engine.payload import pack
from ccfcpp.engine.synchronised.contract import PARTS, Contribution, StepMessage
from ccfcpp.engine.update_format import Part, group_names
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.differential_privacy import PoissonSampling
from ccfcpp.privacy.noise.mechanism import client_bounds
from ccfcpp.runs.folder import RunFolder
from tests.deployment.test_experiment import experiment_on, grid_of, run
from tests.support.classification import labelled_clients
from tests.support.clustering import tiny
from tests.support.command import ccfcpp
from tests.support.deployment import Grid, one_by_one, resent, trusting
from tests.support.federation import assert_same_state

pytest.importorskip("dp_accounting")

SIZES = (30, 25, 20)
SCAN: Tree = {"scan": {"pairs": "views", "overclustering": 1, "steps_per_round": 2}}
CCFC: Tree = {
    "training": {"pretraining": "neighbours", "steps": "synchronised", "rounds": 2},
    "centroids": {"search": "lloyd", "refine_steps": 2},
}
SYSTEMS: dict[str, tuple[str, Tree]] = {
    "fed-scan": ("fed-scan", SCAN),
    "ccfc++": ("ccfc++", CCFC),
    "feddp-kmeans": ("feddp-kmeans", {}),
    "ccfc++ local": ("ccfc++", merge(CCFC, {"training": {"steps": "local"}})),
}
OPEN: Tree = {"level": "client", "reproducible_noise": True, "noise": 0.01, "epsilon": 1e9}


def config_of(system: str, **privacy: object) -> ClusterConfig:
    method, tree = SYSTEMS[system]
    common: Tree = {"clusters": 3, "device": "cpu", "compute": {"cohort": 1}}
    return tiny(method, tree, common, {"privacy": {**OPEN, **privacy}})


def started(folder: Path, system: str = "fed-scan", **privacy: object) -> tuple[DeployedRun, Grid]:
    grid = grid_of(labelled_clients(*SIZES), folder)
    return experiment_on(grid, config_of(system, **privacy)), grid


def parts_of_all(experiment: DeployedRun) -> dict[str, Part]:
    """What the parts of all updates of a system mean; what a step has is bounded by itself."""
    return {
        n: part
        for work in experiment.client_side.works.values()
        for n, part in work.exchange.parts.items()
    } | PARTS


def ruled(grid: Grid, **rules: Any) -> list[str]:
    """Let owners have other rules; what their clients say."""
    said: list[str] = []
    for worker in grid.workers.values():
        worker.rules = trusting(**{"allow": KINDS, "smallest_count": 0, **rules})
        worker.say = said.append
    return said


def assert_all_refuse(report: RoundReport, reason: str) -> None:
    assert report.refused.keys() == {0, 1, 2}
    assert reason in report.refused[0][0]


def first_state(experiment: DeployedRun) -> Any:
    return experiment.algorithm.initial_state(experiment.randomness)


@pytest.mark.parametrize(
    ("system", "level", "noise_at"),
    [
        ("fed-scan", "client", None),
        ("ccfc++", "client", None),
        ("ccfc++ local", "client", None),
        ("feddp-kmeans", "client", "clients"),
        ("feddp-kmeans", "image", None),
        ("ccfc++", "client", "clients"),
        ("fed-scan", "client", "server"),
        ("fed-scan", "image", None),
        ("fed-scan", "image", "clients"),
    ],
)
def test_a_run_ends_in_the_bits_of_one_process(
    system: str, level: str, noise_at: str | None, tmp_path: Path
) -> None:
    sums = {"secure_sums": True, "noise_at": noise_at} if noise_at else {}
    privacy = {"level": level, **sums}
    experiment, grid = started(tmp_path, system, **privacy)
    summary = run(experiment, tmp_path / "run")
    assert summary["refused_updates"] == 0
    assert summary["privacy"]["level"] == level
    assert 0 < summary["privacy"]["epsilon"] <= 1e9
    beside = experiment_on(grid, experiment.config)
    assert beside.protection is not None
    mechanism: Any = beside.protection.mechanism
    clients = labelled_clients(*SIZES)
    alone = one_by_one(beside.spec, beside.algorithm, clients, mechanism=mechanism)
    rounds = list(alone.run(first_state(beside)))
    found, expected = load_file(tmp_path / "run" / "model.safetensors"), pack(rounds[-1][0])
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []
    lines = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    spent = [line["figures"]["epsilon"] for line in lines]
    assert spent == [report.figures["epsilon"] for _, report in rounds]
    assert spent == sorted(spent)
    assert len((tmp_path / "run" / "privacy.jsonl").read_text().splitlines()) == len(rounds)


@pytest.mark.parametrize("system", ["fed-scan", "ccfc++ local"])
def test_what_a_client_sends_is_within_its_bounds(system: str, tmp_path: Path) -> None:
    clip = 1e-3
    experiment, grid = started(tmp_path, system, clip=clip)
    sent: list[dict[str, torch.Tensor]] = []
    for name in grid.workers:
        grid.tampering[name] = noting(sent)
    experiment.federation().run_round(first_state(experiment), 0)
    norms = [
        torch.cat([parts[name].flatten() for name in names]).norm().item()
        for parts in sent
        for names in group_names(parts_of_all(experiment), parts).values()
    ]
    assert len(sent) >= len(SIZES)
    assert max(norms) <= clip
    assert max(norms) > 0.999 * clip  # something was clipped


def noting(sent: list[dict[str, torch.Tensor]]) -> Callable[[Packet], Packet]:
    def noted(packet: Packet) -> Packet:
        content = load(packet.payload)
        assert all(name.startswith("parts/") for name in content)
        sent.append({name.removeprefix("parts/"): tensor for name, tensor in content.items()})
        return packet

    return noted


def changed(do: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Packet], Packet]:
    """Send other tensors."""

    def done(packet: Packet) -> Packet:
        content = load(packet.payload) if packet.payload else {}
        if not any(name.startswith("parts/") for name in content):
            return packet
        do(content)
        return packet._replace(payload=save(content))

    return done


def larger(content: dict[str, torch.Tensor]) -> None:
    for name in content:
        content[name] = content[name] * 1e6


def test_the_server_clips_what_exceeds_its_bounds(tmp_path: Path) -> None:
    """A client that sends a million times as much has the say of one that is just within."""
    clip = 0.5
    experiment, grid = started(tmp_path, clip=clip)
    federation = experiment.federation()
    assert experiment.protection is not None
    mechanism: Any = experiment.protection.mechanism
    published: list[dict[str, torch.Tensor]] = []
    inner: list[dict[str, torch.Tensor]] = []
    noised = mechanism.published

    def watched(exchange: AnyExchange, totals: dict[str, torch.Tensor]) -> Any:
        published.append(totals)
        return noised(exchange, totals)

    mechanism.published = watched
    grid.tampering["client 1"] = changed(larger)
    for name in ("client 0", "client 2"):
        grid.tampering[name] = noting(inner)
    _, report = federation.run_round(first_state(experiment), 0)
    assert not report.refused
    assert len(published) == len(inner) / 2
    for total, one, other in zip(published, inner[::2], inner[1::2], strict=True):
        for names in group_names(parts_of_all(experiment), total).values():
            rest = [(total[n] - one[n] - other[n]).flatten() for n in names]
            assert torch.cat(rest).norm() <= clip * (1 + 1e-9)


def parts_of(content: dict[str, torch.Tensor]) -> list[str]:
    return [name for name in content if name.startswith("parts/")]


def renamed(content: dict[str, torch.Tensor]) -> None:
    content["parts/sums/mine"] = content.pop(parts_of(content)[0])


def flat(content: dict[str, torch.Tensor]) -> None:
    """As many numbers, in other shapes."""
    content |= {name: content[name].flatten() for name in parts_of(content)}


def as_nan(content: dict[str, torch.Tensor]) -> None:
    content |= {name: content[name] * float("nan") for name in parts_of(content)}


def as_floats(content: dict[str, torch.Tensor]) -> None:
    content |= {name: content[name].float() for name in parts_of(content)}


FORMS = [
    ("fed-scan", "client", renamed),
    ("fed-scan", "image", as_nan),
    ("ccfc++", "client", flat),
    ("ccfc++ local", "client", as_floats),
]


@pytest.mark.parametrize(("system", "level", "spoilt"), FORMS)
def test_parts_of_another_form_leave_their_client_out_of_the_run_and_nobody_else(
    system: str, level: str, spoilt: Callable[..., None], tmp_path: Path
) -> None:
    """Also where they come first: client 0 is the largest. Trips that follow leave it out."""
    experiment, grid = started(tmp_path, system, level=level)
    grid.tampering["client 0"] = changed(spoilt)
    rounds = list(experiment.federation().run(first_state(experiment)))
    assert len(rounds) == experiment.algorithm.rounds
    assert all(report.refused.keys() == {0} for _, report in rounds)


def test_a_round_of_which_nothing_can_be_used_leaves_the_model(tmp_path: Path) -> None:
    experiment, grid = started(tmp_path)
    for name in grid.workers:
        grid.tampering[name] = changed(as_nan)
    state = first_state(experiment)
    after, report = experiment.federation().run_round(state, 0)
    assert_same_state(replace(after, descent=state.descent), state)
    assert report.refused.keys() == {0, 1, 2}


def test_clients_are_drawn_by_the_server(tmp_path: Path) -> None:
    """By a probability that no client is told."""
    grid = grid_of(labelled_clients(*SIZES), tmp_path)
    tree: Tree = {"availability": {"sample_fraction": 0.99}, "privacy": {**OPEN, "delta": 0.5}}
    config = tiny("fed-scan", SCAN, {"clusters": 3, "device": "cpu"}, tree)
    experiment = experiment_on(grid, config)
    federation = experiment.federation()
    assert isinstance(federation.availability, PoissonSampling)
    assert federation.availability.reproducible
    assert "availability" not in experiment.spec.config
    assert experiment.protection is not None
    assert experiment.protection.mechanism is not None
    assert experiment.protection.mechanism.contributors == 0.99 * len(SIZES)


@pytest.mark.parametrize("level", ["client", "image"])
def test_the_budget_ends_the_run(level: str, tmp_path: Path) -> None:
    whole, _ = started(tmp_path / "whole", level=level, noise=3.0)
    assert whole.protection is not None
    assert whole.protection.mechanism is not None
    epsilon = 0.8 * whole.protection.mechanism.planned.spent
    experiment, _ = started(tmp_path, level=level, noise=3.0, epsilon=epsilon)
    summary = run(experiment, tmp_path / "run")
    assert 0 < summary["rounds"] < experiment.algorithm.rounds
    assert summary["privacy"]["budget_ended_the_run"] is True
    assert summary["privacy"]["epsilon"] <= epsilon


def test_a_server_that_goes_on_has_spent_what_it_spent(tmp_path: Path) -> None:
    config = config_of("fed-scan", noise=3.0)
    grid = grid_of(labelled_clients(*SIZES), tmp_path)
    folder = RunFolder.create(tmp_path / "run", config)

    def stop(report: Any, scores: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment_on(grid, config).run(folder, stop)
    ledger = folder.path / "privacy.jsonl"
    before = ledger.read_text().splitlines()
    assert before
    again = experiment_on(grid, config)
    summary = again.run(folder)
    assert ledger.read_text().splitlines()[: len(before)] == before
    assert len(ledger.read_text().splitlines()) > again.algorithm.rounds
    whole = run(experiment_on(grid, config), tmp_path / "whole")
    # The round that ran again was published again.
    assert summary["privacy"]["epsilon"] > whole["privacy"]["epsilon"]


def test_a_run_within_bounds_can_be_asked_for_nothing_else(tmp_path: Path) -> None:
    experiment, grid = started(tmp_path)
    experiment.federation().run_round(first_state(experiment), 0)
    name, order = next((n, p) for n, p in grid.requests if b"within bounds" in p.header)
    plain = json.loads(order.header)["exchange"].removesuffix(" within bounds")
    answer = resent(grid.workers[name], order, exchange=plain)
    assert json.loads(answer.header)["status"] == "refused"


def test_images_and_clients_are_drawn_by_nobodys_seed(tmp_path: Path) -> None:
    """Two runs of one seed differ in which images a client has drawn, at its own machine."""
    sent: list[dict[str, torch.Tensor]] = []
    for number in range(2):
        place = tmp_path / str(number)
        experiment, grid = started(place, level="image", reproducible_noise=False)
        grid.tampering["client 1"] = noting(sent)
        experiment.federation().run_round(first_state(experiment), 0)
    half = len(sent) // 2
    first, second = sent[0], sent[half]
    assert first.keys() == second.keys()
    assert any(not torch.equal(first[name], second[name]) for name in first)


REFUSED: list[tuple[Tree, str]] = [
    ({"level": "none"}, "the run has no differential privacy"),
    ({"epsilon": 9.0}, "privacy.epsilon = 9 is more than 8"),
    ({"delta": 1e-4}, "privacy.delta = 0.0001 is more than 1e-05"),
    ({"reproducible_noise": True}, "privacy.reproducible_noise protects nothing"),
]
ENOUGH: Tree = {"epsilon": 8.0, "reproducible_noise": False, "noise": None}


@pytest.mark.parametrize(("privacy", "reason"), REFUSED)
def test_an_owner_can_insist_on_noise(privacy: Tree, reason: str, tmp_path: Path) -> None:
    grid = grid_of(labelled_clients(*SIZES), tmp_path)
    said = ruled(grid, only_private=8.0)
    assert len(experiment_on(grid, config_of("fed-scan", **ENOUGH)).members) == len(SIZES)
    assert not said
    with pytest.raises(UsageError, match="3 of 3 clients cannot take part"):
        experiment_on(grid, config_of("fed-scan", **{**ENOUGH, **privacy}))
    assert len(said) == len(SIZES)
    assert all(f"{reason} (--only-private" in line and "\n" not in line for line in said)


@pytest.mark.parametrize("noise_at", ["clients", "server"])
def test_an_owner_who_trusts_no_server_wants_noise_of_the_clients(
    noise_at: str, tmp_path: Path
) -> None:
    grid = grid_of(labelled_clients(*SIZES), tmp_path)
    said = ruled(grid, only_secure_sums=True, only_private=8.0)
    config = config_of("fed-scan", **ENOUGH, secure_sums=True, noise_at=noise_at)
    if noise_at == "server":
        with pytest.raises(UsageError, match="3 of 3 clients cannot take part"):
            experiment_on(grid, config)
        reason = "noise_at = server lets the server see sums without noise"
        assert sum(reason in line for line in said) == len(SIZES), said
        return
    experiment = experiment_on(grid, config)
    _, report = experiment.federation().run_round(first_state(experiment), 0)
    assert not report.refused
    folder = next(iter(grid.workers.values())).folder
    assert "that the server says, with noise of the clients" in ccfcpp("audit", folder).stdout


def test_a_client_counts_what_its_images_cost(tmp_path: Path) -> None:
    """As the server does, where all clients take part in every round."""
    experiment, grid = started(tmp_path, noise=None, epsilon=8.0)
    summary = run(experiment, tmp_path / "run")
    spent = [worker.spending.epsilon(1e-5) for worker in grid.workers.values()]
    assert spent == pytest.approx([summary["privacy"]["epsilon"]] * len(SIZES), rel=1e-6)
    again = Spending(next(iter(grid.workers.values())).folder)
    assert again.epsilon(1e-5) == spent[0]
    assert again.epsilon(1e-5, "0" * 32) == 0
    shown = ccfcpp("audit", next(iter(grid.workers.values())).folder).stdout
    assert f"ε = {spent[0]:.3g} spent, of 8 that the server says" in shown
    assert f"all runs together have cost ε = {spent[0]:.3g}" in shown


def test_the_budget_is_for_all_runs_together(tmp_path: Path) -> None:
    experiment, grid = started(tmp_path, noise=None, epsilon=8.0, reproducible_noise=False)
    ruled(grid, budget=9.0)
    first = run(experiment, tmp_path / "first")
    assert first["refused_updates"] == 0
    second = experiment_on(grid, experiment.config)
    second.deployed.run = "b" * 32
    report = second.federation().run_round(first_state(second), 0)[1]
    assert_all_refuse(report, "all runs together would cost its images")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"level": "none"}, "no differential privacy"),
        ({"noise": None}, "does not say how much noise"),
        ({"noise": 1e-6}, "would cost its images"),
        ({"noise": 1e-200}, "privacy.noise = 1e-200 cannot be counted"),
        ({"noise": 1e200}, "privacy.noise = 1e+200 cannot be counted"),
    ],
)
def test_a_server_that_promises_noise_and_works_with_less_is_refused(
    changes: Tree, reason: str, tmp_path: Path
) -> None:
    """And what was spent stays readable."""
    experiment, grid = started(tmp_path, **ENOUGH)
    ruled(grid, only_private=8.0)
    told = experiment.deployed.spec.config
    config = {**told, "privacy": {**told["privacy"], **changes}}
    experiment.deployed.spec = experiment.spec.model_copy(update={"config": config})
    _, report = experiment.federation().run_round(first_state(experiment), 0)
    assert_all_refuse(report, reason)
    for worker in grid.workers.values():
        assert Spending(worker.folder).epsilon(1e-5) == 0


def test_a_server_that_asks_again_and_again_spends_the_budget(tmp_path: Path) -> None:
    experiment, grid = started(tmp_path, **ENOUGH)
    ruled(grid, only_private=8.0)
    state, refused = first_state(experiment), []
    for _ in range(4 * experiment.algorithm.rounds):
        refused = list(experiment.federation().run_round(state, 0)[1].refused)
        if refused:
            break
    assert refused == [0, 1, 2]
    worker = next(iter(grid.workers.values()))
    assert worker.spending.epsilon(1e-5) <= 8.0


@pytest.mark.parametrize("line", ["{", '{"run": 1}', "[]"])
def test_what_was_spent_must_be_known(line: str, tmp_path: Path) -> None:
    (tmp_path / "privacy.jsonl").write_text(line + "\n")
    with pytest.raises(UsageError, match="is damaged"):
        Spending(tmp_path)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--only-private", 0), "--only-private 0 is refused"),
        (("--only-private", "nan"), "--only-private nan is refused"),
        (("--only-private", 8, "--delta", 1), "--delta 1 is refused"),
        (
            ("--delta", 1e-6),
            "--delta 1e-06 has no effect: it needs --only-private or --budget; give",
        ),
    ],
)
def test_limits_that_are_none_are_refused(
    options: tuple[object, ...], complaint: str, tmp_path: Path
) -> None:
    result = ccfcpp("join", "--insecure", "--data", tmp_path, *options)
    assert result.code == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


def test_clipping_twice_changes_no_bit() -> None:
    """Over lengths and sizes: else a server that clips again would change honest parts."""
    exchange = Exchange("step", StepMessage, Contribution, PARTS)
    bounds = client_bounds(PrivacyConfig(level="client", clip=0.7), exchange)
    for number in range(300):
        numbers = Randomness(number).generator("test")
        parts = {
            f"gradient/{i}": torch.randn(
                1 + number * 7 % 5000, generator=numbers, dtype=torch.float64
            )
            for i in range(3)
        }
        once = bounds.clip_parts(parts)
        norm = torch.cat([*once.values()]).norm().item()
        assert 0.7 * (1 - 1e-8) < norm <= 0.7 or torch.cat([*parts.values()]).norm() <= 0.7
        twice = bounds.clip_parts(once)
        assert all(torch.equal(once[name], twice[name]) for name in once)
