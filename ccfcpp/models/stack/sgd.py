"""SGD with momentum over a stack of models, each with a momentum of its own."""

from collections.abc import Sequence

import torch
from torch import Tensor

# The function, not the class: making an optimizer object imports PyTorch's compiler for seconds.
from torch.optim.sgd import sgd


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
