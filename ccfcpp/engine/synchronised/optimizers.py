"""Optimizers whose state stays at the server, for models as tensors by name.

``Adam``: Kingma and Ba, *Adam: A Method for Stochastic Optimization* (ICLR 2015). ``Muon``: Jordan
et al., *Muon: An optimizer for hidden layers in neural networks* (2024,
kellerjordan.github.io/posts/muon), with the scale of Liu et al., *Muon is Scalable for LLM
Training* (arXiv 2502.16982). It moves a matrix by the orthogonal matrix nearest to its momentum.
Communication costs far more than arithmetic at the server, and Muon needs fewer steps. No tensor is
changed in place.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor
from torch.optim.adam import adam

from ccfcpp.engine.synchronised.contract import DescentState
from ccfcpp.models.state import ModelState


def cosine_decay(done: float) -> float:
    """Return the learning-rate factor of cosine decay from 1 to 0 (Loshchilov and Hutter 2017).

    Args:
        done: Completed share of the run, in [0, 1].
    """
    return (1 + math.cos(math.pi * done)) / 2


class Optimizer(ABC):
    """Base class of the server's optimizers; their state is in ``DescentState``."""

    @abstractmethod
    def begin(self, parameters: ModelState) -> DescentState:
        """Return the training state before the first step."""

    @abstractmethod
    def step(
        self, parameters: ModelState, gradient: ModelState, descent: DescentState, share: float
    ) -> tuple[ModelState, DescentState]:
        """Return the parameters and the training state after a step.

        Args:
            parameters: The parameters, by name.
            gradient: The gradient, by parameter.
            descent: The training state; its number of steps is not changed here.
            share: Factor of the configured learning rates.
        """


class Adam(Optimizer):
    """Adam with PyTorch's defaults."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def begin(self, parameters: ModelState) -> DescentState:
        """Return the training state with moments of 0."""
        return DescentState(0, _zeros(parameters), _zeros(parameters))

    def step(
        self, parameters: ModelState, gradient: ModelState, descent: DescentState, share: float
    ) -> tuple[ModelState, DescentState]:
        """Return the parameters and the training state after a step of Adam."""
        names = list(parameters)
        moved, first, second = (
            [part[name].clone() for name in names]
            for part in (parameters, descent.first, descent.second)
        )
        steps = [torch.tensor(float(descent.steps)) for _ in names]
        with torch.no_grad():
            adam(
                moved,
                [gradient[name] for name in names],
                first,
                second,
                [],
                steps,
                foreach=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=self.rate * share,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )
        after = replace(descent, first=_named(names, first), second=_named(names, second))
        return _named(names, moved), after


class Muon(Optimizer):
    """Muon for matrices, Adam for the rest: biases, normalisations, matrices in ``rest_names``.

    A convolution's weights (out, in, height, width) count as a matrix (out, in · height · width).

    Args:
        rate: Muon's learning rate.
        rest: The optimizer of the rest.
        rest_names: Names of matrices that ``rest`` optimizes, too.
        momentum: Factor of the momentum from step to step; it is Nesterov's.
        precision: dtype to which the products that orthogonalise a matrix are rounded, as Jordan
            et al. do with bfloat16; None for no rounding.
    """

    def __init__(
        self,
        rate: float,
        rest: Adam,
        rest_names: Collection[str],
        momentum: float = 0.95,
        precision: torch.dtype | None = None,
    ) -> None:
        self.rate = rate
        self.rest = rest
        self.rest_names = frozenset(rest_names)
        self.momentum = momentum
        self.precision = precision

    def begin(self, parameters: ModelState) -> DescentState:
        """Return the training state with moments of 0; Muon's matrices have first moments only."""
        _, others = self._divided(parameters)
        return DescentState(0, _zeros(parameters), self.rest.begin(others).second)

    def step(
        self, parameters: ModelState, gradient: ModelState, descent: DescentState, share: float
    ) -> tuple[ModelState, DescentState]:
        """Return parameters and training state after Muon on the matrices and Adam on the rest."""
        matrices, others = self._divided(parameters)
        moved, after = self.rest.step(others, gradient, descent, share)
        first = dict(after.first)
        for name, matrix in matrices.items():
            first[name] = descent.first[name] * self.momentum + gradient[name]
            ahead = gradient[name] + self.momentum * first[name]
            moved[name] = matrix - self.rate * share * _direction(ahead, self.precision)
        return {name: moved[name] for name in parameters}, replace(after, first=first)

    def _divided(self, parameters: ModelState) -> tuple[ModelState, ModelState]:
        matrices = {n: p for n, p in parameters.items() if p.ndim > 1 and n not in self.rest_names}
        return matrices, {n: p for n, p in parameters.items() if n not in matrices}


def _direction(momentum: Tensor, precision: torch.dtype | None) -> Tensor:
    """Return a matrix's step at rate 1: orthogonalised momentum times 0.2 √max(rows, columns)."""
    matrix = orthogonalise(momentum.flatten(1), precision).to(momentum)
    return (0.2 * math.sqrt(max(matrix.shape)) * matrix).view_as(momentum)


_QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of Jordan et al.: five iterations map singular values in [0.01, 1] to about
[0.7, 1.2]."""
_ITERATIONS = 5


def orthogonalise(matrix: Tensor, precision: torch.dtype | None = None) -> Tensor:
    """Approximate UVᵀ of a matrix with the singular value decomposition UΣVᵀ (Newton–Schulz).

    Args:
        matrix: Float tensor with two axes.
        precision: dtype of the products; None for the matrix's own.

    Returns:
        A matrix with the same singular vectors and singular values of about 1, in that dtype.
    """
    a, b, c = _QUINTIC
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x: Tensor = (wide / (wide.norm() + 1e-7)).to(precision)
    for _ in range(_ITERATIONS):
        product = x @ x.T
        x = a * x + (b * product + c * product @ product) @ x
    return x if matrix.shape[0] <= matrix.shape[1] else x.T


def _zeros(parameters: ModelState) -> ModelState:
    return {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}


def _named(names: list[str], tensors: list[Tensor]) -> ModelState:
    return dict(zip(names, tensors, strict=True))
