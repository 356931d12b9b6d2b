"""Fed-EMP, against the obvious loops, and in one place."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.kmeans.restarts import STEPS
from ccfcpp.clustering.systems.fed_emp.algorithm import FedEmp
from ccfcpp.clustering.systems.fed_emp.config import CropsConfig
from ccfcpp.clustering.systems.fed_emp.network import CropEncoder, crop_side
from ccfcpp.clustering.systems.fed_emp.steps import Crops
from ccfcpp.core.config import IntensityViewsConfig
from ccfcpp.core.config_layers import merge, parse_assignments, validate
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.intensity import draw_intensity, render_intensity
from ccfcpp.engine.client import Client
from ccfcpp.engine.payload import pack, unpack
from ccfcpp.engine.synchronised.descent import select_images
from ccfcpp.engine.synchronised.optimizers import Adam
from tests.support.federation import CPU, assert_same_bits, federated, over_a_wire
from tests.support.scan import OneByOne, last_state, skewed_clients, together

SMALL_WEIGHT = 20.0
SMALL = {
    "method": "fed-emp",
    "crops": {
        "steps": 6,
        "steps_per_round": 4,
        "batch": 20,
        "each": 3,
        "described_grid": 3,
        "widths": [8, 8, 16],
        "hidden": 12,
        "latent": 6,
        "weight": SMALL_WEIGHT,
        "gradients": "full",
    },
    "means": {"rounds": 3},
}


def some_images(count: int, channels: int, height: int, width: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = count, channels, height, width
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


CHANGES = IntensityViewsConfig(brightness=0.3, contrast=0.2)


def config_of(*settings: str) -> ClusterConfig:
    return validate(ClusterConfig, merge(SMALL, parse_assignments(settings)))


def algorithm_of(config: ClusterConfig, clients: list[Client]) -> FedEmp:
    fewest = config.fewest_clusters
    return FedEmp(Problem(config, (1, 8, 8), 4, CPU, sum(map(len, clients)), fewest))


def objective(z: Tensor, each: int, weight: float) -> Tensor:
    """−R(Z) − λ mean ⟨z, z̄⟩ of latents (images · each, d), crop by crop."""
    unit = [row / row.norm() for row in z]
    d = z.shape[1]
    outer = sum(torch.outer(row, row) for row in unit)
    assert isinstance(outer, Tensor)
    inside = torch.eye(d, dtype=z.dtype) + d / (len(unit) * 0.2) * outer
    rate = torch.linalg.eigvalsh(inside).log().sum() / 2
    agreement = z.new_zeros(())
    for first in range(0, len(unit), each):
        mean = torch.stack(unit[first : first + each]).mean(dim=0)
        for row in unit[first : first + each]:
            agreement = agreement + row @ mean / mean.norm()
    found: Tensor = -rate - weight * agreement / len(unit)
    return found


@settings(max_examples=10, deadline=None)
@given(st.integers(8, 13), st.integers(8, 13), st.sampled_from([1, 3]), st.integers(0, 1000))
def test_crops_are_parts_of_the_images(height: int, width: int, channels: int, seed: int) -> None:
    images = some_images(5, channels, height, width, seed)
    crops = Crops(IntensityViewsConfig(brightness=0.5), flip_probability=0.5)
    draws = crops.draw(5, torch.Generator().manual_seed(seed))
    assert len(draws) == 3 + len(draw_intensity(1, torch.Generator()))
    found, side = crops.render(images, draws), crop_side(height, width)
    several = crops.render(images, draws.repeat_interleave(2, dim=1))
    assert torch.equal(several, found.repeat_interleave(2, dim=0))
    for image, draw, crop in zip(images, draws.T, found, strict=True):
        top = math.floor(float(draw[0]) * (height - side + 1))
        left = math.floor(float(draw[1]) * (width - side + 1))
        part = image[:, top : top + side, left : left + side]
        part = part.flip(2) if float(draw[2]) < 0.5 else part
        changed = render_intensity(part[None] / 255, draw[3:, None], crops.intensity)
        torch.testing.assert_close(crop, changed[0])


class PlainSteps:
    """The steps in one place, with PyTorch's gradient; Adam alone moves."""

    def __init__(self, config: ClusterConfig, clients: list[Client]) -> None:
        self.config, self.clients = config.section(CropsConfig), clients
        self.crops = Crops(config.section(IntensityViewsConfig), 0.5)
        self.randomness = Randomness(config.seed)
        self.encoder = CropEncoder(self.config, (1, 8, 8))

    def run(self, model: dict[str, Tensor]) -> dict[str, Tensor]:
        self.encoder.load_state_dict(model)
        adam = torch.optim.Adam(self.encoder.parameters(), self.config.learning_rate)
        for step in range(self.config.steps):
            share = 0.5 + 0.5 * math.cos(math.pi * step / self.config.steps)
            adam.param_groups[0]["lr"] = self.config.learning_rate * share
            z = self.encoder(torch.cat([self.shown(step, each) for each in self.clients]))
            loss = objective(z, self.config.each, SMALL_WEIGHT)
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
        return self.encoder.state_dict()

    def shown(self, step: int, client: Client) -> Tensor:
        number = step // self.config.steps_per_round
        source = self.randomness.at_round(number).of_client(client.id)
        share = self.config.batch * len(client) / sum(map(len, self.clients))
        chosen = select_images(len(client), share, step, source)
        count = len(chosen) * self.config.each
        draws = self.crops.draw(count, source.generator(f"crops {step}"))
        return self.crops.render(client.images[chosen], draws)


