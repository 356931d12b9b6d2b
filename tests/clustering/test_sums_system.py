"""Systems of three functions: those of docs/example beside the library's own, and mistakes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from strangers.fed_lloyd import FED_LLOYD, Centroids, Sums, has_converged, init, local, update
from strangers.fed_mixture import FED_MIXTURE
from torch import Tensor

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.kmeans.centroids import InitState
from ccfcpp.clustering.sums_system import SumsSystem
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import Task
from ccfcpp.engine.update_format import Count, Mean, Part, Sum
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.per_image_clipping import ImageBounding
from tests.support.clustering import clients_of_sizes, made, tiny
from tests.support.federation import CPU, federated, refusal

K = 4


def both(
    config: ClusterConfig, system: SumsSystem[Any, Any], clients: Sequence[Client], rounds: int
) -> tuple[list[Any], list[Any]]:
    """The states after each round of the library's system, and of another one on its setting."""
    samples = sum(map(len, clients))
    theirs = made(config, K, samples=samples)
    own = system.make(Problem(config, (1, 8, 8), K, CPU, samples))
    found = []
    for algorithm in (theirs, own):
        federation = federated(config.method, algorithm, clients, config.seed)
        state, states = algorithm.initial_state(federation.randomness), []
        for number in range(rounds):
            state, report = federation.run_round(state, number)
            assert not report.refused
            states.append(state)
        found.append(states)
    return found[0], found[1]


def test_lloyd_in_three_functions_is_fed_km_to_the_last_bit() -> None:
    clients, config = clients_of_sizes(60, 40, 30), tiny("fed-km", {"means": {"rounds": 9}})
    theirs, own = both(config, FED_LLOYD, clients, rounds=9)
    for wanted, found in zip(theirs, own, strict=True):
        assert torch.equal(found.centroids, wanted.centroids)
        assert found.moved == wanted.moved
    ours = FED_LLOYD.make(Problem(config, (1, 8, 8), K, CPU))
    for client in clients:
        wanted = made(config, K).assign(theirs[-1], client)
        assert torch.equal(ours.assign(own[-1], client), wanted)
    assert has_converged(own[-1]) == (own[-1].moved <= 1e-6)


def test_a_mixture_in_three_functions_is_fed_em() -> None:
    config = tiny("fed-em", {"mixture": {"covariance": "diag"}})
    clients = clients_of_sizes(60, 40, 30)
    theirs, own = both(config, FED_MIXTURE, clients, rounds=6)
    for wanted, found in zip(theirs, own[2:], strict=False):  # a first round of theirs has steps
        torch.testing.assert_close(found.centroids, wanted.centroids)
        torch.testing.assert_close(found.variances, wanted.covariances)
        torch.testing.assert_close(found.shares, wanted.weights)


def answered(context: ClientContext, client: Client, state: Centroids) -> Sums:
    """What a client answers."""
    algorithm = FED_LLOYD.make(Problem(tiny("fed-km"), (1, 8, 8), K, CPU, len(client)))
    work = algorithm.client_side(context).works["sums"]
    (found,) = work.local_updates(Task("", "sums", 1, 0), state, [client], Randomness(0))
    assert isinstance(found, Sums)
    return found


@pytest.fixture
def client() -> Client:
    return clients_of_sizes(80)[0]


@pytest.fixture
def state(client: Client) -> Centroids:
    """Some images for centroids."""
    flat = client.images[:K].flatten(1).double()
    return Centroids(flat / flat.norm(dim=1, keepdim=True))


def test_each_image_is_bounded_by_itself(client: Client, state: Centroids) -> None:
    context = ClientContext.of([client])
    whole = answered(context, client, state)
    assert whole.counts.sum() == len(client)

    def bounded(clip: float) -> Sums:
        bounding = ImageBounding(PrivacyConfig(level="image", clip=clip))
        return answered(replace(context, bounding=bounding), client, state)

    torch.testing.assert_close(bounded(100.0), whole)
    half = bounded(0.5)  # of images of length 1, which each count for at most 1
    torch.testing.assert_close(half, Sums(whole.sums / 2, whole.counts / 2))


def test_small_clusters_stay_with_the_client(client: Client, state: Centroids) -> None:
    whole = answered(ClientContext.of([client]), client, state)
    least = int(whole.counts.median()) + 1
    told = answered(ClientContext.of([client], least=least), client, state)
    enough = whole.counts >= least
    assert 0 < enough.sum() < K
    assert torch.equal(told.counts, whole.counts * enough)
    assert torch.equal(told.sums, whole.sums * enough.unsqueeze(1))


