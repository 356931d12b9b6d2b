"""What a curious server cannot do to a client whose owner has written no rules."""

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.auto_settings import settings_over_a_network
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.preprocessing.make_algorithm import make_algorithm
from ccfcpp.clustering.preprocessing.phases import Prepared
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import flatten, nest, read_yaml, resolve
from ccfcpp.core.permissions import KINDS
from ccfcpp.core.presets import preset_file, preset_names
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.open import load
from ccfcpp.deployment.client.answered_requests import AnsweredRequests
from ccfcpp.deployment.client.local_randomness import LocalRandomness
from ccfcpp.deployment.client.rules import ForbiddenError, Rules
from ccfcpp.deployment.client.setting_bounds import refused_setting
from ccfcpp.deployment.link.messages import (
    MessageError,
    Request,
    Response,
    new_token,
    serialize,
)
from ccfcpp.deployment.link.packet import Packet, Undelivered
from ccfcpp.engine.synchronised.contract import StepMessage
from ccfcpp.privacy.sums.messages import Mail, WithMail
from scripts.curious import OPEN, Owner, count_recovered
from tests.deployment.test_experiment import experiment_on, grid_of, run
from tests.support.classification import labelled_clients
from tests.support.clustering import clients_of_sizes, made, tiny
from tests.support.deployment import RUN, spec_of, trusting, worker_of
from tests.support.federation import CPU

CAREFUL = Rules(allow=KINDS, smallest_count=0, accept=("all",))
"""Draws of the client's own, and each exchange once, of the small networks of tests."""


@pytest.mark.parametrize("clients", [1, 2])
def test_a_server_reads_no_image_from_sums(clients: int, tmp_path: Path) -> None:
    """It reads all of them where it knows the batches, also from sums over clients."""
    images, steps = load("digits").images[:17], 40

    def images_read(name: str, rules: Rules) -> int | None:
        return count_recovered(images, steps, Owner(name, rules), tmp_path / name, clients)

    assert images_read("open", OPEN) == len(images)
    # Two sums of few images may differ by one of them by chance; groups rule that out.
    own = OPEN.model_copy(update={"reproducible": False})
    assert images_read("own draws", own) != len(images)
    assert images_read("groups", OPEN.model_copy(update={"smallest_count": 5})) == 0
    assert images_read("both", own.model_copy(update={"smallest_count": 5})) == 0
    assert images_read("default", Rules()) is None