def by_adam(algorithm: FedEmp) -> FedEmp:
    algorithm.phase.descent.optimizer = Adam(algorithm.phase.config.learning_rate)
    return algorithm


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("p", [0.0, 1.0])
def test_steps_are_those_of_one_place_for_every_partition(p: float) -> None:
    config, clients = config_of("crops.learning_rate=0.01"), skewed_clients(p)
    run = federated("fed-emp", by_adam(algorithm_of(config, clients)), clients)
    state: Any = run.algorithm.initial_state(Randomness(config.seed))
    start = state.preparation.model
    expected = PlainSteps(config, clients).run(start)
    for number in range(2):
        state, report = run.run_round(state, number)
        assert report.refused == {}
    assert state.preparation.version == 6
    for name, entry in expected.items():
        torch.testing.assert_close(state.preparation.model[name], entry, rtol=1e-6, atol=1e-8)
    assert float((expected["places.0.weight"] - start["places.0.weight"]).abs().max()) > 0.01


@pytest.mark.usefixtures("double_precision")
def test_clients_in_processes_of_their_own_make_the_same_steps() -> None:
    config, clients = config_of(), skewed_clients(0.5)
    one = last_state(config, clients, together(config, clients))
    other = last_state(config, clients, OneByOne(config, clients))
    for name, entry in one.preparation.model.items():
        found = other.preparation.model[name]
        torch.testing.assert_close(found, entry, rtol=1e-5, atol=1e-7)


@torch.no_grad()
def described(encoder: CropEncoder, images: Tensor) -> Tensor:
    """The mean latents over crops at nine places, each with its own change, as directions."""
    draws, parts = draw_intensity(9, torch.Generator().manual_seed(0)), []
    for draw, (top, left) in zip(draws.T, itertools.product((0, 1, 2), repeat=2), strict=True):
        crops = images[:, :, top : top + 6, left : left + 6] / 255
        changed = [render_intensity(crop[None], draw[:, None], CHANGES) for crop in crops]
        parts.append(encoder(torch.cat(changed)))
    return F.normalize(torch.stack(parts).mean(dim=0), dim=1)


@pytest.mark.usefixtures("double_precision")
def test_clusters_are_those_of_k_means_of_described_images() -> None:
    changes = [f"intensity.{name}={value}" for name, value in CHANGES.model_dump().items()]
    config, clients = config_of(*changes), skewed_clients(0.5)
    algorithm = algorithm_of(config, clients)
    run = federated("fed-emp", algorithm, clients)
    *_, (state, _) = run.run(algorithm.initial_state(Randomness(0)))
    images = clients[2].images
    encoder = CropEncoder(config.section(CropsConfig), (1, 8, 8))
    encoder.load_state_dict(state.preparation.model)
    every = torch.cat([described(encoder, each.images) for each in clients])
    latents = F.normalize(described(encoder, images) - every.mean(dim=0), dim=1)
    client = Client(2, "client 2", images)
    found = algorithm.represent(state, client)
    assert found is not None
    torch.testing.assert_close(found, latents, rtol=1e-4, atol=1e-5)
    nearest = torch.cdist(latents.double(), state.centroids.double()).argmin(dim=1)
    assert torch.equal(algorithm.assign(state, client), nearest)
    final_model: Any = unpack(algorithm.final_model_type, pack(algorithm.final_model(state)))
    again = algorithm.assign_by_model(final_model, Client(9, "new", images))
    assert torch.equal(again, nearest)


