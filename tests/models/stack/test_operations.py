"""The operations of stacked networks against PyTorch's, client by client, in value and gradient."""

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.core.randomness import Randomness
from ccfcpp.models.stack import operations
from ccfcpp.models.stack.operations import (
    Activation,
    Kernel,
    convolve,
    convolve_each,
    deconvolve,
    product,
    standardise,
)

CPU = torch.device("cpu")


def normal(purpose: str, *shape: int) -> Tensor:
    generator = Randomness(0).generator(purpose)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def leaf(purpose: str, device: torch.device, *shape: int) -> Tensor:
    return normal(purpose, *shape).to(device).requires_grad_()


def assert_same_gradients(
    first: Tensor, second: Tensor, inputs: Sequence[Tensor], atol: float = 1e-9
) -> None:
    """Of any weighted sum of two equal results."""
    torch.testing.assert_close(first, second, atol=atol, rtol=0)
    weights = normal("weights", *first.shape).to(first)
    found, expected = (
        torch.autograd.grad((y * weights).sum(), inputs, retain_graph=True) for y in (first, second)
    )
    for gradient, other in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, other, atol=atol, rtol=0)


def test_product(device: torch.device) -> None:
    x, weight = leaf("x", device, 3, 7, 5), leaf("w", device, 3, 4, 5)
    expected = torch.stack([F.linear(x[k], weight[k]) for k in range(3)])
    assert_same_gradients(product(x, weight), expected, (x, weight))


