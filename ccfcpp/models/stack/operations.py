"""The differentiable operations that stacked networks consist of.

They are written as matrix products and reductions over a whole cohort of clients, which lie along
the leading axis. A convolution becomes one product with the patches that its kernel sees: on small
images such a product comes close to the machine's peak, where the backward pass of a library's
convolution reaches half of it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_PATCH_BYTES = {"cpu": 1 << 25, "cuda": 1 << 30}
"""Memory of the patches that are formed at a time, so that it does not grow with the cohort."""


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, precision: torch.dtype) -> Tensor:
        result = x.dtype
        x, weight = x.to(precision), weight.to(precision)
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight.mT).to(result)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        to_x, to_weight, _ = ctx.needs_input_grad
        rounded = gradient.to(x.dtype)
        # Formed in the weights' own memory layout, so that it is copied to theirs as it is.
        return (
            torch.bmm(rounded, weight).to(gradient.dtype) if to_x else None,
            torch.bmm(rounded.mT, x).to(gradient.dtype) if to_weight else None,
            None,
        )


def product(x: Tensor, weight: Tensor, precision: torch.dtype | None = None) -> Tensor:
    """A linear map for each client.

    Args:
        x: Tensor of shape (clients, rows, inputs).
        weight: Tensor of shape (clients, outputs, inputs).
        precision: What inputs and products are rounded to, here and in the backward pass; x's
            dtype by default.

    Returns:
        x wᵀ, of shape (clients, rows, outputs), in x's dtype.
    """
    result: Tensor = _Product.apply(x, weight, precision or x.dtype)
    return result


@dataclass(frozen=True)
class Kernel:
    """The geometry of a convolution.

    Attributes:
        height: Height of the kernel.
        width: Width of the kernel.
        stride: Its step in either direction.
        padding: Zeros on each side of the image.
    """

    height: int
    width: int
    stride: int
    padding: int

    @property
    def overlaps(self) -> bool:
        """Whether a pixel is seen from more than four positions, as by a 3×3 kernel of stride 1."""
        return self.height * self.width > 4 * self.stride**2

    def positions(self, height: int, width: int) -> tuple[int, int]:
        """How many rows and columns of positions the kernel has on an image."""
        rows = (height + 2 * self.padding - self.height) // self.stride + 1
        columns = (width + 2 * self.padding - self.width) // self.stride + 1
        return rows, columns

    def origin(self, rows: int, columns: int) -> tuple[int, int]:
        """Height and width of the smallest image with so many rows and columns of positions."""
        height = (rows - 1) * self.stride + self.height - 2 * self.padding
        width = (columns - 1) * self.stride + self.width - 2 * self.padding
        return height, width


def _patches(x: Tensor, kernel: Kernel) -> Tensor:
    """The pixels under each position of a kernel.

    Args:
        x: Images of shape (…, height, width, channels).
        kernel: The kernel.

    Returns:
        Tensor of shape (…, rows, columns, kernel height · kernel width · channels).
    """
    rows, columns = kernel.positions(*x.shape[-3:-1])
    border = kernel.padding
    padded = F.pad(x, (0, 0, border, border, border, border)) if border else x.contiguous()
    by_row, by_column = padded.stride()[-3:-1]
    # A row of the kernel sees neighbouring columns, which lie side by side in memory.
    seen = padded.as_strided(
        (*x.shape[:-3], rows, columns, kernel.height, kernel.width * x.shape[-1]),
        (*padded.stride()[:-3], kernel.stride * by_row, kernel.stride * by_column, by_row, 1),
    )
    return seen.reshape(*x.shape[:-3], rows, columns, -1)


def _sum_of_patches(seen: Tensor, kernel: Kernel, height: int, width: int) -> Tensor:
    """The adjoint of ``_patches``: what each pixel gets from all positions that see it.

    Args:
        seen: Tensor of shape (images, rows, columns, kernel height · kernel width · channels).
        kernel: The kernel.
        height: Height of the images.
        width: Width of the images.

    Returns:
        Tensor of shape (images, height, width, channels).
    """
    images, rows, columns, _ = seen.shape
    stride, border = kernel.stride, kernel.padding
    # Where the stride divides the kernel, whole blocks of stride by stride pixels are added.
    block = stride if kernel.height % stride == 0 and kernel.width % stride == 0 else 1
    down, across, step = kernel.height // block, kernel.width // block, stride // block
    seen = seen.view(images, rows, columns, down, block, across, block, -1)
    # Also pixels that no position reaches, whose sum is 0.
    block_rows = max((height + 2 * border) // block + 1, (rows - 1) * step + down)
    block_columns = max((width + 2 * border) // block + 1, (columns - 1) * step + across)
    total = seen.new_zeros(images, block_rows, block, block_columns, block, seen.shape[-1])
    for i in range(down):
        for j in range(across):
            where = total[:, i : i + step * rows : step, :, j : j + step * columns : step]
            where += seen[:, :, :, i, :, j].permute(0, 1, 3, 2, 4, 5)
    pixels = total.flatten(3, 4).flatten(1, 2)
    return pixels[:, border : border + height, border : border + width]


def _blocks(x: Tensor, kernel: Kernel) -> Iterator[tuple[slice, slice]]:
    """Slices of clients and of their images whose patches take no more than a fixed memory."""
    clients, images, height, width, channels = x.shape
    rows, columns = kernel.positions(height, width)
    image_bytes = rows * columns * kernel.height * kernel.width * channels * x.element_size()
    fitting = max(1, _PATCH_BYTES[x.device.type] // image_bytes)
    together = max(1, fitting // images)
    for first in range(0, clients, together):
        for start in range(0, images, images if together > 1 else fitting):
            stop = images if together > 1 else min(images, start + fitting)
            yield slice(first, min(clients, first + together)), slice(start, stop)


def _convolved(x: Tensor, weight: Tensor, kernel: Kernel, result: torch.dtype) -> Tensor:
    """What each position of the kernels sees, (clients, images, rows, columns, outputs)."""
    clients, images, height, width, _ = x.shape
    shape = (clients, images, *kernel.positions(height, width), weight.shape[1])
    y = x.new_empty(shape, dtype=result)
    if _has_fast_convolution(x.device):
        # oneDNN's forward pass needs no patches in memory, and is at the machine's peak.
        for client in range(clients):
            y[client] = F.conv2d(
                x[client].permute(0, 3, 1, 2),
                weight[client],
                stride=kernel.stride,
                padding=kernel.padding,
            ).permute(0, 2, 3, 1)
        return y
    kernels = _rows_of(weight)
    for here, some in _blocks(x, kernel):
        seen = _patches(x[here, some], kernel).flatten(1, 3)
        y[here, some].flatten(1, 3).copy_(torch.bmm(seen, kernels[here].mT))
    return y


def _spread(
    y: Tensor, weight: Tensor, kernel: Kernel, size: tuple[int, int], result: torch.dtype
) -> Tensor:
    """The adjoint of ``_convolved`` in its images, which have the height and width ``size``."""
    kernels = _rows_of(weight)
    clients, images = y.shape[:2]
    x = y.new_empty(clients, images, *size, weight.shape[2], dtype=result)
    for here, some in _blocks(x, kernel):
        part = y[here, some]
        by_position = part.reshape(len(part), -1, part.shape[-1])
        back = torch.bmm(by_position, kernels[here]).to(result)
        back = back.view(part.shape[0] * part.shape[1], *part.shape[2:4], -1)
        x[here, some] = _sum_of_patches(back, kernel, *size).view(x[here, some].shape)
    return x


def _kernel_gradient(x: Tensor, y: Tensor, kernel: Kernel, result: torch.dtype) -> Tensor:
    """The adjoint of ``_convolved`` in its kernels, for images x and what y its results get."""
    clients, inputs, outputs = len(x), x.shape[-1], y.shape[-1]
    entries = kernel.height * kernel.width * inputs
    total = x.new_zeros(clients, outputs, entries, dtype=result)
    for here, some in _blocks(x, kernel):
        part = y[here, some]
        by_position = part.reshape(len(part), -1, outputs)
        seen = _patches(x[here, some], kernel).flatten(1, 3)
        total[here] += torch.bmm(by_position.mT, seen).to(result)
    shaped = total.view(clients, outputs, kernel.height, kernel.width, inputs)
    return shaped.permute(0, 1, 4, 2, 3)


def _has_fast_convolution(device: torch.device) -> bool:
    return device.type == "cpu"


def _rows_of(weight: Tensor) -> Tensor:
    """Kernels (clients, outputs, inputs, height, width) as rows that fit ``_patches``."""
    return weight.permute(0, 1, 3, 4, 2).flatten(2)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, kernel: Kernel, precision: torch.dtype
    ) -> Tensor:
        result = x.dtype
        x, weight = x.to(precision), weight.to(precision)
        ctx.save_for_backward(x, weight)
        ctx.kernel = kernel
        return _convolved(x, weight, kernel, result)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        to_x, to_weight, _, _ = ctx.needs_input_grad
        size = (x.shape[2], x.shape[3])
        result, rounded = gradient.dtype, gradient.to(x.dtype)
        return (
            _spread(rounded, weight, ctx.kernel, size, result) if to_x else None,
            _kernel_gradient(x, rounded, ctx.kernel, result) if to_weight else None,
            None,
            None,
        )


def convolve(
    x: Tensor, weight: Tensor, kernel: Kernel, precision: torch.dtype | None = None
) -> Tensor:
    """A convolution for each client, without bias.

    Args:
        x: Tensor of shape (clients, images, height, width, channels), contiguous.
        weight: Tensor of shape (clients, outputs, channels, kernel height, kernel width); in memory
            the channels lie innermost.
        kernel: The geometry.
        precision: What inputs and products are rounded to, here and in the backward pass; x's
            dtype by default.

    Returns:
        Tensor of shape (clients, images, rows, columns, outputs), in x's dtype.
    """
    result: Tensor = _Convolution.apply(x, weight, kernel, precision or x.dtype)
    return result


class _TransposedConvolution(torch.autograd.Function):
    """The adjoint of a convolution from its results, here x, to its images.

    On a CPU the library is hardly faster where channels are many, and several times slower where
    they are few: products of patches serve everywhere.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, kernel: Kernel, precision: torch.dtype
    ) -> Tensor:
        result = x.dtype
        x, weight = x.to(precision), weight.to(precision)
        ctx.save_for_backward(x, weight)
        ctx.kernel = kernel
        return _spread(x, weight, kernel, kernel.origin(x.shape[2], x.shape[3]), result)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        to_x, to_weight, _, _ = ctx.needs_input_grad
        result, rounded = gradient.dtype, gradient.to(x.dtype).contiguous()
        return (
            _convolved(rounded, weight, ctx.kernel, result) if to_x else None,
            _kernel_gradient(rounded, x, ctx.kernel, result) if to_weight else None,
            None,
            None,
        )


