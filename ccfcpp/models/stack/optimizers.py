"""PyTorch's optimizers over a stack of models, each model with a state of its own."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

# The functions, not the classes: making an optimizer object imports PyTorch's compiler for seconds.
from torch.optim.adam import adam
from torch.optim.sgd import sgd

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class StackedAdam:
    """Adam (Kingma and Ba 2015) as PyTorch has it, in its fused form.

    Args:
        parameters: A flat tensor for each model.
        gradients: Their gradients, which are read at each step.
        learning_rate: The learning rate.
        betas: Decay rates of the first and of the second moments.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self._parameters = list(parameters)
        self._gradients = list(gradients)
        self._learning_rate = learning_rate
        self._betas = betas
        self._states = [
            {
                "step": torch.zeros((), dtype=torch.float32, device=row.device),
                "exp_avg": torch.zeros_like(row),
                "exp_avg_sq": torch.zeros_like(row),
            }
            for row in self._parameters
        ]

    def restore(self, index: int, state: Mapping[str, Tensor]) -> None:
        """Copy a model's step count and moments in, as ``state`` gave them."""
        for name in _MOMENTS:
            self._states[index][name].copy_(state[name])

    def state(self, index: int) -> dict[str, Tensor]:
        """Return a model's step count and moments."""
        return self._states[index]

    @torch.no_grad()
    def step(self, count: int) -> None:
        """Move the first ``count`` models."""
        steps, means, squares = ([s[name] for s in self._states[:count]] for name in _MOMENTS)
        adam(
            self._parameters[:count],
            self._gradients[:count],
            means,
            squares,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=self._learning_rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )


class StackedSGD:
    """SGD with momentum and weight decay as PyTorch has it, in its fused form.

    Args:
        parameters: A flat tensor for each model.
        gradients: Their gradients, which are read at each step.
        learning_rate: The learning rate.
        momentum: The momentum's factor, 0 for none.
        weight_decay: Factor of the weights that is added to their gradients.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        learning_rate: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        self._parameters = list(parameters)
        self._gradients = list(gradients)
        self._learning_rate = learning_rate
        self._momentum = momentum
        self._weight_decay = weight_decay
        # A momentum of 0 that moves as PyTorch's does equals its rule for the first step.
        self._momenta: list[Tensor | None] = [
            torch.zeros_like(row) if momentum else None for row in self._parameters
        ]

    @torch.no_grad()
    def step(self, count: int) -> None:
        """Move the first ``count`` models."""
        sgd(
            self._parameters[:count],
            self._gradients[:count],
            self._momenta[:count],
            fused=True,
            weight_decay=self._weight_decay,
            momentum=self._momentum,
            lr=self._learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