@given(
    clients=st.integers(1, 3),
    images=st.integers(1, 3),
    channels=st.integers(1, 3),
    outputs=st.integers(1, 3),
    size=st.tuples(st.integers(4, 9), st.integers(4, 9)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    patch_bytes=st.sampled_from([1, 2000, 1 << 25]),
)
def test_convolution(
    clients: int,
    images: int,
    channels: int,
    outputs: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: int,
    padding: int,
    patch_bytes: int,
    device: torch.device,
) -> None:
    x = leaf("x", device, clients, images, *size, channels)
    weight = leaf("w", device, clients, outputs, channels, *kernel)
    expected = torch.stack(
        [
            F.conv2d(x[k].permute(0, 3, 1, 2), weight[k], stride=stride, padding=padding)
            for k in range(clients)
        ]
    ).permute(0, 1, 3, 4, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "_PATCH_BYTES", dict.fromkeys(("cpu", "cuda"), patch_bytes))
        found = convolve(x, weight, Kernel(*kernel, stride, padding))
        assert_same_gradients(found, expected, (x, weight))
        # What an accelerator computes by products of patches, here on the CPU.
        patch.setattr(operations, "_has_fast_convolution", lambda device: False)
        by_patches = convolve(x, weight, Kernel(*kernel, stride, padding))
        assert_same_gradients(by_patches, expected, (x, weight))


@given(
    clients=st.integers(1, 3),
    images=st.integers(1, 3),
    channels=st.integers(1, 3),
    outputs=st.integers(1, 3),
    size=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    patch_bytes=st.sampled_from([1, 2000, 1 << 25]),
)
def test_transposed_convolution(
    clients: int,
    images: int,
    channels: int,
    outputs: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: int,
    padding: int,
    patch_bytes: int,
    device: torch.device,
) -> None:
    geometry = Kernel(*kernel, stride, padding)
    assume(min(geometry.origin(*size)) > 0)
    x = leaf("x", device, clients, images, *size, channels)
    weight = leaf("w", device, clients, channels, outputs, *kernel)
    expected = torch.stack(
        [
            F.conv_transpose2d(x[k].permute(0, 3, 1, 2), weight[k], stride=stride, padding=padding)
            for k in range(clients)
        ]
    ).permute(0, 1, 3, 4, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "_PATCH_BYTES", dict.fromkeys(("cpu", "cuda"), patch_bytes))
        assert_same_gradients(deconvolve(x, weight, geometry), expected, (x, weight))
        # What an accelerator computes by products of patches, here on the CPU.
        patch.setattr(operations, "_has_fast_convolution", lambda device: False)
        assert_same_gradients(deconvolve(x, weight, geometry), expected, (x, weight))


@pytest.mark.parametrize("operation", [convolve, deconvolve])
def test_results_may_be_changed_in_place(operation: Callable[..., Tensor]) -> None:
    """As an activation that follows does."""
    x, weight = leaf("x", CPU, 1, 2, 6, 6, 3), leaf("w", CPU, 1, 3, 3, 4, 4)
    kernel = Kernel(4, 4, 2, 1)
    expected = operation(x, weight, kernel).relu()
    assert_same_gradients(operation(x, weight, kernel).relu_(), expected, (x, weight))


@pytest.mark.parametrize("operation", [convolve, deconvolve])
def test_no_work_is_done_for_kernels_that_need_no_gradient(
    operation: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = leaf("x", CPU, 1, 2, 6, 6, 3), leaf("w", CPU, 1, 3, 3, 4, 4)
    kernel = Kernel(4, 4, 2, 1)
    (expected,) = torch.autograd.grad(operation(x, weight, kernel).square().sum(), x)
    monkeypatch.delattr(operations, "_kernel_gradient")
    (found,) = torch.autograd.grad(operation(x, weight.detach(), kernel).square().sum(), x)
    assert torch.equal(found, expected)


def test_images_that_need_no_gradient_get_none() -> None:
    x, weight = normal("x", 1, 2, 5, 5, 1), normal("w", 1, 3, 1, 4, 4).requires_grad_()
    convolve(x, weight, Kernel(4, 4, 2, 1)).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is None
    assert weight.grad is not None


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolve_each(groups: int, stride: int, device: torch.device) -> None:
    x = leaf("x", device, 3, 2, 7, 5, 6)
    weight = leaf("w", device, 3, 12, 6 // groups, 3, 3)
    found = convolve_each(x, weight, Kernel(3, 3, stride, 1), groups)
    expected = torch.stack(
        [
            F.conv2d(
                own.permute(0, 3, 1, 2), kernels, stride=stride, padding=1, groups=groups
            ).permute(0, 2, 3, 1)
            for own, kernels in zip(x, weight, strict=True)
        ]
    )
    assert_same_gradients(found, expected, (x, weight))


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor, activation: Activation) -> Tensor:
    y = F.leaky_relu(F.batch_norm(x, None, None, weight, bias, training=True), activation.slope)
    return y.clamp(max=activation.ceiling)


@pytest.mark.parametrize(
    "activation", [Activation(0), Activation(0.2), Activation(1), Activation(0, 0.7)]
)
@pytest.mark.parametrize("lengths", [(6, 6, 6), (6, 2, 4), (6,)])
def test_standardise(
    lengths: tuple[int, ...], activation: Activation, device: torch.device
) -> None:
    """Padded rows hold anything and change nothing."""
    clients, views, rows, channels = len(lengths), 2, 6, 5
    x = leaf("x", device, clients, views, rows, channels)
    weight = leaf("w", device, clients, 1, 1, channels)
    bias = leaf("b", device, clients, 1, 1, channels)
    counts = torch.tensor(lengths, dtype=torch.float64, device=device).view(clients, 1, 1, 1)
    places = torch.arange(rows, device=device)
    valid = (places < counts.view(clients, 1)).double()[:, None, :, None]
    mask = None if set(lengths) == {6} else valid
    y, mean, variance = standardise(x, weight, bias, counts, mask, activation, 1e-5)
    expected = torch.zeros_like(y)
    for k, length in enumerate(lengths):
        for v in range(views):
            part = x[k, v, :length]
            expected[k, v, :length] = batch_norm(part, weight[k, 0, 0], bias[k, 0, 0], activation)
            torch.testing.assert_close(mean[k, v, 0], part.mean(dim=0))
            torch.testing.assert_close(variance[k, v, 0], part.var(dim=0, correction=0))
    assert_same_gradients(y * valid, expected, (x, weight, bias))
    (to_x,) = torch.autograd.grad((y * valid).square().sum(), x, retain_graph=True)
    assert torch.equal(to_x * (1 - valid), torch.zeros_like(x))


@pytest.mark.parametrize("operation", ["product", "convolution", "transposed convolution"])
def test_rounded_inputs_change_results_by_their_rounding(operation: str) -> None:
    """bfloat16 has eight significant bits; results and gradients keep their own type."""

    def run(precision: torch.dtype | None) -> tuple[Tensor, ...]:
        x, weight = normal("x", 2, 4, 6, 6, 3), normal("w", 2, 5, 3, 4, 4)
        x, weight = x.float().requires_grad_(), weight.float().requires_grad_()
        if operation == "product":
            y = product(x.flatten(2), weight.flatten(2).repeat(1, 1, 3)[..., :108], precision)
        elif operation == "convolution":
            y = convolve(x, weight, Kernel(4, 4, 2, 1), precision)
        else:
            y = deconvolve(x, weight.transpose(1, 2), Kernel(4, 4, 2, 1), precision)
        return (y, *torch.autograd.grad(y.square().sum(), (x, weight)))

    for rounded, exact in zip(run(torch.bfloat16), run(None), strict=True):
        assert rounded.dtype == torch.float32
        difference = (rounded - exact).norm() / exact.norm()
        assert 1e-4 < difference < 2e-2