def deconvolve(
    x: Tensor, weight: Tensor, kernel: Kernel, precision: torch.dtype | None = None
) -> Tensor:
    """A transposed convolution for each client, without bias.

    Args:
        x: Tensor of shape (clients, images, rows, columns, inputs), contiguous.
        weight: Tensor of shape (clients, inputs, outputs, kernel height, kernel width), as
            ``nn.ConvTranspose2d`` has it; in memory the outputs lie innermost.
        kernel: The geometry of the convolution whose adjoint this is.
        precision: What inputs and products are rounded to, here and in the backward pass; x's
            dtype by default.

    Returns:
        Tensor of shape (clients, images, height, width, outputs), in x's dtype, of the least height
        and width on which the kernel has so many rows and columns of positions.
    """
    result: Tensor = _TransposedConvolution.apply(x, weight, kernel, precision or x.dtype)
    return result


class _LibraryConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, kernel: Kernel, groups: int, precision: torch.dtype
    ) -> Tensor:
        result = x.dtype
        x, weight = x.to(precision), weight.to(precision)
        ctx.save_for_backward(x, weight)
        ctx.kernel, ctx.groups = kernel, groups
        parts = [
            F.conv2d(
                images.permute(0, 3, 1, 2),
                own,
                stride=kernel.stride,
                padding=kernel.padding,
                groups=groups,
            ).permute(0, 2, 3, 1)
            for images, own in zip(x, weight, strict=True)
        ]
        return _stacked(parts).to(result)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        kernel = ctx.kernel
        to_x, to_weight = ctx.needs_input_grad[:2]
        parts = [
            torch.ops.aten.convolution_backward(
                back.to(x.dtype).permute(0, 3, 1, 2),
                images.permute(0, 3, 1, 2),
                own,
                None,
                [kernel.stride] * 2,
                [kernel.padding] * 2,
                [1, 1],
                False,
                [0, 0],
                ctx.groups,
                [to_x, to_weight, False],
            )
            for back, images, own in zip(gradient, x, weight, strict=True)
        ]
        return (
            _stacked([p[0].permute(0, 2, 3, 1) for p in parts]).to(gradient.dtype)
            if to_x
            else None,
            _stacked([p[1] for p in parts]).to(gradient.dtype) if to_weight else None,
            None,
            None,
            None,
        )


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    """The parts along a new first axis; one alone is not copied.

    Nor is it a view then: results of autograd functions that are may not be changed in place.
    """
    if len(parts) > 1:
        return torch.stack(list(parts))
    part = parts[0].unsqueeze(0)
    alone = part.new_empty(0)
    return alone.set_(part.untyped_storage(), part.storage_offset(), part.shape, part.stride())


