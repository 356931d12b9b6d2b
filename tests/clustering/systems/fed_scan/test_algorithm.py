"""A step of Fed-SCAN is the centralised step over the union of all batches, for every p."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.systems.fed_scan.clients import SumTransitions
from ccfcpp.clustering.systems.fed_scan.merging import FOLDS, merge_overclusters, mutual_information
from ccfcpp.clustering.systems.fed_scan.messages import Transitions
from ccfcpp.clustering.systems.fed_scan.server import trains_merged
from ccfcpp.core.errors import FederationError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import AbsentClientError, Task
from ccfcpp.engine.federation import Federation
from ccfcpp.engine.transport import Reply
from tests.support.scan import (
    CLUSTERS,
    LaggedLoop,
    OneByOne,
    PlainLoop,
    RememberingLoop,
    algorithm_for,
    last_state,
    skewed_clients,
    small_config,
    together,
)


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Parameters, and the running statistics of the latents."""
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("optimizer", ["adam", "muon"])
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_twenty_steps_are_those_of_a_plain_loop_over_mixed_batches(
    p: float, optimizer: str
) -> None:
    config, clients = small_config(f"scan.optimizer={optimizer}"), skewed_clients(p)
    assert len({len(client) for client in clients}) == len(clients)
    start = algorithm_for(config, clients).initial_state(Randomness(config.seed))
    expected = PlainLoop(config, clients, sum(map(len, clients))).run(start)
    state = last_state(config, clients, together(config, clients))
    assert state.version == 20
    assert_same(state.model, expected)
    moved = max(float((expected[name] - start.model[name]).abs().max()) for name in expected)
    assert moved > 0.01


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("first", ["centred", "gradients"])
def test_views_by_intensity_and_other_first_neighbours_are_those_of_the_loop(first: str) -> None:
    config = small_config(
        f"scan.first_neighbours={first}", "intensity.gamma=0.8", "intensity.erase=0.6"
    )
    clients = skewed_clients(0.5)
    start = algorithm_for(config, clients).initial_state(Randomness(config.seed))
    expected = PlainLoop(config, clients, sum(map(len, clients))).run(start)
    assert_same(last_state(config, clients, together(config, clients)).model, expected)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("normalisation", ["batch", "layer"])
def test_several_pairs_of_an_image_and_either_normalisation_are_those_of_the_loop(
    normalisation: str,
) -> None:
    config = small_config("scan.pairs_each=3", f"scan.normalisation={normalisation}")
    clients = skewed_clients(0.5)
    algorithm = algorithm_for(config, clients)
    start = algorithm.initial_state(Randomness(config.seed))
    expected = PlainLoop(config, clients, sum(map(len, clients))).run(start)
    assert_same(last_state(config, clients, together(config, clients)).model, expected)
    assert_same(last_state(config, clients, OneByOne(config, clients)).model, expected)
    # Without statistics of latents: the mean prediction, and the gradient.
    trips = 4 if normalisation == "batch" else 2
    assert len(algorithm.exchanges(0, start)) == 5 * trips


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("p", [0.0, 1.0])
def test_overclusters_are_merged_by_the_neighbours_of_all_clients(p: float) -> None:
    merge = "scan.overclustering=3", "scan.merge=information"
    config, clients = small_config(*merge), skewed_clients(p)
    algorithm = algorithm_for(config, clients)
    start = algorithm.initial_state(Randomness(config.seed))
    loop = PlainLoop(config, clients, sum(map(len, clients)))
    expected = loop.run(start)
    state = last_state(config, clients, OneByOne(config, clients))
    assert_same(state.model, expected)
    assert state.groups.shape == (3 * CLUSTERS,)
    transitions = loop.transitions()
    joint = (transitions + transitions.mT) / (2 * transitions.sum(dim=(1, 2), keepdim=True))
    joint = joint.mean(dim=0, keepdim=True)
    generator = torch.Generator().manual_seed(9)
    reached, best = (
        mutual_information(joint, groups, CLUSTERS)
        for groups in (
            state.groups,
            merge_overclusters(transitions, CLUSTERS, generator, "information"),
        )
    )  # fmt: skip
    assert reached == pytest.approx(best, rel=0.02)
    # After steps 8 and 16, where neighbours are found again, and in the end.
    names = [
        [work.exchange.name for work in algorithm.exchanges(number, start)]
        for number in range(algorithm.rounds)
    ]
    assert [found.count("transitions") for found in names] == [0, 1, 0, 2]
    assert names[-1][-2:] == ["transitions", "centres"]
    together_ = last_state(config, skewed_clients(p), together(config, skewed_clients(p)))
    assert torch.equal(together_.groups, state.groups)


