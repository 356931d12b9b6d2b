"""Several models of one shape as a single network.

Clients lie along the batch axis: activations have the shape (clients · views · batch, …), so that
layers without weights need no change. Layers with weights hold those of every client; batch
normalisation keeps statistics of each client and each view apart. One model is a stack of one.
"""

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from ccfcpp.models.pooled import Norm, moved_parameters, rounding
from ccfcpp.models.stack.layout import FlatLayout
from ccfcpp.models.state import ModelState


@dataclass
class _Pass:
    """State of a forward pass that the layers share.

    Attributes:
        entries: Weights and buffers by name, each with a leading axis of clients.
        clients: Number of clients.
        views: Views of each client's batch; they share weights, but not statistics.
        lengths: How many samples of each client's batch count, the first ones; None where all do.
        precision: What products round their inputs to; None for no rounding.
    """

    entries: ModelState = field(default_factory=dict)
    clients: int = 0
    views: int = 1
    lengths: list[int] | None = None
    precision: torch.dtype | None = None


class _Layer(nn.Module):
    """A layer whose weights are looked up by name at each pass."""

    def __init__(self, name: str, current: _Pass) -> None:
        super().__init__()
        self.name = name
        self.current = current

    def entry(self, which: str) -> Tensor | None:
        """An entry of all clients; None where the layer has none of this name."""
        return self.current.entries.get(f"{self.name}.{which}")

    def entries(self, which: str) -> Sequence[Tensor | None]:
        """An entry of each client."""
        entry = self.entry(which)
        clients = self.current.clients
        if entry is None:
            return [None] * clients
        return entry.unbind() if clients > 1 else [entry.squeeze(0)]

    def rounded(self, x: Tensor) -> Tensor:
        """Round the input of a product; gradients are rounded in the same way."""
        return x.to(self.current.precision or x.dtype)


class _StackedLinear(_Layer):
    """Linear layer, as one product for all clients."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.entry("weight"), self.entry("bias")
        assert weight is not None
        rows = self.rounded(x.reshape(len(weight), -1, x.shape[-1]))
        y = torch.bmm(rows, self.rounded(weight).mT).to(weight.dtype)
        y = y if bias is None else y + bias.unsqueeze(1)
        return y.view(len(x), -1)


_SINGLE = nn.Conv2d | nn.ConvTranspose2d | nn.GroupNorm | nn.LayerNorm
"""Layers with weights that see one sample at a time."""


class _StackedSingle(_Layer):
    """A layer that sees one sample at a time, by the library, one client after the other."""

    def __init__(self, layer: _SINGLE, name: str, current: _Pass) -> None:
        super().__init__(name, current)
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        inputs = _parts(self.rounded(x), self.current.clients)
        own = zip(inputs, self.entries("weight"), self.entries("bias"), strict=True)
        return _joined([self._of_one(*each) for each in own])

    def _of_one(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        given = {"weight": weight, "bias": bias}
        entries = {name: self.rounded(entry) for name, entry in given.items() if entry is not None}
        y: Tensor = functional_call(self.layer, entries, (x,))
        return y


class _StackedNorm(_Layer):
    """Batch normalisation by the library, one client and view after the other."""

    def __init__(self, layer: Norm, name: str, current: _Pass) -> None:
        super().__init__(name, current)
        if layer.momentum is None or not layer.track_running_stats:
            raise TypeError(f"{name}: only exponential running statistics can be stacked")
        self.momentum, self.epsilon = layer.momentum, layer.eps

    def forward(self, x: Tensor) -> Tensor:
        names = ("running_mean", "running_var", "weight", "bias")
        own = list(zip(*(self.entries(name) for name in names), strict=True))
        views = self.current.views
        lengths = self.current.lengths or [len(x) // (len(own) * views)] * len(own)
        parts = [
            self._normalised(part, lengths[number // views], *own[number // views])
            for number, part in enumerate(_parts(x, len(own) * views))
        ]
        return _joined(parts)

    def _normalised(self, x: Tensor, length: int, *entries: Tensor | None) -> Tensor:
        """Normalise the first samples; those that do not count become 0."""
        missing = len(x) - length
        counted = x[:length] if missing else x
        mean, variance, weight, bias = entries
        y = F.batch_norm(
            counted, mean, variance, weight, bias, self.training, self.momentum, self.epsilon
        )
        return F.pad(y, [0, 0] * (x.dim() - 1) + [0, missing]) if missing else y


def _parts(x: Tensor, count: int) -> Sequence[Tensor]:
    """Return equal parts; a single part is ``x`` itself, since a chunk's gradient is copied."""
    return x.chunk(count) if count > 1 else [x]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Join the parts; a single part is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _stack(module: nn.Module, name: str, current: _Pass) -> nn.Module:
    """Copy a module, with a stacked layer in place of each layer that has weights."""
    if isinstance(module, nn.Linear):
        return _StackedLinear(name, current)
    if isinstance(module, _SINGLE):
        return _StackedSingle(module, name, current)
    if isinstance(module, Norm):
        return _StackedNorm(module, name, current)
    if next(module.parameters(recurse=False), None) is not None:
        raise TypeError(f"{name}: {type(module).__name__} cannot be stacked")
    stacked = copy.copy(module)
    prefix = f"{name}." if name else ""
    stacked._modules = {k: _stack(m, prefix + k, current) for k, m in module.named_children()}
    if isinstance(module, nn.Sequential):
        for norm, following in itertools.pairwise(stacked.children()):
            if isinstance(norm, _StackedNorm) and hasattr(following, "inplace"):
                setattr(following, "inplace", True)  # noqa: B010 - nothing else reads its input
    return stacked


