"""SCAN's objective as printed, over all images in one place."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.clustering.scan.config import ScanConfig
from ccfcpp.clustering.scan.network import ScanNetwork
from ccfcpp.clustering.scan.objective import consistency, divergence, entropy, program
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


def dealt(network: ScanNetwork, views: Tensor, owners: list[int]) -> dict[str, Tensor]:
    """The gradient of a step in which pair i is with client owners[i]."""
    firsts, seconds = views.chunk(2)
    places = [
        torch.tensor([n for n, o in enumerate(owners) if o == owner]) for owner in set(owners)
    ]
    batches = [torch.stack([firsts[own], seconds[own]], dim=1) for own in places]
    parameters = dict(network.named_parameters())
    last, trips = driven(lambda batch: program(network, 3.0, batch), batches, parameters)
    assert trips == 4
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