@pytest.mark.usefixtures("double_precision")
def test_clusters_are_trained_as_the_last_merge_has_them() -> None:
    """From step 8 on, where the first of the merges is that count; in one process or several."""
    config, clients = small_config("scan.overclustering=2", "scan.merged_from=0.4"), skewed_clients
    whole = last_state(config, clients(0.5), together(config, clients(0.5)))
    alone = last_state(config, clients(0.5), OneByOne(config, clients(0.5)))
    assert_same(alone.model, whole.model)
    shares, groups = (whole.model[f"merge.{name}"] for name in ("shares", "groups"))
    assert sorted(groups.unique().tolist()) == list(range(CLUSTERS))
    assert float(shares[:CLUSTERS].sum()) == pytest.approx(1)
    assert shares[CLUSTERS:].tolist() == [1.0] * CLUSTERS
    off = small_config("scan.overclustering=2")
    plain = last_state(off, clients(0.5), together(off, clients(0.5)))
    assert "merge.groups" not in plain.model
    # Up to the first merge that counts nothing is different.
    late = small_config("scan.overclustering=2", "scan.merged_from=0.9")
    same = last_state(late, clients(0.5), together(late, clients(0.5)))
    assert all(torch.equal(same.model[name], part) for name, part in plain.model.items())
    moved = whole.model["encoder.0.weight"] - plain.model["encoder.0.weight"]
    assert float(moved.abs().max()) > 0


def test_a_merge_without_all_clients_is_tried_again() -> None:
    """Client 2 is away when over-clusters are merged after steps 8 and 9."""
    settings = "scan.overclustering=2", "scan.merged_from=0.4", "scan.steps_per_round=1"
    config, clients = small_config(*settings), skewed_clients(0.5)
    asked: list[int] = []

    class Away(OneByOne):
        def deliver(
            self, task: Task, message: object, members: Sequence[Member]
        ) -> Iterator[Reply]:
            if task.exchange == "transitions":
                asked.append(task.round + 1)
            for reply in super().deliver(task, message, members):
                away = task.exchange == "transitions" and reply.client == 2 and task.round < 9
                yield replace(reply, update=AbsentClientError("away")) if away else reply

    algorithm = algorithm_for(config, clients)
    members = [client.member for client in clients]
    federation = Federation(
        "fed-scan", algorithm, members, Availability(), Randomness(0), Away(config, clients)
    )
    start = algorithm.initial_state(Randomness(0))
    trained = [trains_merged(state.model) for state, _ in federation.run(start)]
    assert trained == [False] * 9 + [True] * 11
    assert asked == [8, 9, 10, 16, 20]


@pytest.mark.usefixtures("double_precision")
def test_where_k_is_to_be_found_the_sums_of_folds_are_those_of_all_images() -> None:
    config, clients = small_config("clusters=2-4", "scan.steps=8"), skewed_clients(0.5)
    algorithm = algorithm_for(config, clients)
    assert algorithm.overclusters == 2 * CLUSTERS
    state = last_state(config, clients, OneByOne(config, clients))
    work = algorithm.client_side(ClientContext.of(clients)).works["transitions"]
    assert isinstance(work, SumTransitions)
    task = Task("fed-scan", "transitions", 0, 0)
    sums = work.local_sum(task, EncoderState(state.model, state.version), clients, Randomness(0))
    assert sums.neighbours.shape == (FOLDS, 8, 8)
    loop = PlainLoop(small_config("scan.overclustering=2", "scan.neighbours=24"), clients, 0)
    loop.network.load_state_dict(state.model)
    expected = torch.zeros(8, 8)
    for client in clients:
        latents = loop.latents(client)
        p = loop.network.head(latents).softmax(dim=1).detach()
        for own, others in enumerate(loop.nearest(latents).tolist()):
            for width in (3, 6, 12, 24):
                expected += torch.outer(p[own], p[others[:width]].mean(dim=0)) / 4
    torch.testing.assert_close(sums.neighbours.sum(dim=0), expected)