def convolve_each(
    x: Tensor, weight: Tensor, kernel: Kernel, groups: int, precision: torch.dtype | None = None
) -> Tensor:
    """A convolution for each client by the library, one client after the other, without bias.

    With channels innermost the library is faster than patches where these would be large beside the
    images: for kernels that overlap much, and for groups of channels.

    Args:
        x: Tensor of shape (clients, images, height, width, channels), contiguous.
        weight: Tensor of shape (clients, outputs, channels / groups, kernel height, kernel width).
        kernel: The geometry.
        groups: Number of groups; as many as channels for a depthwise convolution.
        precision: What inputs and products are rounded to, here and in the backward pass; x's
            dtype by default.

    Returns:
        Tensor of shape (clients, images, rows, columns, outputs), in x's dtype.
    """
    result: Tensor = _LibraryConvolution.apply(x, weight, kernel, groups, precision or x.dtype)
    return result


@dataclass(frozen=True)
class Activation:
    """A piecewise linear activation: ``slope`` times x below 0, x above, at most ``ceiling``.

    Attributes:
        slope: Not negative: 1 for no activation, 0 for a ReLU.
        ceiling: Largest value, for a slope of 0 only: 6 for a ReLU6.
    """

    slope: float = 1.0
    ceiling: float = math.inf

    def apply_(self, y: Tensor) -> Tensor:
        """Replace y by its activations."""
        if self.ceiling != math.inf:
            return y.clamp_(0, self.ceiling)
        return y if self.slope == 1 else F.leaky_relu_(y, self.slope)

    def backward(self, gradient: Tensor, y: Tensor) -> Tensor:
        """The gradient before the activation; its results y say which side the inputs were on."""
        if self.ceiling != math.inf:
            before: Tensor = torch.ops.aten.hardtanh_backward(gradient, y, 0, self.ceiling)
        else:
            before = torch.ops.aten.leaky_relu_backward(gradient, y, self.slope, True)
        return before