@contextmanager
def _tf32_products(wanted: bool) -> Iterator[None]:
    """Round the inputs of float32 products to TF32, or not; convolutions are deterministic."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if wanted else before)
    try:
        with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=wanted):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


class ModelStack:
    """Models of one shape that run, and can be trained, together.

    Args:
        make_model: Builds a model of linear layers, convolutions and normalisations.
        capacity: Largest number of models.
        device: Where the models lie.
        trained: Whether gradients are wanted.
        precision: ``float32``, ``tf32``, ``bfloat16`` or ``auto``, as ``compute.precision``.

    Attributes:
        parameters: A flat tensor for each model with all its parameters, for an optimizer.
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
        self._moved = list(moved_parameters(model))
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
        self._pass = _Pass(precision=rounding(precision, device))
        self._network = _stack(model, "", self._pass).train(trained)
        self._trained = trained
        self._active = slice(0, 0)
        self.activate(capacity)

    @property
    def weights(self) -> Tensor:
        """The active models' parameters, a view of shape (models, size of a model)."""
        return self._values[self._active]

    @property
    def weight_gradients(self) -> Tensor:
        """The gradients that ``backward`` set, a view of the shape of ``weights``."""
        return self._gradients[self._active]

    def load(self, index: int, state: Mapping[str, Tensor]) -> None:
        """Copy a model's weights and buffers in."""
        self._weights.fill(self._values[index], state)
        self._statistics.fill(self._moving[index], state)
        for column, name in enumerate(self._counters):
            self._counts[index, column] = state[name].cpu()

    def state(self, index: int) -> ModelState:
        """Copy a model's weights and buffers out."""
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
            for name in self._moved:
                entries[name] = entries[name].detach().requires_grad_()
            self._leaves = [(entries[name], gradients.pop(name)) for name in self._moved]
            self._unmoved = list(gradients.values())
        self._pass.entries = entries | self._statistics.views(self._moving[self._active])
        self._pass.clients = count

    def backward(self, loss: Tensor) -> None:
        """Set the gradients of the active models' parameters to those of ``loss``, a scalar."""
        leaves = [leaf for leaf, _ in self._leaves]
        with _tf32_products(self._tf32):
            found = torch.autograd.grad(loss, leaves, allow_unused=True)
        for (_, target), gradient in zip(self._leaves, found, strict=True):
            target.copy_(torch.zeros(()) if gradient is None else gradient)
        for target in self._unmoved:  # of biases that a normalisation takes away again
            target.zero_()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Give gradients to the inputs of passes in this block, and none to the weights.

        The active models must stay the same in the block. In training, the running statistics move.
        """
        entries = self._pass.entries
        self._pass.entries = {name: entry.detach() for name, entry in entries.items()}
        try:
            yield
        finally:
            self._pass.entries = entries

    def train(self, training: bool = True) -> None:
        """Normalise over the batch and move the running statistics, or else use them."""
        self._network.train(training)

    def __call__(
        self, inputs: Tensor, views: int = 1, mask: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Run each active model on its own inputs.

        Args:
            inputs: Float tensor of shape (models · views · batch, …).
            views: Views of each model's batch.
            mask: 1 for each sample that counts, the first ones of each model, float of shape
                (models, batch); None where all do.

        Returns:
            The network's results, each of shape (models, views, batch, …).
        """
        self._pass.views = views
        self._pass.lengths = None if mask is None else mask.sum(dim=1).int().tolist()
        if self._network.training:
            self._counts[self._active] += views
        with _tf32_products(self._tf32):
            results = self._network(inputs)
        parts = results if isinstance(results, tuple) else (results,)
        models = self._active.stop - self._active.start
        shape = (models, views, -1)
        return tuple(p.to(self._values.dtype).view(*shape, *p.shape[1:]) for p in parts)


_MODEL_COPIES = 8
"""Weights; kept and new gradients; two moments, and those of the round before; the updates of this
client and of one of the cohort before."""


def training_bytes(
    make_model: Callable[[], nn.Module], input_shape: Sequence[int], batch: int, views: int
) -> int:
    """Return the bytes that one more model in a stack takes while it is trained.

    These are its copies and what a forward pass keeps, as measured with two inputs.
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
    activations = sum(kept.values()) * views * batch // 2
    return int(activations + _MODEL_COPIES * stack.parameters[0].nbytes)