@pytest.mark.parametrize(("noisy", "starts", "tried"), [(False, 10, STEPS), (True, 1, 0)])
def test_ten_starts_are_tried_but_with_noise_one(noisy: bool, starts: int, tried: int) -> None:
    algorithm = FedEmp(Problem(config_of(), (1, 8, 8), 4, CPU, 60, noisy=noisy))
    plan = algorithm.plan(algorithm.initial_state(Randomness(0)))
    names = [work.exchange.name for works in plan for work in works]
    assert (algorithm.system.starts, names.count("trials")) == (starts, tried)


@pytest.mark.parametrize("other", [(), ("clusters=2-4",)])
def test_over_a_wire_every_bit_is_that_of_one_process(other: tuple[str, ...]) -> None:
    config = config_of("compute.precision=bfloat16", *other)
    whole = federated("fed-emp", algorithm_of(config, skewed_clients(0.5)), skewed_clients(0.5))
    here, there = (algorithm_of(config, skewed_clients(0.5)) for _ in range(2))
    wired = over_a_wire("fed-emp", here, there, skewed_clients(0.5))
    state = whole.algorithm.initial_state(Randomness(0))
    expected, found = list(whole.run(state)), list(wired.run(state))
    assert_same_bits(found, expected)
    assert not any(report.refused for _, report in found)


def test_a_state_that_was_packed_goes_on() -> None:
    config = config_of()
    algorithm = algorithm_of(config, skewed_clients(0.5))
    state: Any = algorithm.initial_state(Randomness(0))
    for number in range(4):
        whole, _ = federated("fed-emp", algorithm, skewed_clients(0.5)).run_round(state, number)
        again = unpack(algorithm.state_type, pack(state))
        state, _ = federated("fed-emp", algorithm, skewed_clients(0.5)).run_round(again, number)
        ours, theirs = pack(state), pack(whole)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert algorithm.knows_clusters(state)


def test_a_client_that_comes_late_knows_the_encoder() -> None:
    clients = skewed_clients(0.5)
    algorithm = algorithm_of(config_of(), clients)
    state: Any = algorithm.initial_state(Randomness(0))
    for number in range(3):
        state, _ = federated("fed-emp", algorithm, clients[:2]).run_round(state, number)
    state, report = federated("fed-emp", algorithm, skewed_clients(0.5)).run_round(state, 3)
    assert report.refused == {}
    assert len(report.clients) == 4


@pytest.mark.parametrize("lost", [0, 1])
def test_a_round_of_steps_that_is_lost_is_lost_alone(lost: int) -> None:
    """Nobody was there; the optimizer's state, which the last step would end, does not travel."""
    clients = skewed_clients(0.5)
    algorithm = algorithm_of(config_of(), clients)
    state: Any = algorithm.initial_state(Randomness(0))
    for number in range(algorithm.rounds):
        if number != lost:
            run = federated("fed-emp", algorithm, clients)
            state, report = run.run_round(state, number)
            assert report.refused == {}
    assert algorithm.knows_clusters(state)
    delivered = algorithm.final_model(state).preparation
    assert delivered is not None
    assert delivered.descent is None
    message = algorithm.exchanges(algorithm.rounds - 1, state)[0].broadcast(state)
    assert message.preparation.descent is None


def test_a_run_of_an_earlier_version_keeps_its_crops() -> None:
    tree = {"method": "fed-emp", "crops": {"grid": 4, "described_grid": 3, "steps": 7}}
    config = validate(ClusterConfig, tree)
    crops = config.section(CropsConfig)
    assert (crops.described_grid, crops.described_side, crops.steps) == (4, 0.5, 7)
    assert validate(ClusterConfig, config.model_dump()).section(CropsConfig) == crops


def test_too_many_halvings_are_refused() -> None:
    with pytest.raises(UsageError, match="halves crops of images of 8 by 8 pixels below one pixel"):
        algorithm_of(config_of("crops.widths=[8,8,8,8,8]"), skewed_clients(0.5))


def test_what_is_for_cuda_alone_is_refused() -> None:
    with pytest.raises(UsageError, match="tf32 is refused for fed-emp"):
        config_of("compute.precision=tf32")


def test_latents_of_rounded_convolutions_are_near() -> None:
    config = config_of().section(CropsConfig)
    torch.manual_seed(0)
    exact = CropEncoder(config, (3, 16, 16))
    rounded = CropEncoder(config, (3, 16, 16), torch.bfloat16)
    rounded.load_state_dict(exact.state_dict())
    images = torch.rand(20, 3, 16, 16)
    with torch.no_grad():
        one, other = exact(images), rounded(images)
    assert other.dtype == torch.float32
    assert not torch.equal(one, other)
    assert float(F.cosine_similarity(one, other).min()) > 0.99
