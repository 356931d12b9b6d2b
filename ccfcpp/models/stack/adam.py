"""Adam over a stack of models, each with moments and a step count of its own."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

# The function, not the class: making an optimizer object imports PyTorch's compiler for seconds.
from torch.optim.adam import adam

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class StackedAdam:
    """Adam (Kingma and Ba 2015) as PyTorch has it, in its fused form.

    Args:
        parameters: A flat tensor for each model.
        gradients: Their gradients, which are read at each step.
        learning_rate: The learning rate.
        betas: How much of the first and of the second moments stays from step to step.
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
        """Go on with what ``state`` gave for a model; the tensors given are not changed."""
        for name in _MOMENTS:
            self._states[index][name].copy_(state[name])

    def state(self, index: int) -> dict[str, Tensor]:
        """A model's step count and moments."""
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