def test_what_a_client_draws_is_its_own(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    one, other = LocalRandomness(tmp_path / "one"), LocalRandomness(tmp_path / "other")
    again = LocalRandomness(tmp_path / "one")
    assert one.for_run(RUN) == again.for_run(RUN)
    assert one.grouping == again.grouping
    seeds = {source.seed for each in (one, other) for source in (each.for_run(RUN), each.grouping)}
    assert len(seeds | {one.for_run(new_token()).seed}) == 5
    assert (tmp_path / "one" / "secret").stat().st_mode & 0o777 == 0o600


def test_draws_do_not_follow_from_the_seed_unless_the_owner_allows_it(tmp_path: Path) -> None:
    owners = CAREFUL, CAREFUL, trusting(allow=KINDS, smallest_count=0)
    sums = [Asked(tmp_path / str(n), rules).step(0)[1] for n, rules in enumerate(owners)]
    assert len(set(sums)) == 3
    same = Asked(tmp_path / "same", trusting(smallest_count=0)).step(0)[1]
    assert same == sums[2]


class Asked:
    """A client that is asked for steps of Fed-SCAN by hand.

    Args:
        folder: Of its state.
        rules: Its owner's.
    """

    def __init__(self, folder: Path, rules: Rules) -> None:
        (client,) = clients_of_sizes(30)
        config = tiny("fed-scan")
        self.spec = spec_of(config, [client], clusters=3)
        self.worker = worker_of(client, folder)
        self.worker.rules = rules
        self.model = made(config, samples=30).initial_state(Randomness(0)).model

    def answers(self, round: int, **place: Any) -> tuple[str, str]:  # noqa: A002 - its name
        """Status and reason of the answer to the first trip of a round."""
        answer = self.step(round, **place)
        return answer[0].status, answer[0].reason

    def step(
        self,
        round: int,  # noqa: A002
        version: int | None = None,
        **place: Any,
    ) -> tuple[Response, bytes]:
        version = round + place.get("index", 0) if version is None else version
        request = Request(
            kind="work",
            run=place.pop("run", RUN),
            nonce=new_token(),
            spec=self.spec,
            exchange="step, trip 1",
            round=round,
            **place,
        )
        known = serialize(StepMessage(version, self.model))
        answer = self.worker.answer(Packet(request.to_json(), known))
        return Response.read_reply(request, answer.header), answer.payload


def test_each_exchange_is_answered_once_also_after_a_restart(tmp_path: Path) -> None:
    asked = Asked(tmp_path, CAREFUL)
    assert asked.answers(1) == ("done", "")
    again = Asked(tmp_path, CAREFUL)
    for client in (asked, again):
        assert client.answers(1)[1].startswith("it has answered this")
        assert client.answers(0)[1].startswith("it has answered this")
        assert client.answers(1, samples=99)[0] == "refused"
    assert again.answers(1, index=4) == ("done", "")
    assert again.answers(2, version=6) == ("done", "")
    assert again.answers(3, version=3)[0] == "refused", "this step has been before"
    assert again.answers(3, version=7) == ("done", "")
    assert again.answers(0, run="b" * 32) == ("done", "")


@pytest.mark.parametrize(
    "wrapped",
    [
        Prepared,
        lambda message: WithMail(message, Mail.of({}, {})),
        lambda message: WithMail(Prepared(message), Mail.of({}, {})),
    ],
)
def test_a_step_comes_once_whatever_its_message_comes_with(
    wrapped: Callable[[StepMessage], object], tmp_path: Path
) -> None:
    """The step of a table brings how its columns are prepared, and of a secure sum keys."""
    asked, answered = Asked(tmp_path, CAREFUL), AnsweredRequests(tmp_path)
    request = Request(kind="work", run=RUN, nonce=new_token(), spec=asked.spec, round=1)
    answered.record(request, wrapped(StepMessage(4, asked.model)))
    later = request.model_copy(update={"round": 2})
    answered.check(later, CAREFUL, wrapped(StepMessage(5, asked.model)))
    with pytest.raises(MessageError, match="it has answered this"):
        answered.check(later, CAREFUL, wrapped(StepMessage(4, asked.model)))


def test_a_server_that_was_started_again_may_repeat_what_was_lost(tmp_path: Path) -> None:
    asked = Asked(tmp_path, CAREFUL.model_copy(update={"restarts": 1}))
    first = asked.step(3)
    repeated = asked.step(3, session=1)
    assert repeated[0].status == "done"
    assert repeated[1] == first[1], "it draws the same"
    assert asked.answers(3, session=1)[0] == "refused"
    assert asked.answers(4, session=0)[0] == "refused"
    status, reason = asked.answers(4, session=2)
    assert status == "forbidden"
    assert "--restarts" in reason


def test_an_owner_sets_how_many_exchanges_a_run_may_have(tmp_path: Path) -> None:
    asked = Asked(tmp_path, CAREFUL.model_copy(update={"most_exchanges": 2}))
    assert [asked.answers(number)[0] for number in range(3)] == ["done", "done", "forbidden"]


@pytest.mark.parametrize(
    ("method", "changes", "asked"),
    [
        ("fed-scan", {"scan": {"widths": []}}, "scan.widths=[]"),
        ("fed-scan", {"scan": {"hidden": 9}}, "scan.hidden=9"),
        ("fed-scan", {"scan": {"learning_rate": 1e-30}}, "scan.learning_rate=1e-30"),
        ("fed-scan", {"affine": {"rotation": 0.0}}, "affine.rotation=0"),
        ("ccfc++", {"preset": "published", "views": {"area": [1.0, 1.0]}}, "views.area=[1,1]"),
        ("orchestra", {"views": {"rotation": 0.5}}, "views.rotation=0.5"),
        ("fed-emp", {"crops": {"widths": [8, 8]}}, "crops.widths=[8,8]"),
        ("orchestra", {"orchestra": {"latent": 4096}}, "orchestra.latent=4096"),
        ("orchestra", {"orchestra": {"learning_rate": 1e-9}}, "orchestra.learning_rate=1e-09"),
    ],
)
def test_settings_that_no_preset_has_are_for_the_owner_to_accept(
    method: str, changes: Tree, asked: str
) -> None:
    config = resolve(ClusterConfig, "cluster", {"method": method}, changes)
    clients = clients_of_sizes(30)
    with pytest.raises(ForbiddenError, match="no installed preset has") as error:
        Rules().check(spec_of(config, clients))
    assert str(error.value).endswith(f"(--accept {asked})")
    Rules(accept=(asked,)).check(spec_of(config, clients))
    Rules(accept=("all",)).check(spec_of(config, clients))


@pytest.mark.parametrize(
    "name", [n for n in preset_names() if n.startswith(("cluster/", "private/"))]
)
def test_presets_are_within_the_bounds_of_owners_without_rules(name: str) -> None:
    config = resolve(ClusterConfig, "cluster", read_yaml(preset_file(name)))
    assert refused_setting("cluster", config.model_dump(mode="json"), ()) is None


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_network_of_any_system_has_bounds_and_its_defaults_are_within(method: str) -> None:
    sections = METHODS[method].sections
    usual: Tree = {name: kind().model_dump(mode="json") for name, kind in sections.items()}
    assert refused_setting("cluster", {"method": method, **usual}, ()) is None
    resolved = resolve(ClusterConfig, "cluster", {"method": method}).model_dump(mode="json")
    assert refused_setting("cluster", resolved, ()) is None
    for key, value in flatten(usual):
        if key.rpartition(".")[2] in ("widths", "hidden", "latent", "learning_rate"):
            other: object = [7] if isinstance(value, list) else float(str(value)) / 1000
            assert refused_setting("cluster", {"method": method, **nest(key, other)}, ()), key


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 100, 70), (5,), (512,)])
@pytest.mark.parametrize("count", [30, 3000, 70_000])
def test_what_serve_chooses_by_the_data_is_within_them(shape: tuple[int, ...], count: int) -> None:
    config = resolve(ClusterConfig, "cluster", settings_over_a_network(count, shape))
    assert refused_setting("cluster", config.model_dump(mode="json"), ()) is None