def test_the_server_refuses_what_cannot_be(state: Centroids) -> None:
    algorithm: Any = FED_LLOYD.make(Problem(tiny("fed-km"), (1, 8, 8), K, CPU, 80))
    right = Sums(torch.zeros(K, 64).double(), torch.full((K,), 5.0).double())
    assert refusal(algorithm, state, right, 20) is None
    assert "counts 20 samples" in str(refusal(algorithm, state, right, 10))
    far = replace(right, sums=right.sums + 1e40)
    assert "points in 'sums' lie beyond 1e+15" in str(refusal(algorithm, state, far, 20))
    noisy = algorithm.project_noisy(state, replace(right, counts=-right.counts))
    assert torch.equal(noisy.counts, 0 * right.counts)


def test_what_follows_from_the_functions() -> None:
    assert (FED_LLOYD.rounds, FED_LLOYD.soft, FED_LLOYD.ignores) == ("sums.rounds", False, ())
    assert {*FED_LLOYD.sections} == {"pixels", "sums"}
    assert (FED_MIXTURE.rounds, FED_MIXTURE.soft) == ("mix.rounds", True)
    assert FED_MIXTURE.ignores == ("pixels.assignment",)
    assert {*FED_MIXTURE.sections} == {"pixels", "mix"}
    other = replace(FED_MIXTURE, title="Other")
    assert (other.title, other.sections) == ("Other", FED_MIXTURE.sections)


@dataclass(frozen=True)
class Numbers:
    number: int


@dataclass(frozen=True)
class NoCentroids:
    sums: Tensor


def without_them(problem: Problem, randomness: Randomness) -> NoCentroids:
    raise NotImplementedError


def numbers(state: InitState, points: Tensor) -> Numbers:
    raise NotImplementedError


def nameless(state: InitState, points: Tensor):  # type: ignore[no-untyped-def]
    raise NotImplementedError


COUNT: dict[str, Part] = {"count": Count()}


@pytest.mark.parametrize(
    ("first", "sums", "parts", "complaint"),
    [
        (init, nameless, {}, r"local\(\) must say which dataclass it returns, as in -> State"),
        (init, lambda state, points: state, {}, r"local\(\) must say which dataclass it returns"),
        (init, numbers, {}, r"field 'number' of Numbers, which local\(\) returns, is no Tensor"),
        (without_them, local, {}, r"NoCentroids, which init\(\) returns, has no centroids"),
        (init, local, COUNT, r"Sums, which local\(\) returns, has no field 'count', which parts"),
        (init, local, {"sums": Sum(count="n")}, "Sums, .* no field 'n', .*: it has sums, counts"),
        (init, local, {"sums": Mean("counts")}, r"parts may be Sum\(\) and Count\(\) alone"),
    ],
)
def test_functions_that_do_not_fit_are_refused(
    first: Callable[..., Any], sums: Callable[..., Any], parts: dict[str, Part], complaint: str
) -> None:
    with pytest.raises(UsageError, match=f"^Test: {complaint}"):
        SumsSystem(first, sums, update, title="Test", parts=parts)


def halved(state: Centroids, points: Tensor) -> Sums:
    found = local(state, points)
    return replace(found, sums=found.sums / len(points))


def forgets(state: Centroids, total: Sums) -> Centroids:
    return None  # type: ignore[return-value]


def spoils(state: Centroids, total: Sums) -> Centroids:
    return Centroids(total.sums / 0)


@pytest.mark.parametrize(
    ("sums", "step", "complaint"),
    [
        (halved, update, r"local\(\) of two points is not the sum of local\(\) of each in 'sums'"),
        (local, forgets, r"update\(\) fails \(TypeError: it returns a NoneType, and says Centr"),
        (local, spoils, r"update\(\) fails \(ValueError: centroids holds NaN or Inf\): mend its"),
    ],
)
def test_functions_that_give_what_cannot_be_are_named(
    state: Centroids,
    client: Client,
    sums: Callable[[Centroids, Tensor], Sums],
    step: Callable[[Centroids, Sums], Centroids],
    complaint: str,
) -> None:
    system = SumsSystem(init, sums, step, title="Test")
    algorithm = system.make(Problem(tiny("fed-km"), (1, 8, 8), K, CPU, len(client)))
    with pytest.raises(UsageError, match=f"^Test: {complaint}"):
        federated("test", algorithm, [client]).run_round(state, 1)
