"""SCAN's objective as printed, over all images in one place."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.clustering.scan.objective import entropy as entropy_of
from ccfcpp.clustering.scan.objective import predictions, share_of_loss


def as_printed(logits: Tensor, balance: float) -> Tensor:
    """−mean log⟨p, p′⟩ − λ H(p̄), by loops."""
    p = torch.softmax(logits, dim=1)
    pairs = len(p) // 2
    agreement = sum((p[i] @ p[pairs + i]).log() for i in range(pairs)) / pairs
    mean = sum(p[i] for i in range(2 * pairs)) / (2 * pairs)
    assert isinstance(mean, Tensor)
    entropy = -torch.stack([share * share.log() for share in mean]).sum()
    assert isinstance(agreement, Tensor)
    return -agreement - balance * entropy


@pytest.mark.usefixtures("double_precision")
@given(st.integers(1, 4), st.integers(1, 5), st.floats(0, 5), st.integers(0, 10**6))
def test_the_shares_of_clients_have_the_gradient_of_the_whole(
    pairs: int, others: int, balance: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    own, rest = (
        torch.randn(2 * count, 4, generator=generator, dtype=torch.float64)
        for count in (pairs, others)
    )
    first, second = torch.chunk(own, 2)
    more, most = torch.chunk(rest, 2)
    whole = torch.cat([first, more, second, most]).requires_grad_()
    expected = as_printed(whole, balance)
    torch.autograd.backward(expected)

    count = 2 * (pairs + others)
    mean = torch.cat([predictions(own), predictions(rest)]).mean(dim=0)
    gradients, loss = [], 0.0
    for part in (own, rest):
        leaf = part.clone().requires_grad_()
        share, consistency = share_of_loss(predictions(leaf), mean, count, balance)
        torch.autograd.backward(share)
        assert leaf.grad is not None
        gradients.append(leaf.grad)
        loss += float(consistency)
    (a, b), (c, d) = (torch.chunk(gradient, 2) for gradient in gradients)
    torch.testing.assert_close(torch.cat([a, c, b, d]), whole.grad)
    assert loss - balance * float(entropy_of(mean)) == pytest.approx(expected.item())


def test_certain_predictions_have_finite_gradients() -> None:
    logits = torch.tensor([[1e3, 0.0], [0.0, 1e3]], requires_grad=True)
    share, loss = share_of_loss(predictions(logits), torch.tensor([1.0, 0.0]), 2, 3.0)
    torch.autograd.backward(share)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert loss.isfinite()