@pytest.mark.parametrize(
    "method", ["fed-scan", "ccfc++", "k-fed", "fed-em", "fed-emp", "sda-fc-km"]
)
def test_whole_runs_need_no_answer_twice(method: str, tmp_path: Path) -> None:
    """With draws of their own, too, every client answers all, and gets the model."""
    config = tiny(method, {"clusters": 3, "device": "cpu"})
    grid = grid_of(labelled_clients(30, 20, 16), tmp_path)
    for worker in grid.workers.values():
        worker.rules = CAREFUL
    path = tmp_path / "run"
    summary = run(experiment_on(grid, config), path)
    rounds = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    assert not any(each.get("refused") for each in rounds)
    assert summary["without_model"] == {}


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize(
    ("method", "exchange", "numbers"),
    [
        *(("fed-scan", "step, trip 1", [2]), ("fed-scan", "step, trip 2", [2])),
        ("fed-emp", "crops, trip 1", [2]),
        # The last of their trainings, with another after it.
        *(("ccfc++", "step, trip 1", [5, 6]), ("ccfc++", "predictor step, trip 1", [2])),
    ],
)
def test_a_step_whose_answers_are_lost_does_not_end_a_run(
    method: str, exchange: str, numbers: list[int], sums: bool, tmp_path: Path
) -> None:
    """Clients have answered it, and do not answer it again: the server goes on to the next."""
    steps = {"steps": "synchronised", "pretraining": "neighbours", "predictor_steps": 2}
    settings = {"centroids": {"search": "lloyd"}, "training": steps} if method == "ccfc++" else {}
    both = {"clusters": 3, "device": "cpu", "privacy": {"secure_sums": sums}}
    config = tiny(method, both, settings)
    grid = grid_of(labelled_clients(30, 20, 16), tmp_path)
    asked = Counter[str]()

    def lost_once(name: str, packet: Packet) -> Packet | Undelivered:
        request = json.loads(next(sent for to, sent in grid.requests[::-1] if to == name).header)
        is_step = request.get("exchange") == exchange + " under masks" * sums
        asked[name] += is_step
        is_lost = is_step and asked[name] in numbers
        return Undelivered("its node has been started again") if is_lost else packet

    for name, worker in grid.workers.items():
        worker.rules = CAREFUL
        grid.tampering[name] = partial(lost_once, name)
    path = tmp_path / "run"
    summary = run(experiment_on(grid, config), path)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    absent = [line["absent"].keys() for line in lines if "absent" in line]
    assert absent == [{"0", "1", "2"}]
    assert not any("has answered this" in str(line["refused"]) for line in lines)
    assert lines[-1]["clients"] == [0, 1, 2]
    assert summary["without_model"] == {}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *(("cluster/cifar10", (3, 32, 32)), ("cluster/stl10", (3, 32, 32))),
        *(("cluster/mnist", (1, 28, 28)), ("cluster/digits", (1, 8, 8)), ("cluster/vectors", (9,))),
    ],
)
def test_whole_runs_of_presets_are_within_an_owners_number_of_exchanges(
    name: str, shape: tuple[int, ...]
) -> None:
    config = resolve(ClusterConfig, "cluster", read_yaml(preset_file(name)))
    algorithm = make_algorithm(Problem(config, shape, 10, CPU, 60_000, config.fewest_clusters))
    plan = algorithm.plan(algorithm.initial_state(Randomness(0)))
    assert sum(map(len, plan)) + 20 < Rules().most_exchanges