def test_an_over_cluster_of_fewer_images_than_allowed_adds_nothing_to_a_fold() -> None:
    config, clients = small_config("clusters=2-4", "scan.steps=8"), skewed_clients(0.5)
    algorithm = algorithm_for(config, clients)
    state = algorithm.initial_state(Randomness(0))
    task, message = Task("fed-scan", "transitions", 0, 0), EncoderState(state.model, 0)
    client = Client(0, "all", torch.cat([own.images for own in clients]))
    works = algorithm.client_side(ClientContext(len(client), 1)).works
    pairs = works["transitions"].local_sum(task, message, [client], Randomness(0))
    assert isinstance(pairs, Transitions)
    # Each image adds 1 to its fold, spread over the rows as over the over-clusters.
    sizes = pairs.neighbours.sum(dim=2)
    least = int(sizes.flatten().sort().values[-4])
    assert least > 1
    context = ClientContext(len(client), 1, least=least)
    work = algorithm.client_side(context).works["transitions"]
    assert isinstance(work, SumTransitions)
    told = work.local_sum(task, message, [client], Randomness(0)).neighbours.sum(dim=2)
    torch.testing.assert_close(told, torch.where(sizes < least, 0, sizes))
    assert 0 < int((told > 0).sum()) < told.numel()
    few = replace(work, context=replace(context, least=len(client) + 1))
    assert not few.local_sum(task, message, [client], Randomness(0)).holders.any()


@pytest.mark.usefixtures("double_precision")
def test_the_number_found_depends_on_no_order_and_no_process() -> None:
    config = small_config("clusters=2-4", "scan.steps=10")
    first, *others = (
        last_state(config, clients, transport(config, clients))
        for clients, transport in (
            (skewed_clients(0.5), OneByOne),
            (skewed_clients(0.5), together),
            (skewed_clients(0.5)[::-1], together),
        )
    )
    assert first.evidence.shape == (3,)
    k = 2 + int(first.evidence.argmax())
    assert int(first.groups.max()) + 1 == k
    assert first.centroids.shape == (k, 10)
    for state in others:
        torch.testing.assert_close(state.evidence, first.evidence)
        assert torch.equal(state.groups, first.groups)


def test_a_cluster_is_as_likely_as_its_overclusters_together() -> None:
    config, clients = small_config("scan.overclustering=2"), skewed_clients(0.5)
    algorithm = algorithm_for(config, clients)
    state = last_state(config, clients, together(config, clients))
    p = algorithm.space.predictions(state, clients[0])
    sums = torch.stack([p[:, state.groups == cluster].sum(dim=1) for cluster in range(CLUSTERS)], 1)
    torch.testing.assert_close(sums.sum(dim=1), torch.ones(len(p)))
    assert torch.equal(algorithm.assign(state, clients[0]), sums.argmax(dim=1))


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("batch", [40, 41])
def test_lagged_steps_are_those_of_a_loop_with_the_step_before(batch: int) -> None:
    config = small_config("scan.lagged=true", f"scan.batch={batch}")
    clients = skewed_clients(0.5)
    algorithm = algorithm_for(config, clients)
    start = algorithm.initial_state(Randomness(config.seed))
    expected = LaggedLoop(config, clients, sum(map(len, clients))).run(start)
    assert_same(last_state(config, clients, together(config, clients)).model, expected)
    alone = last_state(config, clients, OneByOne(config, skewed_clients(0.5)))
    assert_same(alone.model, expected)
    # The first step has none before it, and the last round ends with the centres.
    trips = [len(algorithm.exchanges(number, start)) for number in range(algorithm.rounds)]
    assert trips == [4 + 4 * 2, 5 * 2, 5 * 2, 5 * 2 + 1]


