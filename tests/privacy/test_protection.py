"""What lies between clients and server, in whole small runs of the systems that can use it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.preprocessing.make_algorithm import make_algorithm
from ccfcpp.clustering.run import ClusteringRun, clustering_run
from ccfcpp.clustering.systems.fed_scan.views import Views
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import merge, read_yaml, resolve
from ccfcpp.core.errors import UsageError
from ccfcpp.core.presets import preset_folder
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import Task, part_for
from ccfcpp.engine.federation import Federation, RoundReport
from ccfcpp.engine.payload import count_bytes, pack
from ccfcpp.engine.stages import Deliver, ExchangeRequest
from ccfcpp.engine.transport import InProcess, Reply
from ccfcpp.engine.update_format import Mean, find_part, format_of, group_names
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.differential_privacy import ClientLevel, Level
from ccfcpp.privacy.noise.per_image_clipping import bounding_of
from ccfcpp.privacy.protection import check_fits
from ccfcpp.privacy.sums.aggregation import Addition
from ccfcpp.privacy.sums.distributed_noise import OwnNoise
from ccfcpp.privacy.sums.fixed_point import FixedPoint
from tests.support.clustering import clients_of_sizes, made, tiny
from tests.support.federation import assert_same_state
from tests.support.sums import InTheOpen, Loss, federation_of, protected

SUMS: Tree = {"centroids": {"search": "lloyd"}, "training": {"pretraining": "neighbours"}}
SYNCHRONISED: Tree = merge(SUMS, {"training": {"steps": "synchronised"}})
ALONE: Tree = {"scan": {"pairs": "views", "overclustering": 1}}
"""Images tell of themselves alone."""
CAN: dict[str, tuple[str, Tree]] = {
    "fed-scan": ("fed-scan", {"scan": {"overclustering": 2}}),
    "fed-scan, lagged": ("fed-scan", {"scan": {"lagged": True}}),
    "ccfc++, synchronised": ("ccfc++", SYNCHRONISED),
    "ccfc++, local": ("ccfc++", SUMS),
    "ccfc": ("ccfc", SUMS),
    "feddp-kmeans": ("feddp-kmeans", {"feddp": {"margin": 0.8}}),
    **{name: (name, {}) for name in ("fed-km", "fed-fcm", "fed-em", "fed-emp")},
}
"""All systems of sums and means."""
needs_accountant = pytest.mark.skipif(
    find_spec("dp_accounting") is None, reason="dp-accounting is an extra: ccfcpp[privacy]"
)
FORM = FixedPoint(64, 32)
SIZES = (40, 30, 20, 10)


def federation(
    config: ClusterConfig, secure: bool, loses: Loss | None = None
) -> Federation[Any, InProcess]:
    """By secure sums, or by the sums of the same rounded numbers in the open."""
    clients = [Client(c.id, c.name, c.images) for c in clients_of_sizes(*SIZES)]
    algorithm = made(config, samples=sum(SIZES))
    side = algorithm.client_side(ClientContext.of(clients))
    if secure:
        asked = PrivacyConfig(secure_sums=True)
        return protected(asked, config.method, algorithm, clients, side, loses=loses)
    return federation_of(config.method, algorithm, clients, side, [InTheOpen(FORM)])


def last(running: Federation[Any, Any]) -> tuple[dict[str, Tensor], list[RoundReport]]:
    rounds = list(running.run(running.algorithm.initial_state(Randomness(0))))
    return pack(rounds[-1][0]), [report for _, report in rounds]


@pytest.mark.parametrize("name", CAN)
def test_a_run_with_secure_sums_is_the_one_with_plain_ones_to_the_bit(name: str) -> None:
    method, tree = CAN[name]
    config = tiny(method, tree)
    secure, reports = last(federation(config, secure=True))
    plain, _ = last(federation(config, secure=False))
    assert [key for key in plain if not torch.equal(secure[key], plain[key])] == []
    assert not any(report.refused or report.absent for report in reports)


def test_clients_that_drop_out_have_no_part_and_a_round_below_the_threshold_none() -> None:
    """Client 3 is lost before its vector, in every sum; then two of four, and three are needed."""
    config = tiny("fed-scan")

    def without(*gone: int) -> Federation[Any, InProcess]:
        return federation(
            config, True, lambda stage, client: stage == "under masks" and client in gone
        )

    _, reports = last(without(3))
    assert all(report.clients == [0, 1, 2] and not report.refused for report in reports)
    assert {client for report in reports for client in report.absent} == {3}
    running = without(2, 3)
    start = running.algorithm.initial_state(Randomness(0))
    state, report = running.run_round(start, 0)
    assert_same_state(replace(state, descent=start.descent), start)
    reasons = report.refused[0]
    assert "2 clients at the stage of masked vectors, and it needs 3" in reasons[0]


@pytest.mark.parametrize("stage", [None, "keys", "shares", "agreement", "unmasking"])
def test_bytes_down_count_a_message_once_for_whom_it_reached(stage: str | None) -> None:
    """Where a client is lost, what it was sent counts as not received: nobody can know."""
    config = tiny("fed-scan")

    def loses(at: str, client: int) -> bool:
        return at == stage and client == 2

    running = federation(config, True, loses)
    state = running.algorithm.initial_state(Randomness(0))
    received = 0
    deliver = running.transport.deliver

    def watched(task: Task, message: object, members: Sequence[Member]) -> Iterator[Reply]:
        nonlocal received
        for reply in deliver(task, message, members):
            if stage is None or not (task.exchange.endswith(stage) and reply.client == 2):
                received += count_bytes(pack(part_for(message, reply.client)))
            yield reply

    running.transport.deliver = watched  # type: ignore[method-assign]
    _, report = running.run_round(state, 0)
    assert report.bytes_down == received


BY_SUMS = {"fed-scan", "fed-emp", "feddp-kmeans", "fed-km", "fed-fcm", "fed-em"}
CANNOT = sorted(set(METHODS.own()) - BY_SUMS)


@pytest.mark.parametrize("method", CANNOT)
def test_systems_that_are_no_sums_say_so(method: str) -> None:
    config = tiny(method, {"privacy": {"secure_sums": True}, "data": {"images": 100}})
    with pytest.raises(UsageError) as caught:
        clustering_run(config)
    line = (
        rf"privacy\.secure_sums: in {re.escape(method)}'s exchange '[\w -]+' the server needs each "
    )
    assert re.match(rf"{line}client's part '[\w/]+', and not the sum", str(caught.value))
    assert "\n" not in str(caught.value)


def private(*more: Tree, **privacy: object) -> ClusteringRun:
    tree: Tree = {"data": {"images": 100}, "partition": {"clients": 4}, "privacy": privacy}
    return clustering_run(tiny("fed-scan", tree, ALONE, *more))


@needs_accountant
@pytest.mark.parametrize(
    ("privacy", "reason", "more"),
    [
        ({"secure_sums": True, "threshold": 5}, "privacy.threshold = 5 is more than the 4", {}),
        ({"level": "client", "epsilon": 0}, "privacy.epsilon = 0 is refused", {}),
        ({"level": "client", "epsilon": -1}, "privacy.epsilon = -1 is refused", {}),
        ({"level": "client", "clip": 0}, "privacy.clip = 0 is refused", {}),
        ({"level": "client", "delta": 1}, "privacy.delta = 1 is refused", {}),
        ({"level": "client", "epsilon": 0.1, "noise": 0.5}, "does not allow one round", {}),
        ({"level": "client", "noise": 1e200}, "privacy.noise = 1e+200 is refused", {}),
        ({"level": "client", "noise": 1e-200}, "privacy.noise = 1e-200 is refused", {}),
        ({"level": "client", "clips": {"sum": 1}}, "privacy.clips has a bound of 'sum'", {}),
        ({"level": "client", "clips": {"gradient/x": 1}}, "has a bound of 'gradient/x'", {}),
        ({"level": "friends"}, "privacy.level = friends is refused", {}),
        ({"bits": 32, "fraction_bits": 31}, "leaves none before the point", {}),
        ({"bits": 32, "secure_sums": True, "level": "image"}, "beyond their bounds; give 64", {}),
        ({"secure_sums": True, "threshold": 4, "level": "client"}, "fewer than the 4 it needs", {}),
        ({"secure_sums": True, "level": "image", "colluders": 2}, "colluders = 2 is too", {}),
        (
            {"secure_sums": True, "level": "image", "noise": 1e-7, "epsilon": 1e18},
            "too little for",
            {},
        ),
        ({"secure_sums": True}, "a sum of one is its summand", {"partition": {"clients": 1}}),
        (
            {"level": "client"},
            "a round has fewer than the 1 it needs too often",
            {"availability": {"sample_fraction": 0.5}},
        ),
        (
            {"level": "image"},
            "set scan.pairs=views and scan.overclustering=1",
            {"scan": {"pairs": "neighbours", "overclustering": 2}},
        ),
    ],
)
def test_bad_input_has_one_line(privacy: Mapping[str, object], reason: str, more: Tree) -> None:
    with pytest.raises(UsageError) as caught:
        private(more, **privacy)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def level_of(experiment: ClusteringRun) -> Level:
    assert experiment.protection is not None
    assert experiment.protection.mechanism is not None
    return experiment.protection.mechanism


@needs_accountant
@pytest.mark.parametrize("level", ["client", "image"])
def test_a_run_ends_with_its_budget_and_its_ledger_never_forgets(
    level: str, tmp_path: Path
) -> None:
    noise = level_of(private(level=level, epsilon=50.0)).budget.noise
    # The same noise and less of a budget: the first of two rounds, and not the second.
    short = private(level=level, epsilon=45.0, noise=noise)
    running, guard = short.federation(), level_of(short)
    guard.open(tmp_path / "privacy.jsonl")
    rounds = [report for _, report in running.run(short.algorithm.initial_state(short.randomness))]
    assert len(rounds) == 1
    assert 0 < rounds[0].figures["epsilon"] == guard.budget.spent <= 45.0
    again = private(level=level, epsilon=45.0, noise=noise)
    resumed = level_of(again)
    resumed.open(tmp_path / "privacy.jsonl")
    assert resumed.budget.spent == guard.budget.spent
    assert again.federation().is_over(again.algorithm.initial_state(again.randomness), 0)
    assert again.protection is not None
    again.protection.open(tmp_path / "gone.jsonl", goes_on=False)
    with pytest.raises(UsageError, match=r"gone\.jsonl is gone, so that what the run has spent"):
        again.protection.open(tmp_path / "gone.jsonl", goes_on=True)


MARK = 0.375


class Watched:
    """A stage behind sums that have marks in place of noise: it looks for any other number."""

    def __init__(self, share: float, images: float) -> None:
        self.share = share
        self.images = images
        self.seen: set[str] = set()

    def deliver(self, request: ExchangeRequest, inner: Deliver) -> Iterator[Reply]:
        before = pack(request.message)
        for reply in inner(request):
            assert reply.noised
            for name, tensor in pack(reply.update).items():
                kind, _, _ = name.partition("/")
                expected = torch.full_like(tensor, MARK)
                if isinstance(find_part(request.exchange.parts, name), Mean):
                    floats = before[name].is_floating_point()
                    expected = before[name] + self.share if floats else before[name]
                elif kind == "samples":
                    expected = torch.full_like(tensor, 4)
                elif kind == "images":
                    expected = torch.full_like(tensor, self.images)
                message = f"{request.exchange.name}: {name}"
                torch.testing.assert_close(tensor, expected, msg=message)
                self.seen.add(kind)
            yield reply


STEPS = {"sums", "slopes", "gradient", "figures", "counts"}
MERGING = STEPS | {"neighbours", "holders"}
MOMENTS = {"moments", "images", "sums", "counts"}
LLOYD = {"sums", "squares", "counts"}
COVERED = [(name, "client", MERGING) for name in CAN]
COVERED[3:] = [(name, "client", MERGING | {"model", "samples"}) for name in list(CAN)[3:5]]
COVERED.append(("feddp-kmeans", "client", MOMENTS))


@needs_accountant
@pytest.mark.parametrize(
    ("name", "level", "kinds", "noise_at"),
    [
        *((*each, None) for each in COVERED),
        ("fed-scan", "image", STEPS, None),
        ("fed-scan", "image", STEPS, "server"),
        ("fed-scan", "image", STEPS, "clients"),
        ("ccfc++, synchronised", "image", STEPS, None),
        ("ccfc++, synchronised", "image", STEPS, "clients"),
        ("ccfc++, local", "client", COVERED[3][2], "clients"),
        ("feddp-kmeans", "image", MOMENTS, None),
        ("feddp-kmeans", "client", MOMENTS, "clients"),
        ("fed-km", "client", LLOYD, None),
        ("fed-km", "image", LLOYD, None),
        ("fed-fcm", "image", LLOYD, "clients"),
        ("fed-em", "client", LLOYD, None),
        ("fed-emp", "client", LLOYD | {"gradient", "figures"}, None),
    ],
)
def test_every_tensor_of_every_update_goes_through_the_mechanism(
    name: str,
    level: str,
    kinds: set[str],
    noise_at: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What reaches the server's work is made of noised totals alone, number by number.

    Of a mean the change of the model is the mark by four clients. How many they are is public, and
    so is the number of their images where images are protected.
    """
    method, tree = CAN[name]
    if level == "image" and "scan" in METHODS[method].sections:
        tree = merge(tree, ALONE)
    sums = {"secure_sums": True, "noise_at": noise_at} if noise_at else {}
    privacy = {"level": level, "epsilon": 1e4, "noise": 5.0, **sums}
    small: Tree = {"data": {"images": 100}, "partition": {"clients": 4}, "privacy": privacy}
    experiment = clustering_run(tiny(method, tree, small))

    def marked(what: object, totals: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: torch.full_like(total, MARK) for name, total in totals.items()}

    if noise_at == "clients":
        monkeypatch.setattr(OwnNoise, "scaled", marked)
    else:
        monkeypatch.setattr(level_of(experiment), "published", marked)
    assert experiment.protection is not None
    plain = experiment.federation()
    watched = Watched(MARK / 4, 4 if level == "client" else 100)
    running: Federation[Any, Any] = Federation(
        experiment.system, experiment.algorithm, experiment.members, experiment.availability,
        experiment.randomness, plain.transport, [experiment.protection.stage, watched],
        plain.guard,
    )  # fmt: skip
    for _, report in running.run(experiment.algorithm.initial_state(experiment.randomness)):
        assert not report.refused
    assert watched.seen == kinds


