"""The losses of synchronised steps against themselves written out over all pairs of all clients."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.systems.ccfc.config import LossConfig
from ccfcpp.clustering.systems.ccfc.network import ContrastiveModel
from ccfcpp.clustering.systems.ccfc.pooled_losses import contrast_program, siamese_program
from ccfcpp.engine.synchronised.contract import Contribution
from ccfcpp.engine.synchronised.tape import Tape
from ccfcpp.models.decorrelation import feddecorr
from ccfcpp.models.encoders import ConvBackbone, ResNet18Backbone
from ccfcpp.models.pooled import Program, updated_parameters
from ccfcpp.models.state import build
from tests.support.synchronised import driven

CLUSTERS = 3
SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=4).filter(lambda sizes: sum(sizes) > 2)
IDLE = {"backbone.0.bias", "projector.0.bias", "projector.3.bias", "predictor.0.bias"}
"""Biases that the batch normalisation behind them takes away."""


def model_of(seed: int) -> ContrastiveModel:
    generator = torch.Generator().manual_seed(seed)
    return build(lambda: ContrastiveModel(ConvBackbone((1, 4, 4), [3]), 6, 5, 4), generator)


def d(p: Tensor, z: Tensor) -> Tensor:
    return -F.cosine_similarity(p, z.detach(), dim=-1)


def covariance_term(z: Tensor) -> Tensor:
    return torch.cov(z.T).square().sum() / z.shape[1] ** 2


# The public code's has an oracle of its own.
TERMS: dict[str, Callable[[Tensor], Tensor]] = {
    "paper": covariance_term,
    "feddecorr": partial(feddecorr, scale="code"),
}
Scale = Literal["paper", "feddecorr"]
SCALES: st.SearchStrategy[Scale] = st.sampled_from(["paper", "feddecorr"])


def all_pairs(p: Tensor, z: Tensor, labels: Tensor, least: int, clusters: int = CLUSTERS) -> Tensor:
    terms = []
    for cluster in range(clusters):
        members = (labels == cluster).nonzero().flatten().tolist()
        if len(members) >= least:
            pairs = [d(p[i], z[j]) for i in members for j in members]
            terms.append(torch.stack(pairs).mean())
    return torch.stack(terms).mean() if terms else 0 * p.sum()


def assert_gradients(
    model: ContrastiveModel,
    loss: Tensor,
    programs: Callable[[Tensor], Program],
    parts: list[Tensor],
) -> None:
    """Of a step of several clients, and of the loss over all."""
    moved = updated_parameters(model)
    assert dict(model.named_parameters()).keys() - moved.keys() == IDLE
    wanted = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
    expected = dict(zip(dict(model.named_parameters()), wanted, strict=True))
    last, _ = driven(programs, parts, moved)
    assert float(last.figures["loss"]) == pytest.approx(loss.item(), abs=1e-9)
    for name, found in last.gradient.items():
        torch.testing.assert_close(found, expected[name], rtol=1e-6, atol=1e-8, msg=name)
    assert all(expected[name].abs().max() < 1e-9 for name in IDLE)


@pytest.mark.usefixtures("double_precision")
@given(
    SIZES, st.integers(0, 10**6), st.sampled_from([0.0, 0.4]), st.sampled_from([1, 2, 4]), SCALES
)
@settings(deadline=None, max_examples=40)
def test_cluster_contrast_is_the_mean_over_all_pairs_of_all_clients(
    sizes: list[int], seed: int, eta: float, least: int, scale: Scale
) -> None:
    model = model_of(seed)
    weights = LossConfig(eta=eta, min_cluster_size=least, scale=scale)
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(sum(sizes), 1, 4, 4, generator=generator)
    labels = torch.randint(CLUSTERS, (sum(sizes),), generator=generator)
    parts = list(torch.split(torch.arange(sum(sizes)), sizes))

    z, p = model.train()(images)
    loss = all_pairs(p, z, labels, least) + eta * TERMS[scale](z)
    assert_gradients(
        model,
        loss,
        lambda own: contrast_program(model, CLUSTERS, weights, images[own], labels[own]),
        parts,
    )


@pytest.mark.usefixtures("double_precision")
@given(SIZES, st.integers(0, 10**6), st.sampled_from([0.0, 0.4]), SCALES)
@settings(deadline=None, max_examples=40)
def test_the_siamese_loss_is_the_one_over_all_views_of_all_clients(
    sizes: list[int], seed: int, eta: float, scale: Scale
) -> None:
    model, weights = model_of(seed), LossConfig(pretrain_eta=eta, scale=scale)
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.rand(2, sum(sizes), 1, 4, 4, generator=generator)
    parts = list(torch.split(torch.arange(sum(sizes)), sizes))

    z, p = model.train()(torch.cat([first, second]))
    (z1, z2), (p1, p2) = z.chunk(2), p.chunk(2)
    loss = (d(p1, z2) + d(p2, z1)).mean() / 2 + eta * TERMS[scale](z)
    assert_gradients(
        model,
        loss,
        lambda own: siamese_program(model, weights, torch.stack([first[own], second[own]], dim=1)),
        parts,
    )


def first_sums(program: Program, model: ContrastiveModel) -> tuple[Tape, Contribution]:
    """A step of one client alone, up to its gradient."""
    tape, known = Tape(program, updated_parameters(model)), Contribution()
    while not known.gradient:
        known = tape.advance(known.sums, known.slopes)
    return tape, known


def test_sums_that_no_batch_can_have_are_told_apart() -> None:
    model, weights = model_of(0), LossConfig(eta=0.1, pretrain_eta=0.1)
    images, labels = torch.rand(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    for program, last in (
        (contrast_program(model, CLUSTERS, weights, images, labels), "clusters"),
        (siamese_program(model, weights, images.view(3, 2, 1, 4, 4)), "siamese"),
    ):
        tape, _ = first_sums(program, model)
        pools = {pool.name: pool for pool in tape.pools}
        for name in ("covariance", last):
            sums = pools[name].sums(pools[name].of).detach()
            assert pools[name].valid(sums)
            assert not pools[name].valid(-sums)
        longer = pools[last].sums(pools[last].of).detach()
        longer[-1] = 1e3
        assert not pools[last].valid(longer)


@given(st.integers(0, 10**6), st.sampled_from([0.1, 3.0, 100.0]))
@settings(deadline=None, max_examples=15)
def test_sums_with_noise_become_some_that_a_batch_can_have(seed: int, noise: float) -> None:
    """And those of a batch stay as they are."""
    model, weights = model_of(seed), LossConfig(eta=0.1, pretrain_eta=0.1)
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(6, 1, 4, 4, generator=generator)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    for program in (
        contrast_program(model, CLUSTERS, weights, images, labels),
        siamese_program(model, weights, images.view(3, 2, 1, 4, 4)),
    ):
        tape, _ = first_sums(program, model)
        for pool in (pool for pool in tape.pools if pool.common):
            sums = pool.sums(pool.of).detach()
            torch.testing.assert_close(pool.nearest(sums), sums)
            with_noise = sums + noise * torch.randn(len(sums), generator=generator)
            assert pool.valid(pool.nearest(with_noise))


@pytest.mark.usefixtures("double_precision")
def test_resnet_18_goes_through_a_pooled_step() -> None:
    backbone = ResNet18Backbone((3, 8, 8))
    model = ContrastiveModel(backbone, 6, 5, 4)
    images = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    weights = LossConfig(eta=0.3)
    labels = torch.tensor([0, 0, 1, 1, 1])
    z, p = model.train()(images)
    loss = all_pairs(p, z, labels, 2) + 0.3 * covariance_term(z)
    moved = updated_parameters(model)
    expected = torch.autograd.grad(loss, list(moved.values()))
    parts = list(torch.split(torch.arange(5), [2, 3]))
    last, trips = driven(
        lambda own: contrast_program(model, CLUSTERS, weights, images[own], labels[own]),
        parts,
        moved,
    )
    for (name, found), wanted in zip(last.gradient.items(), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-8, msg=name)
    # To and fro at 20 norms of the backbone, 2 of the projector, 1 of the predictor; two common
    # sums; the gradient.
    assert trips == 2 * 23 + 2 + 1