NO_ACTIVATION = Activation()


class _Standardise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        counts: Tensor,
        mask: Tensor | None,
        activation: Activation,
        epsilon: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See ``standardise``."""
        if mask is not None:
            mean = (x * mask).sum(dim=2, keepdim=True) / counts
            centred = (x - mean).mul_(mask)
        else:
            mean = x.mean(dim=2, keepdim=True)
            centred = x - mean
        variance = centred.square().sum(dim=2, keepdim=True) / counts
        inverse = (variance + epsilon).rsqrt()
        y = activation.apply_(torch.addcmul(bias, centred, weight * inverse))
        activated = y if activation != NO_ACTIVATION else None
        ctx.save_for_backward(centred, inverse, weight, counts, mask, activated)
        ctx.activation = activation
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: Tensor, _mean: Tensor, _variance: Tensor
    ) -> tuple[Tensor | None, ...]:
        centred, inverse, weight, counts, mask, y = ctx.saved_tensors
        if y is not None:
            gradient = ctx.activation.backward(gradient, y)
        if mask is not None:
            gradient = gradient * mask
        to_bias = gradient.sum(dim=2, keepdim=True)
        to_scale = (gradient * centred).sum(dim=2, keepdim=True)
        # dx = w/σ · (g − mean g − (x − μ)/σ² · mean(g·(x − μ)))
        scale = weight * inverse
        projection = -scale * inverse.square() * to_scale / counts
        to_x = torch.addcmul(-scale * to_bias / counts, centred, projection)
        to_x.addcmul_(gradient, scale)
        if mask is not None:
            to_x.mul_(mask)
        to_weight = (to_scale * inverse).sum(dim=1, keepdim=True)
        return to_x, to_weight, to_bias.sum(dim=1, keepdim=True), None, None, None, None


class _StandardiseAlone(torch.autograd.Function):
    """One client by itself, whose views are the library's own batches: fewer passes over memory."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, activation: Activation, epsilon: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        scale, shift = weight.flatten(), bias.flatten()
        by_view = [
            torch.native_batch_norm(rows, scale, shift, None, None, True, 0.0, epsilon)
            for rows in x[0]
        ]
        y, means, inverses = (_stacked([_stacked(parts)]) for parts in zip(*by_view, strict=True))
        y = activation.apply_(y)
        activated = y if activation != NO_ACTIVATION else None
        ctx.save_for_backward(x, scale, means, inverses, activated)
        ctx.activation, ctx.epsilon = activation, epsilon
        variances = (inverses.pow(-2) - epsilon).clamp(min=0)
        ctx.mark_non_differentiable(means, variances)
        return y, means.unsqueeze(2), variances.unsqueeze(2)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: Tensor, _mean: Tensor, _variance: Tensor
    ) -> tuple[Tensor | None, ...]:
        x, scale, means, inverses, y = ctx.saved_tensors
        if y is not None:
            gradient = ctx.activation.backward(gradient, y)
        by_view = [
            torch.ops.aten.native_batch_norm_backward(
                back, rows, scale, None, None, mean, inverse, True, ctx.epsilon, [True, True, True]
            )
            for back, rows, mean, inverse in zip(
                gradient[0].contiguous(), x[0], means[0], inverses[0], strict=True
            )
        ]
        to_x, to_weight, to_bias = (_stacked(parts) for parts in zip(*by_view, strict=True))
        shape = (1, 1, 1, -1)
        totals = (to_weight.sum(dim=0).view(shape), to_bias.sum(dim=0).view(shape))
        return to_x.unsqueeze(0), *totals, None, None


def standardise(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    counts: Tensor,
    mask: Tensor | None,
    activation: Activation,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalisation of each client and view, followed by an activation.

    Args:
        x: Tensor of shape (clients, views, rows, channels).
        weight: Tensor of shape (clients, 1, 1, channels).
        bias: Tensor of the same shape.
        counts: Rows that count, of shape (clients, 1, 1, 1).
        mask: 1 for each row that counts and 0 for the others, of shape (clients, 1, rows, 1); None
            where all count. Rows that do not count get no gradient and mean nothing.
        activation: What follows.
        epsilon: Added to the variance.

    Returns:
        The result of x's shape, and mean and (biased) variance of shape
        (clients, views, 1, channels), which are not differentiable.
    """
    if mask is None and len(x) == 1:
        alone: tuple[Tensor, Tensor, Tensor] = _StandardiseAlone.apply(
            x.contiguous(), weight, bias, activation, epsilon
        )
        return alone
    result: tuple[Tensor, Tensor, Tensor] = _Standardise.apply(
        x, weight, bias, counts, mask, activation, epsilon
    )
    return result
