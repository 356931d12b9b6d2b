"""SCAN's objective as printed, over all images in one place."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.systems.fed_scan.config import ScanConfig
from ccfcpp.clustering.systems.fed_scan.network import ClusterNetwork, ScanNetwork
from ccfcpp.clustering.systems.fed_scan.objective import (
    consistency,
    divergence,
    entropy,
    scan_program,
)
from tests.support.synchronised import driven


def agreement(p: Tensor) -> Tensor:
    """−Σ log⟨p, p′⟩ over pairs, by a loop."""
    pairs = len(p) // 2
    return -torch.stack([(p[i] @ p[pairs + i]).log() for i in range(pairs)]).sum()


@given(st.integers(1, 5), st.integers(2, 5), st.integers(0, 10**6))
def test_consistency_is_that_of_each_pair(pairs: int, clusters: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2 * pairs, clusters, generator=generator, dtype=torch.float64)
    p = logits.softmax(dim=-1)
    torch.testing.assert_close(consistency(p), agreement(p))


@given(st.integers(2, 6), st.integers(0, 10**6))
def test_the_divergence_is_what_the_entropy_lacks(k: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.rand(k, generator=generator, dtype=torch.float64) + 0.01
    mean = mean / mean.sum()
    torch.testing.assert_close(divergence(mean), mean.new_tensor(k).log() - entropy(mean))


def test_certain_predictions_have_finite_gradients() -> None:
    logits = torch.tensor([[1e3, 0.0], [0.0, 1e3]], requires_grad=True)
    p = logits.softmax(dim=-1)
    loss = consistency(p) + divergence(p.mean(dim=0))
    torch.autograd.backward(loss)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert loss.isfinite()


PAIRS, CLUSTERS = 12, 3


def dealt(
    network: ClusterNetwork, views: Tensor, owners: list[int], trips: int = 4
) -> dict[str, Tensor]:
    """The gradient of a step in which pair i is with client owners[i]."""
    firsts, seconds = views.chunk(2)
    places = [
        torch.tensor([n for n, o in enumerate(owners) if o == owner]) for owner in set(owners)
    ]
    batches = [torch.stack([firsts[own], seconds[own]], dim=1) for own in places]
    parameters = dict(network.named_parameters())
    last, made = driven(lambda batch: scan_program(network, 3.0, batch), batches, parameters)
    assert made == trips
    return last.gradient


@pytest.mark.usefixtures("double_precision")
@given(st.lists(st.integers(0, 4), min_size=PAIRS, max_size=PAIRS), st.integers(0, 10**6))
def test_for_equal_pairs_a_step_is_the_same_however_they_are_dealt_out(
    owners: list[int], seed: int
) -> None:
    """So of the degree of skew the choice of neighbours is all that a result depends on."""
    torch.manual_seed(seed)
    small = ScanConfig(widths=(8,), hidden=6, latent=5)
    network = ScanNetwork(small, (1, 8, 8), CLUSTERS)
    views = torch.rand(2 * PAIRS, 1, 8, 8)
    expected = dealt(network, views, [0] * PAIRS)
    for name, found in dealt(network, views, owners).items():
        torch.testing.assert_close(found, expected[name], rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.usefixtures("double_precision")
@given(st.integers(0, 10**6))
def test_a_step_on_merged_clusters_is_that_of_sums(seed: int) -> None:
    """Against the obvious: add up, agree, and keep to the shares; loss and gradient."""
    torch.manual_seed(seed)
    small = ScanConfig(widths=(8,), hidden=6, latent=5, overclustering=2)
    network = ScanNetwork(small, (1, 8, 8), CLUSTERS).with_merge()
    assert network.merge is not None
    groups = torch.tensor([0, 1, 2, 1, 0, 1])
    shares = torch.tensor([0.5, 0.3, 0.2])
    network.merge.groups.copy_(groups)
    network.merge.shares.copy_(torch.cat([shares, torch.ones(3)]))
    views = torch.rand(2 * PAIRS, 1, 8, 8)
    found = dealt(network, views, [n % 3 for n in range(PAIRS)])
    over = network.predictions(network.train()(views))
    p = torch.stack([over[:, groups == c].sum(dim=1) for c in range(CLUSTERS)], dim=1)
    first, second = p.chunk(2)
    mean = p.mean(dim=0)
    apart = sum(mean[c] * (mean[c] / shares[c]).log() for c in range(CLUSTERS))
    loss = -(first * second).sum(dim=1).log().mean() + 3.0 * apart
    parameters = dict(network.named_parameters())
    expected = torch.autograd.grad(loss, list(parameters.values()))
    for name, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.usefixtures("double_precision")
def test_before_the_first_merge_nothing_is_merged() -> None:
    torch.manual_seed(0)
    small = ScanConfig(widths=(8,), hidden=6, latent=5)
    network = ScanNetwork(small, (1, 8, 8), CLUSTERS)
    views, owners = torch.rand(2 * PAIRS, 1, 8, 8), [0] * PAIRS
    expected = dealt(network, views, owners)
    for name, found in dealt(network.with_merge(), views, owners).items():
        torch.testing.assert_close(found, expected[name], msg=name)


@pytest.mark.parametrize(("normalisation", "trips"), [("batch", 4), ("layer", 2)])
def test_a_step_of_rounded_products_is_near(normalisation: str, trips: int) -> None:
    given = {"widths": (8,), "hidden": 6, "latent": 5, "normalisation": normalisation}
    small = ScanConfig.model_validate(given)
    torch.manual_seed(0)
    exact = ScanNetwork(small, (1, 8, 8), CLUSTERS)
    rounded = ScanNetwork(small, (1, 8, 8), CLUSTERS, torch.bfloat16)
    rounded.load_state_dict(exact.state_dict())
    views = torch.rand(2 * PAIRS, 1, 8, 8)
    latents = exact.eval()(views).detach(), rounded.eval()(views).detach()
    owners = [n % 3 for n in range(PAIRS)]
    steps = [dealt(of, views, owners, trips)["encoder.0.weight"] for of in (exact, rounded)]
    for one, other in (latents, steps):
        assert other.dtype == torch.float32
        assert not torch.equal(one, other)
        assert float(F.cosine_similarity(one.flatten(), other.flatten(), dim=0)) > 0.98
