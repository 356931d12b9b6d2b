"""A network whose weights lie in one vector, and whose gradients in another."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ccfcpp.models.pooled import Norm, rounding_dtype, updated_parameters
from ccfcpp.models.state import ModelState

_ALIGNMENT = 16
"""Tensors start at multiples of 16 numbers, 64 bytes, for vector instructions and caches."""


class FlatLayout:
    """Positions of named tensors in one vector.

    An optimizer then works on a whole model at once. Weights of convolutions lie channels-last.

    Args:
        tensors: Names and tensors, of which only the shapes are used.

    Attributes:
        size: Length of the vector.
    """

    def __init__(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self._entries: dict[str, tuple[Tensor, int]] = {}  # shape and strides, and the start
        self.size = 0
        for name, tensor in tensors:
            order = torch.channels_last if tensor.ndim == 4 else torch.contiguous_format
            laid_out = torch.empty(tensor.shape, device="meta", memory_format=order)
            self._entries[name] = laid_out, self.size
            self.size += -(-tensor.numel() // _ALIGNMENT) * _ALIGNMENT

    @property
    def names(self) -> list[str]:
        """Names of the tensors, in the order of the vector."""
        return list(self._entries)

    def views(self, flat: Tensor) -> ModelState:
        """Return the tensors in ``flat``, of shape (…, size), as views of it."""
        return {
            name: flat.as_strided(
                (*flat.shape[:-1], *like.shape),
                (*flat.stride()[:-1], *like.stride()),
                flat.storage_offset() + start,
            )
            for name, (like, start) in self._entries.items()
        }

    def fill(self, flat: Tensor, state: Mapping[str, Tensor]) -> None:
        """Copy a model's tensors into ``flat``, a vector of shape (size,)."""
        for name, view in self.views(flat).items():
            view.copy_(state[name])


@contextmanager
def _tf32_products(wanted: bool) -> Iterator[None]:
    """Allow TF32 in the block, or forbid it in convolutions; convolutions are deterministic."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if wanted else before)
    try:
        with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=wanted):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


class FlatNetwork:
    """A network whose weights are one vector; it is loaded with one model after another.

    Its tensors have fixed addresses, as captured steps (``ccfcpp.models.steps``) need.

    Args:
        make_model: Returns a new module.
        device: Device of the network.
        trained: Whether it computes gradients.
        precision: ``float32``, ``tf32``, ``bfloat16`` or ``auto``, as ``compute.precision``.

    Attributes:
        weights: All parameters, of shape (size,).
        gradients: Their gradients, which ``backward`` sets; empty unless ``trained``.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        device: torch.device,
        trained: bool = True,
        precision: str = "float32",
    ) -> None:
        with torch.device("meta"):
            module = make_model()
        self._layout = FlatLayout(module.named_parameters())
        kept = [(n, b) for n, b in module.named_buffers() if n in module.state_dict()]
        self._statistics = FlatLayout((n, b) for n, b in kept if b.is_floating_point())
        self._counters = {name: 0 for name, buffer in kept if not buffer.is_floating_point()}
        self.weights = torch.zeros(self._layout.size, device=device)
        self.gradients = torch.zeros_like(self.weights if trained else self.weights[:0])
        # A vector of its own: autograd would take a changed statistic for a changed weight.
        self._moving = torch.zeros(self._statistics.size, device=device)
        # One counter of batches for all layers, which a captured step can increase.
        self._passes = torch.zeros((), dtype=torch.int64, device=device)
        self._module = self._link(module, trained)
        self._on_cuda, self._tf32 = device.type == "cuda", precision == "tf32"
        self._rounded = rounding_dtype(precision, device)

    def _link(self, module: nn.Module, trained: bool) -> nn.Module:
        """Replace a module's parameters and buffers by views of the network's vectors."""
        moved = set(updated_parameters(module)) if trained else set()
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in moved)
        entries = self._layout.views(self.weights) | self._statistics.views(self._moving)
        module.load_state_dict(entries, strict=False, assign=True)
        for part in module.modules():
            if isinstance(part, Norm):
                if part.momentum is None or not part.track_running_stats:
                    raise TypeError("only exponential running statistics can be trained")
                part.num_batches_tracked = None
            if isinstance(part, nn.Sequential):
                for norm, following in itertools.pairwise(part):
                    if isinstance(norm, Norm) and hasattr(following, "inplace"):
                        setattr(following, "inplace", True)  # noqa: B010 - nothing else reads its input
        if trained:
            self._leaves = [p for n, p in module.named_parameters() if n in moved]
            targets = self._layout.views(self.gradients)
            self._targets = [targets[n] for n, _ in module.named_parameters() if n in moved]
        return module.train(trained)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Set the weights and buffers to those of a model."""
        self._layout.fill(self.weights, state)
        self._statistics.fill(self._moving, state)
        self._counters = {name: int(state[name]) for name in self._counters}
        self._passes.zero_()

    def state(self) -> ModelState:
        """Return copies of the weights and buffers, by name."""
        passes = int(self._passes) if self._counters else 0  # which waits for the device
        counts = {name: torch.tensor(n + passes) for name, n in self._counters.items()}
        weights = self._layout.views(self.weights.clone())
        return weights | self._statistics.views(self._moving.clone()) | counts

    def train(self, training: bool = True) -> None:
        """Switch to training mode, or else to evaluation mode."""
        self._module.train(training)

    def _products(self) -> AbstractContextManager[None]:
        """Return a context in which matrix products have the network's precision."""
        return _tf32_products(self._tf32) if self._on_cuda else nullcontext()

    def _run(self, inputs: Tensor) -> Any:
        if self._rounded is None:
            return self._module(inputs)
        with torch.autocast(inputs.device.type, self._rounded, cache_enabled=False):
            return self._module(inputs)

    def __call__(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the network's outputs for a batch.

        Args:
            inputs: Float tensor of shape (batch, …).

        Returns:
            The outputs, each of shape (batch, …) and of the weights' dtype.
        """
        with self._products():
            results = self._run(inputs)
        if self._module.training:
            self._passes += 1
        parts = results if isinstance(results, tuple) else (results,)
        return tuple(part.to(self.weights.dtype) for part in parts)

    def backward(self, loss: Tensor) -> None:
        """Set the gradients to those of ``loss``, a scalar."""
        with self._products():
            gradients = torch.autograd.grad(loss, self._leaves, allow_unused=True)
        self.gradients.zero_()
        for target, gradient in zip(self._targets, gradients, strict=True):
            if gradient is not None:
                target.copy_(gradient)


_MODEL_COPIES = 8
"""Weights, old and new gradients, two moments and those of the round before, and the updates of
this client and of one of the cohort before."""


def training_bytes(
    make_model: Callable[[], nn.Module], input_shape: Sequence[int], batch: int, views: int
) -> int:
    """Return the bytes that the training of one model takes.

    These are copies of the weights, and what a forward pass keeps, measured with two inputs.

    Args:
        make_model: Returns a new module.
        input_shape: Shape of an input, without the batch.
        batch: Number of samples in a batch.
        views: Number of views of each sample that pass the network in a step.
    """
    network = FlatNetwork(make_model, torch.device("cpu"))
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        results = network(torch.zeros(2, *input_shape))
    kept.pop(network.weights.untyped_storage().data_ptr(), None)
    del results  # Only now may the storages be used again.
    activations = sum(kept.values()) * views * batch // 2
    return int(activations + _MODEL_COPIES * network.weights.nbytes)