@pytest.mark.usefixtures("double_precision")
def test_lagged_steps_may_begin_later() -> None:
    config = small_config("scan.lagged=true", "scan.exact_steps=7")
    clients = skewed_clients(0.5)
    algorithm = algorithm_for(config, clients)
    start = algorithm.initial_state(Randomness(config.seed))
    trips = [len(algorithm.exchanges(number, start)) for number in range(algorithm.rounds)]
    assert trips == [5 * 4, 2 * 4 + 3 * 2, 5 * 2, 5 * 2 + 1]
    loop = LaggedLoop(config, clients, sum(map(len, clients)))
    state = last_state(config, clients, together(config, clients))
    assert_same(state.model, loop.run(start))


def test_without_a_first_step_there_is_none_that_lags() -> None:
    config, clients = small_config("scan.lagged=true"), skewed_clients(0.5)
    algorithm = algorithm_for(config, clients)
    start = algorithm.initial_state(Randomness(config.seed))
    exact, lagged = algorithm.exchanges(0, start)[0], algorithm.exchanges(1, start)[0]
    assert exact.broadcast(start).totals == {}
    with pytest.raises(FederationError, match="no client completed a first step"):
        lagged.broadcast(start)


@pytest.mark.usefixtures("double_precision")
def test_an_absent_client_is_a_loop_without_its_images() -> None:
    config, clients = small_config(), skewed_clients(0.5)
    samples = sum(map(len, clients))
    start = algorithm_for(config, clients).initial_state(Randomness(config.seed))
    expected = PlainLoop(config, clients[1:], samples).run(start)
    state = last_state(config, clients, together(config, clients), absent=(0,))
    assert_same(state.model, expected)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("p", [0.0, 1.0])
def test_the_last_sums_of_absent_clients_count_on(p: float) -> None:
    """Eight rounds of three steps, in which each client is absent now and then."""
    settings = ("scan.mine_every=100", "scan.steps_per_round=3", "scan.steps=24")
    config, clients = small_config(*settings), skewed_clients(p)
    start = algorithm_for(config, clients).initial_state(Randomness(config.seed))
    loop = RememberingLoop(config, clients, sum(map(len, clients)))
    loop.availability = Availability(dropout_rate=0.4)
    rounds = [set(loop.absent(number)) for number in range(8)]
    assert set.union(*rounds) == {0, 1, 2, 3}
    assert {0, 1, 2, 3} not in rounds
    expected = loop.run(start)
    transport = together(config, clients, varies=True)
    state = last_state(config, clients, transport, loop.availability)
    assert_same(*({n: t for n, t in m.items() if "running" not in n and "num" not in n}
                  for m in (state.model, expected)))  # fmt: skip


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("p", [0.0, 1.0])
def test_clients_in_processes_of_their_own_make_the_same_steps(p: float) -> None:
    config, clients = small_config(), skewed_clients(p)
    availability = Availability(dropout_rate=0.2)
    alone = last_state(config, clients, OneByOne(config, skewed_clients(p)), availability)
    transport = together(config, skewed_clients(p), varies=True)
    side_by_side = last_state(config, clients, transport, availability)
    assert_same(alone.model, side_by_side.model)
    assert alone.centroids is not None
    assert side_by_side.centroids is not None
    torch.testing.assert_close(alone.centroids, side_by_side.centroids)


@pytest.mark.usefixtures("double_precision")
def test_clients_of_one_process_that_are_told_apart_make_the_same_steps() -> None:
    config = small_config()
    first, second = (
        last_state(config, clients, together(config, clients, merges))
        for merges, clients in ((True, skewed_clients(0.5)), (False, skewed_clients(0.5)))
    )
    assert_same(first.model, second.model)


def test_clients_told_apart_are_bit_for_bit_those_of_processes_of_their_own() -> None:
    config = small_config()
    apart = last_state(config, skewed_clients(0.5), OneByOne(config, skewed_clients(0.5)))
    clients = skewed_clients(0.5)
    here = last_state(config, clients, together(config, clients, merges=False))
    assert all(torch.equal(apart.model[name], here.model[name]) for name in apart.model)


@pytest.mark.usefixtures("double_precision")
def test_clients_that_seldom_have_a_turn_are_no_exception() -> None:
    """Twelve clients share a batch of 4 pairs: in most steps most have no image to show."""
    config = small_config("scan.batch=4")
    clients = skewed_clients(0.0, clients=12, images=200)
    alone = last_state(config, clients, OneByOne(config, clients))
    whole = last_state(config, clients, together(config, clients))
    assert_same(alone.model, whole.model)
