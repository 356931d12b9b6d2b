"""Several models of one shape as a single network.

Clients lie along the batch axis: activations have the shape (clients · views · batch, …), so that
all that acts sample by sample works as it is. Layers with weights hold those of every client; batch
normalisation keeps each client's, and each view's, statistics to itself. One model alone is a stack
of one: there is no other code for it.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ccfcpp.models.stack.layout import FlatLayout
from ccfcpp.models.stack.operations import (
    NO_ACTIVATION,
    Activation,
    Kernel,
    convolve,
    convolve_each,
    deconvolve,
    product,
    standardise,
)
from ccfcpp.models.state import ModelState


@dataclass
class _Pass:
    """What the layers need to know of a forward pass.

    Attributes:
        entries: Weights and buffers by name, each with a leading axis of clients.
        views: Views of each client's batch; they share weights, but not statistics.
        mask: 1 for each sample that counts, float of shape (clients, batch); None where all do.
        precision: What matrix products are rounded to; None for no rounding.
    """

    entries: ModelState = field(default_factory=dict)
    views: int = 1
    mask: Tensor | None = None
    precision: torch.dtype | None = None


class _Layer(nn.Module):
    """A layer whose weights are looked up by name at each pass."""

    def __init__(self, name: str, current: _Pass) -> None:
        super().__init__()
        self.name = name
        self.current = current

    def entry(self, which: str) -> Tensor:
        return self.current.entries[f"{self.name}.{which}"]


class _StackedLinear(_Layer):
    """Linear layer; a bias that the next layer would take away again is left to that layer."""

    def __init__(self, layer: nn.Linear, name: str, current: _Pass, bias_follows: bool) -> None:
        super().__init__(name, current)
        self.adds_bias = layer.bias is not None and not bias_follows

    def forward(self, x: Tensor) -> Tensor:
        weight = self.entry("weight")
        rows = x.reshape(len(weight), -1, x.shape[-1])
        y = product(rows, weight, self.current.precision)
        if self.adds_bias:
            y = y + self.entry("bias").unsqueeze(1)
        return y.view(len(x), -1)


_POINT = Kernel(height=1, width=1, stride=1, padding=0)


def _kernel_of(layer: nn.Conv2d | nn.ConvTranspose2d, name: str) -> Kernel:
    """The geometry of a layer with square steps and borders."""
    if set(layer.dilation) != {1} or isinstance(layer.padding, str):
        raise TypeError(f"{name}: dilation and named padding cannot be stacked")
    if layer.padding_mode != "zeros":
        raise TypeError(f"{name}: padding by {layer.padding_mode} cannot be stacked")
    if len({*layer.stride}) != 1 or len({*layer.padding}) != 1:
        raise TypeError(f"{name}: unequal stride or padding cannot be stacked")
    height, width = layer.kernel_size
    return Kernel(height, width, layer.stride[0], int(layer.padding[0]))


class _StackedKernels(_Layer):
    """What convolutions of either direction share: the way to channels-last images and back."""

    def __init__(
        self, layer: nn.Conv2d | nn.ConvTranspose2d, name: str, current: _Pass, bias_follows: bool
    ) -> None:
        super().__init__(name, current)
        self.kernel = _kernel_of(layer, name)
        self.adds_bias = layer.bias is not None and not bias_follows

    def forward(self, x: Tensor) -> Tensor:
        weight = self.entry("weight")
        by_client = x.permute(0, 2, 3, 1).contiguous()
        by_client = by_client.view(len(weight), -1, *by_client.shape[1:])
        y = self._apply_kernels(by_client, weight)
        if self.adds_bias:
            y = y + self.entry("bias")[:, None, None, None]
        return y.flatten(0, 1).permute(0, 3, 1, 2)

    def _apply_kernels(self, x: Tensor, weight: Tensor) -> Tensor:
        """Map (clients, images, height, width, channels) to such images of each client."""
        raise NotImplementedError


class _StackedConvolution(_StackedKernels):
    """Convolution."""

    def __init__(self, layer: nn.Conv2d, name: str, current: _Pass, bias_follows: bool) -> None:
        super().__init__(layer, name, current, bias_follows)
        self.groups = layer.groups

    def _apply_kernels(self, x: Tensor, weight: Tensor) -> Tensor:
        precision = self.current.precision
        if self.kernel == _POINT and self.groups == 1:
            y = product(x.flatten(1, 3), weight.flatten(2), precision)
            return y.view(*x.shape[:4], -1)
        if self.groups > 1 or (x.device.type == "cpu" and self.kernel.overlaps):
            return convolve_each(x, weight, self.kernel, self.groups, precision)
        return convolve(x, weight, self.kernel, precision)


class _StackedTransposedConvolution(_StackedKernels):
    """Transposed convolution, to the smallest size that it can come from."""

    def __init__(
        self, layer: nn.ConvTranspose2d, name: str, current: _Pass, bias_follows: bool
    ) -> None:
        super().__init__(layer, name, current, bias_follows)
        if layer.groups != 1 or {*layer.output_padding} != {0}:
            raise TypeError(f"{name}: transposed groups and output padding cannot be stacked")

    def _apply_kernels(self, x: Tensor, weight: Tensor) -> Tensor:
        return deconvolve(x, weight, self.kernel, self.current.precision)


class _StackedNorm(_Layer):
    """Batch normalisation, with the activation that follows it.

    In training, a bias just before it vanishes from the result, and has a gradient of exactly 0: it
    only moves the running mean.
    """

    def __init__(
        self,
        layer: nn.BatchNorm1d | nn.BatchNorm2d,
        name: str,
        current: _Pass,
        bias: str | None,
        activation: Activation,
    ) -> None:
        super().__init__(name, current)
        if layer.momentum is None or not layer.track_running_stats:
            raise TypeError(f"{name}: only exponential running statistics can be stacked")
        self.momentum, self.epsilon = layer.momentum, layer.eps
        self.affine = layer.affine
        self.bias = bias
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        channels_inner = x.permute(0, 2, 3, 1) if x.dim() == 4 else x
        rows = channels_inner.reshape(self._clients(), self.current.views, -1, x.shape[1])
        normed = self._train(rows) if self.training else self._evaluate(rows)
        y = normed.view(channels_inner.shape)
        return y.permute(0, 3, 1, 2) if x.dim() == 4 else y

    def _clients(self) -> int:
        return len(self.entry("running_mean"))

    def _affine(self) -> tuple[Tensor, Tensor]:
        """Scale and shift of shape (clients, 1, 1, channels)."""
        if self.affine:
            weight, bias = self.entry("weight"), self.entry("bias")
        else:
            weight = torch.ones_like(self.entry("running_mean"))
            bias = torch.zeros_like(weight)
        return weight[:, None, None], bias[:, None, None]

    def _train(self, x: Tensor) -> Tensor:
        counts, mask = self._counted_rows(x)
        y, mean, variance = standardise(
            x, *self._affine(), counts, mask, self.activation, self.epsilon
        )
        with torch.no_grad():
            if self.bias is not None:
                mean = mean + self.current.entries[self.bias][:, None, None]
            unbiased = variance * (counts / (counts - 1).clamp(min=1))
            for view in range(self.current.views):
                self.entry("running_mean").lerp_(mean[:, view, 0], self.momentum)
                self.entry("running_var").lerp_(unbiased[:, view, 0], self.momentum)
        return y

    def _counted_rows(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """How many rows count, (clients, 1, 1, 1), and which, (clients, 1, rows, 1)."""
        mask = self.current.mask
        if mask is None:
            return x.new_full((len(x), 1, 1, 1), x.shape[2]), None
        by_row = mask.to(x.dtype).repeat_interleave(x.shape[2] // mask.shape[1], dim=1)
        return by_row.sum(dim=1).view(-1, 1, 1, 1), by_row[:, None, :, None]

    def _evaluate(self, x: Tensor) -> Tensor:
        weight, bias = self._affine()
        mean = self.entry("running_mean")
        if self.bias is not None:
            mean = mean - self.current.entries[self.bias]
        inverse = (self.entry("running_var") + self.epsilon).rsqrt()
        scale = weight * inverse[:, None, None]
        y = torch.addcmul(bias - mean[:, None, None] * scale, x, scale)
        return self.activation.apply_(y)


def _stack(module: nn.Module, name: str, current: _Pass) -> nn.Module:
    """The module with every layer that has weights replaced by its stacked counterpart."""
    linear = _stacked_map(module, name, current, bias_follows=False)
    if linear is not None:
        return linear
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        return _StackedNorm(module, name, current, bias=None, activation=NO_ACTIVATION)
    if next(module.parameters(recurse=False), None) is not None:
        raise TypeError(f"{name}: {type(module).__name__} cannot be stacked")
    stacked = copy.copy(module)
    prefix = f"{name}." if name else ""
    stacked._modules = {k: _stack(m, prefix + k, current) for k, m in module.named_children()}
    if isinstance(module, nn.Sequential):
        stacked._modules |= _fused(module, prefix, current)
    return stacked


def _stacked_map(module: nn.Module, name: str, current: _Pass, bias_follows: bool) -> _Layer | None:
    """The counterpart of a layer that is a linear map with a bias; None for any other layer."""
    if isinstance(module, nn.Linear):
        return _StackedLinear(module, name, current, bias_follows)
    if isinstance(module, nn.Conv2d):
        return _StackedConvolution(module, name, current, bias_follows)
    if isinstance(module, nn.ConvTranspose2d):
        return _StackedTransposedConvolution(module, name, current, bias_follows)
    return None


def _fused(sequence: nn.Sequential, prefix: str, current: _Pass) -> dict[str, nn.Module]:
    """The layers of a sequence that work together: linear map, normalisation, activation."""
    fused: dict[str, nn.Module] = {}
    named = [*sequence.named_children(), ("", nn.Identity()), ("", nn.Identity())]
    for (name, first), (norm_name, norm), (next_name, following) in zip(
        named, named[1:], named[2:], strict=False
    ):
        if not isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            continue
        bias = None
        linear = _stacked_map(first, prefix + name, current, bias_follows=True)
        if linear is not None:
            fused[name] = linear
            if first.bias is not None:
                bias = f"{prefix}{name}.bias"
        activation = _activation(following)
        if activation != NO_ACTIVATION:
            fused[next_name] = nn.Identity()
        fused[norm_name] = _StackedNorm(norm, prefix + norm_name, current, bias, activation)
    return fused


def _activation(module: nn.Module) -> Activation:
    if isinstance(module, nn.ReLU6):
        return Activation(slope=0, ceiling=6)
    if isinstance(module, nn.ReLU):
        return Activation(slope=0)
    return Activation(module.negative_slope) if isinstance(module, nn.LeakyReLU) else NO_ACTIVATION


@contextmanager
def _tf32_products(wanted: bool) -> Iterator[None]:
    """Let float32 products round their inputs to TF32 here, and nowhere else."""
    if not wanted:
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class ModelStack:
    """Models of one shape that run, and can be trained, together.

    Args:
        make_model: Builds one of them, of linear layers, convolutions and normalisations.
        capacity: How many there is room for.
        device: Where they live.
        trained: Whether gradients are wanted.
        precision: ``float32``, or ``tf32`` or ``bfloat16`` for rounded matrix products.

    Attributes:
        parameters: One flat tensor a model, with all its parameters, for an optimizer.
        gradients: Their gradients, which ``backward`` sets for the active models.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        capacity: int,
        device: torch.device,
        trained: bool = True,
        precision: str = "float32",
    ) -> None:
        with torch.device("meta"):
            model = make_model()
        self._weights = FlatLayout(model.named_parameters())
        kept = [(n, b) for n, b in model.named_buffers() if n in model.state_dict()]
        self._statistics = FlatLayout((n, b) for n, b in kept if b.is_floating_point())
        self._counters = [name for name, buffer in kept if not buffer.is_floating_point()]
        # Apart, since autograd must not mistake a moved statistic for a changed weight.
        values = torch.zeros(capacity, self._weights.size, device=device)
        self.parameters = list(values)
        self._values = values
        self._moving = torch.zeros(capacity, self._statistics.size, device=device)
        self._counts = torch.zeros(capacity, len(self._counters), dtype=torch.int64)
        gradients = torch.zeros_like(values if trained else values[:0])
        self.gradients = list(gradients)
        self._gradients = gradients
        self._tf32 = precision == "tf32"
        self._pass = _Pass(precision=torch.bfloat16 if precision == "bfloat16" else None)
        self._network = _stack(model, "", self._pass).train(trained)
        self._trained = trained
        self._active = slice(0, 0)
        self.activate(capacity)

    @property
    def trained_names(self) -> list[str]:
        """Names of the parameters, which an optimizer moves; the other entries are statistics."""
        return self._weights.names

    @property
    def weights(self) -> Tensor:
        """The active models' parameters, a view of shape (models, size of a model)."""
        return self._values[self._active]

    @property
    def weight_gradients(self) -> Tensor:
        """Their gradients, a view of the same shape, as ``backward`` set them."""
        return self._gradients[self._active]

    def load(self, index: int, state: Mapping[str, Tensor]) -> None:
        """Copy a model's weights and buffers in."""
        self._weights.fill(self._values[index], state)
        self._statistics.fill(self._moving[index], state)
        for column, name in enumerate(self._counters):
            self._counts[index, column] = state[name].cpu()

    def state(self, index: int) -> ModelState:
        """A copy of a model's weights and buffers."""
        counts = dict(zip(self._counters, self._counts[index].clone(), strict=True))
        weights = self._weights.views(self._values[index].clone())
        return weights | self._statistics.views(self._moving[index].clone()) | counts

    def activate(self, count: int, first: int = 0) -> None:
        """Run only ``count`` models from now on, from the ``first`` one."""
        if self._active == slice(first, first + count):
            return
        self._active = slice(first, first + count)
        entries = self._weights.views(self._values[self._active])
        if self._trained:
            gradients = self._weights.views(self._gradients[self._active])
            for name, entry in entries.items():
                entries[name] = entry.detach().requires_grad_()
            self._leaves = [(entries[name], gradients[name]) for name in gradients]
        self._pass.entries = entries | self._statistics.views(self._moving[self._active])

    def backward(self, loss: Tensor) -> None:
        """Set the gradients of the active models' parameters to those of ``loss``, a scalar."""
        leaves = [leaf for leaf, _ in self._leaves]
        with _tf32_products(self._tf32):
            found = torch.autograd.grad(loss, leaves, allow_unused=True)
        for (_, target), gradient in zip(self._leaves, found, strict=True):
            if gradient is None:  # a bias that a normalisation takes away again
                target.zero_()
            else:
                target.copy_(gradient)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Passes in this block give gradients to their inputs, and none to the weights.

        Which models are active must not change in the block. In training the running statistics
        move as ever.
        """
        entries = self._pass.entries
        self._pass.entries = {name: entry.detach() for name, entry in entries.items()}
        try:
            yield
        finally:
            self._pass.entries = entries

    def train(self, training: bool = True) -> None:
        """Normalise over the batch, and move the running statistics; or use these."""
        self._network.train(training)

    def __call__(
        self, inputs: Tensor, views: int = 1, mask: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Run each active model on its own images, or whatever the network takes.

        Args:
            inputs: Float tensor of shape (models · views · batch, …): images have the further axes
                (channels, height, width), the vectors that a generator takes only one.
            views: Views of each model's batch.
            mask: 1 for each sample that counts, float of shape (models, batch); None where all do.

        Returns:
            What the network gives, each part of shape (models, views, batch, …).
        """
        self._pass.views, self._pass.mask = views, mask
        if self._network.training:
            self._counts[self._active] += views
        with _tf32_products(self._tf32):
            results = self._network(inputs)
        parts = results if isinstance(results, tuple) else (results,)
        models = self._active.stop - self._active.start
        return tuple(part.view(models, views, -1, *part.shape[1:]) for part in parts)


_MODEL_COPIES = 8
"""Weights; gradients, where they are kept and as they come; two moments, and those of the round
before; the update of this client and of one of the cohort before."""


def training_bytes(
    make_model: Callable[[], nn.Module], input_shape: Sequence[int], batch: int, views: int
) -> int:
    """Memory that one more model in a stack takes while it is trained.

    Args:
        make_model: Builds the model.
        input_shape: Channels, height and width of an image, or the shape of another input.
        batch: Inputs in a batch.
        views: Views of each input.

    Returns:
        Bytes of its copies and of what a forward pass keeps, by the example of two inputs.
    """
    stack = ModelStack(make_model, 1, torch.device("cpu"))
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        results = stack(torch.zeros(2, *input_shape))
    kept.pop(stack.parameters[0].untyped_storage().data_ptr(), None)
    del results  # Only now may the storages be used again.
    model_bytes = stack.parameters[0].nbytes
    activations = sum(kept.values()) * views * batch // 2
    return int(activations + _MODEL_COPIES * model_bytes)