@needs_accountant
@pytest.mark.parametrize(("clients", "epsilon", "drowned"), [(3, 1.0, True), (60, 100.0, False)])
def test_a_run_says_where_noise_drowns_all_clients(
    clients: int, epsilon: float, drowned: bool
) -> None:
    private: Tree = {
        "clusters": 3,
        "partition": {"kind": "iid", "clients": clients},
        "privacy": {"level": "client", "epsilon": epsilon},
    }
    protection = clustering_run(tiny("feddp-kmeans", private)).protection
    assert protection is not None
    assert isinstance(protection.mechanism, ClientLevel)
    said = " ".join(protection.header())
    assert ("as much noise as all clients of a round can send together" in said) == drowned
    assert (protection.mechanism.budget.noise >= clients) == drowned


def test_a_mean_with_noise_has_a_fixed_divisor_and_no_losses() -> None:
    """Of local steps the change of the model alone goes up, whoever takes part."""
    from ccfcpp.clustering.systems.ccfc.messages import TrainingUpdate, local_training_exchange

    exchange = local_training_exchange("training", with_centroids=False)
    model = {"w": torch.ones(2), "bn.num_batches_tracked": torch.tensor(3)}
    addition = Addition(exchange, EncoderState(model), alike=True)
    changed = {"w": torch.tensor([2.0, 1.0]), "bn.num_batches_tracked": torch.tensor(9)}
    parts = addition.parts(TrainingUpdate(changed, 17, loss=5.0))
    assert parts.keys() == {"model/w"}
    form = format_of(pack(TrainingUpdate(changed, 17, loss=5.0)))
    whole = addition.whole(form, parts, contributors=4.0)
    assert isinstance(whole, TrainingUpdate)
    assert whole.model["w"].tolist() == [1.25, 1.0]
    assert whole.loss is None
    assert whole.samples == 4
    assert int(whole.model["bn.num_batches_tracked"]) == 3


