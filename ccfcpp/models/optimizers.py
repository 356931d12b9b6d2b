"""PyTorch's fused optimizers, on the weights of a ``FlatNetwork``, which are one vector."""

from collections.abc import Mapping

import torch
from torch import Tensor

# The functions, not the classes: making an optimizer object imports PyTorch's compiler for seconds.
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from ccfcpp.models.network import FlatNetwork


class FlatAdam:
    """Adam (Kingma and Ba 2015) as in PyTorch, on the weights of a ``FlatNetwork``.

    Args:
        network: The network whose gradients are read at each step.
        betas: Decay rates of the first and of the second moments.
    """

    def __init__(self, network: FlatNetwork, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        weights = network.weights
        self._weights, self._gradients = weights, network.gradients
        self._betas = betas
        self._moments = {
            "step": torch.zeros((), dtype=torch.float32, device=weights.device),
            "exp_avg": torch.zeros_like(weights),
            "exp_avg_sq": torch.zeros_like(weights),
        }
        # On a GPU, since a captured step reads each round's rate from the same address.
        self._on_device = torch.zeros((), device=weights.device) if weights.is_cuda else None
        self._rate: float | Tensor = 0.0

    def begin(self, learning_rate: float, moments: Mapping[str, Tensor] | None = None) -> None:
        """Set the learning rate, and the moments to what ``moments()`` returned; None: to 0."""
        for name, own in self._moments.items():
            if moments:
                own.copy_(moments[name])
            else:
                own.zero_()
        self._rate = learning_rate
        if self._on_device is not None:
            self._rate = self._on_device.fill_(learning_rate)

    def moments(self) -> dict[str, Tensor]:
        """Return copies of the step count and the moments, by PyTorch's names."""
        return {name: tensor.clone() for name, tensor in self._moments.items()}

    @torch.no_grad()
    def step(self) -> None:
        """Update the weights with their gradients."""
        adam(
            [self._weights],
            [self._gradients],
            [self._moments["exp_avg"]],
            [self._moments["exp_avg_sq"]],
            [],
            [self._moments["step"]],
            fused=True,
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=self._rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )


class FlatSGD:
    """SGD with momentum and weight decay as in PyTorch, on the weights of a ``FlatNetwork``.

    Args:
        network: The network whose gradients are read at each step.
        learning_rate: The learning rate.
        momentum: Factor of the momentum, 0 for none.
        weight_decay: Factor of the weights that is added to their gradients.
    """

    def __init__(
        self, network: FlatNetwork, learning_rate: float, momentum: float, weight_decay: float
    ) -> None:
        self._weights, self._gradients = network.weights, network.gradients
        self._learning_rate = learning_rate
        self._momentum = momentum
        self._weight_decay = weight_decay
        # Zeros give the same first step as PyTorch's rule, which starts from the gradient.
        self._moving = torch.zeros_like(network.weights) if momentum else None

    def begin(self) -> None:
        """Reset the momentum to 0."""
        if self._moving is not None:
            self._moving.zero_()

    @torch.no_grad()
    def step(self) -> None:
        """Update the weights with their gradients."""
        sgd(
            [self._weights],
            [self._gradients],
            [self._moving],
            fused=True,
            weight_decay=self._weight_decay,
            momentum=self._momentum,
            lr=self._learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