def test_images_are_drawn_each_by_itself_and_not_from_the_seed() -> None:
    bounding = bounding_of(PrivacyConfig(level="image"))
    assert bounding is not None
    draws = [bounding.select_images(1000, 200.0, 0, Randomness(0)) for _ in range(50)]
    sizes = torch.tensor([len(draw) for draw in draws], dtype=torch.float64)
    assert abs(float(sizes.mean()) - 200) < 10
    assert float(sizes.std()) > 5  # a batch of fixed size would not do
    assert len({tuple(draw.tolist()) for draw in draws}) == 50


@needs_accountant
@pytest.mark.parametrize("precision", ["full", "bfloat16"])
def test_one_image_changes_what_its_client_sends_by_its_bound_at_most(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each trip of a step: clients with and without one image, all of whose images are drawn."""
    tree: Tree = {"scan": {"batch": 1000, "precision": precision}}
    draw = Views.draw

    def constant(views: Views, count: int, generator: torch.Generator) -> torch.Tensor:
        return torch.full((len(draw(views, 1, generator)), count), 0.3)

    monkeypatch.setattr(Views, "draw", constant)
    experiment = private(tree, level="image", epsilon=100.0, clip=0.01, reproducible_noise=True)
    state = experiment.algorithm.initial_state(experiment.randomness)
    images, samples = experiment.clients[0].images, len(experiment.data)
    clients = [Client(0, "a", images), Client(0, "a", images[:-1])]
    bounding = bounding_of(experiment.setting.privacy)
    sides = [
        experiment.algorithm.client_side(ClientContext.of([c], bounding=bounding)) for c in clients
    ]
    works = experiment.algorithm.exchanges(0, state)
    step = works[: 1 + next(i for i, work in enumerate(works[1:]) if not work.exchange.follows)]
    assert len(step) == 4
    for index, work in enumerate(step):
        task = Task("fed-scan", work.exchange.name, 0, index)
        message, randomness = work.broadcast(state), experiment.randomness.at_round(0)
        one, other = (
            side.works[work.exchange.name].local_updates(task, message, [client], randomness)[0]
            for side, client in zip(sides, clients, strict=True)
        )
        sent, without = pack(one), pack(other)
        changes = {name: part.double() - without[name].double() for name, part in sent.items()}
        for group, names in group_names(work.exchange.parts, changes).items():
            norm = float(sum(changes[name].square().sum() for name in names)) ** 0.5
            bound = 0.01 if group.startswith("sums") else 0.01 / samples
            assert 0.5 * bound < norm <= bound * (1 + 1e-9), (index, group)
        state, _ = work.aggregate(state, [work.project_noisy(message, one)], randomness)


def test_a_sample_that_clients_see_hides_nobody() -> None:
    """In secure sums each client learns who else was asked."""
    pytest.importorskip("dp_accounting", reason="dp-accounting is an extra: ccfcpp[privacy]")
    algorithm = made(tiny("fed-scan"), samples=60)
    works = [algorithm.exchanges(0, algorithm.initial_state(Randomness(0)))]
    spent = {}
    for sums in (False, True):
        config = PrivacyConfig(level="client", noise=4.0, epsilon=1e6, secure_sums=sums)
        seen = ClientLevel(config, works, Randomness(0), sampled=0.3, clients=100_000)
        whole = ClientLevel(config, works, Randomness(0), sampled=1.0, clients=100_000)
        spent[sums] = seen.planned.spent / whole.planned.spent
    assert spent[False] < 0.8
    assert spent[True] == 1.0


@pytest.mark.parametrize(
    "path", sorted((preset_folder() / "private").glob("*.yaml")), ids=lambda p: p.stem
)
def test_every_private_preset_fits_its_system(path: Path) -> None:
    config = resolve(ClusterConfig, "cluster", read_yaml(path))
    side = 8 if config.dataset == "digits" else 28
    algorithm = make_algorithm(Problem(config, (1, side, side), 10, torch.device("cpu"), 70_000))
    works = algorithm.client_side(ClientContext(1000, 1, bounding_of(config.privacy))).works
    check_fits(config.privacy, config.method, [work.exchange for work in works.values()])
