"""A client's contribution to a synchronised training step: a sum over images, each of them clipped.

The contributions of ``ccfcpp.engine.synchronised.tape`` are computed here for each image alone:
with pooled sums S₁ … S_m, statistics t_i of them, and the pooled gradients λ_i at these sums known,
image x adds s_i(x) to sum i, ∂/∂t_i [ℓ(x) + Σ_{j>i} ⟨λ_j, s_j(x)⟩] to the gradient at statistics i,
and ∂/∂θ [ℓ(x) + Σ_j ⟨λ_j, s_j(x)⟩] to that of the model. PyTorch's ``vmap`` makes these for many
images side by side.

Source of the per-example gradients: Abadi et al., *Deep Learning with Differential Privacy* (2016).
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.exchange import AnyExchange
from ccfcpp.engine.synchronised.contract import Batch, Contribution
from ccfcpp.engine.synchronised.tape import gradient_at_sum, gradients_at_statistics
from ccfcpp.models.pooled import Objective, Pool, Program
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.mechanism import Bounds, NoiseSource, image_bounds

ShownImages = tuple[Tensor, ...]
"""Tensors of a step's images, each of shape (images, …): their views, and perhaps their labels."""

_NUMBERS_AT_A_TIME = 50_000_000
"""Numbers of per-image gradients at a time: 200 MB."""


@dataclass(frozen=True)
class _Run:
    """Result of running a program (generator of the loss) as far as pooled sums are known."""

    sums: dict[str, Tensor]
    pools: dict[str, Pool]
    objective: Objective | None


class _Driver(nn.Module):
    """Module whose forward computes a network's loss, so that parameters can be passed to it."""

    def __init__(self, network: nn.Module, program: Callable[..., Program]) -> None:
        super().__init__()
        self.network = network
        self.program = program

    def forward(
        self, image: ShownImages, totals: Mapping[str, Tensor], at: Mapping[str, Tensor]
    ) -> _Run:
        program, sums, pools = self.program(*(of.unsqueeze(0) for of in image)), {}, {}
        try:
            pool = next(program)
            while True:
                name = pool.name
                sums[name], pools[name] = pool.sums(pool.of), pool
                if name not in totals:
                    return _Run(sums, pools, None)
                statistics = at[name] if name in at else pool.statistics(totals[name])
                pool = program.send((pool.of, statistics))
        except StopIteration as end:
            return _Run(sums, pools, end.value)


class ImageSums:
    """State of one training step in which each image's contribution is clipped.

    Args:
        network: The model.
        batch: All images of the step, at least one.
        parameters: The model's parameters by name.
        bounds: Bounds on the norm of an image's contribution.
        trips: A template of each exchange's contribution, of which only names and shapes count.
    """

    def __init__(
        self,
        network: nn.Module,
        batch: Batch,
        parameters: Mapping[str, Tensor],
        bounds: Bounds,
        trips: Sequence[Contribution],
    ) -> None:
        self._trips = iter(trips)
        self.driver = _Driver(network, batch.program)
        self.shown = batch.shown
        self.parameters = {f"network.{name}": p.detach() for name, p in parameters.items()}
        self.bounds = bounds
        self.totals: dict[str, Tensor] = {}
        self.slopes: dict[str, Tensor] = {}
        self._pools: dict[str, Pool] = {}
        self._statistics: dict[str, Tensor] = {}
        self._common: dict[str, Tensor] = {}
        self._slopes_at_sums: dict[str, Tensor] = {}

    def advance(self, totals: Mapping[str, Tensor], slopes: Mapping[str, Tensor]) -> Contribution:
        """Return the sum of the images' clipped contributions to the next exchange, float64.

        Args:
            totals: Pooled sums that are newly known, by name.
            slopes: Pooled gradients at sums that are newly known, by name.
        """
        wanted = next(self._trips)
        self.totals |= totals
        self.slopes |= slopes
        if wanted.slopes or wanted.gradient:
            if not self._common:
                self._differentiate_common()
            self._slopes_at_sums = {name: self._at_sum(pool) for name, pool in self._pools.items()}
        found: dict[str, Tensor] = {}
        at_a_time = max(1, _NUMBERS_AT_A_TIME // _numbers(wanted))
        for part in zip(*(torch.split(of, at_a_time) for of in self.shown), strict=True):
            for name, one in self.bounds.clip_and_sum(self._of_each(part, wanted)).items():
                found[name] = found[name] + one if name in found else one
        return Contribution(
            *(
                {name: found[f"{kind}/{name}"] for name in parts}
                for kind, parts in vars(wanted).items()
            )
        )

    def _of_each(self, shown: ShownImages, wanted: Contribution) -> dict[str, Tensor]:
        """Compute each image's contribution to the sums in ``wanted``, float64 (images, …)."""
        found: dict[str, Tensor] = {}
        if wanted.sums:
            sums = vmap(lambda image: self._run(self.parameters, {}, image).sums)(shown)
            found |= {f"sums/{name}": sums[name] for name in wanted.sums}
        for name in wanted.slopes:
            by_statistics = grad(self._surrogate, argnums=1, has_aux=True)
            here = {name: self._statistics[name]}
            at, _ = vmap(by_statistics, in_dims=(None, None, 0))(self.parameters, here, shown)
            found[f"slopes/{name}"] = at[name]
        if wanted.gradient:
            by_weights = vmap(grad(self._surrogate, has_aux=True), in_dims=(None, None, 0))
            gradients, figures = by_weights(self.parameters, {}, shown)
            found |= {f"gradient/{n}": gradients[f"network.{n}"] for n in wanted.gradient}
            found |= {f"figures/{name}": figures[name] for name in wanted.figures}
        return {name: part.detach().double() for name, part in found.items()}

    def _run(
        self, parameters: Mapping[str, Tensor], at: Mapping[str, Tensor], image: ShownImages
    ) -> _Run:
        run: _Run = functional_call(self.driver, dict(parameters), (image, self.totals, at))
        return run

    def _surrogate(
        self, parameters: Mapping[str, Tensor], at: Mapping[str, Tensor], image: ShownImages
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute an image's surrogate loss ℓ(x) + Σ_j ⟨λ_j, s_j(x)⟩ (see the module), and metrics.

        ``at`` are the statistics t. The sum is over the known λ; s_j does not depend on t_i for
        i ≥ j, so that unknown λ do not matter.
        """
        run = self._run(parameters, at, image)
        assert run.objective is not None
        value = run.objective.local
        for name, sums in run.sums.items():
            value = value + (self._slopes_at_sums[name] * sums).sum()
        return value, dict(run.objective.figures or {})

    def _at_sum(self, pool: Pool) -> Tensor:
        """Return λ, the loss's gradient with respect to a pooled sum, as far as it is known."""
        slope = self._common[pool.name]
        if not pool.common and pool.name in self.slopes:
            slope = slope + self.slopes[pool.name]
        return gradient_at_sum(pool, self.totals[pool.name], slope)

    def _differentiate_common(self) -> None:
        """Compute and store the gradient, at all statistics, of the loss term common to images."""
        first = tuple(of[0] for of in self.shown)
        self._pools = self._run(self.parameters, {}, first).pools
        self._statistics = {
            name: pool.statistics(self.totals[name]).detach() for name, pool in self._pools.items()
        }
        leaves = {name: own.clone().requires_grad_() for name, own in self._statistics.items()}
        objective = self._run(self.parameters, leaves, first).objective
        assert objective is not None
        slopes = gradients_at_statistics(objective.common, leaves.values())
        self._common = dict(zip(leaves, slopes, strict=True))


def _numbers(wanted: Contribution) -> int:
    """Estimate how many values are computed for one image's contribution; 10,000 at least."""
    kinds: list[Mapping[str, Tensor]] = list(vars(wanted).values())
    return max(10_000, sum(part.numel() for parts in kinds for part in parts.values()))


class ImageBounding:
    """Clipping of what each image adds to a sum; implements the engine's ``Bounding``."""

    def __init__(self, config: PrivacyConfig) -> None:
        self.config = config
        self._source = NoiseSource(Randomness(0) if config.reproducible_noise else None)

    def select_images(
        self, samples: int, share: float, step: int, randomness: Randomness
    ) -> Tensor:
        """Draw a client's images independently and secretly, ``share`` of them on average.

        Returns:
            int64 indices, ascending; perhaps none.
        """
        drawn = self._source.of(randomness.at_round(step)).uniform(samples)
        return (drawn < share / samples).nonzero().flatten()

    def views(self, randomness: Randomness) -> Randomness:
        """Return a source of random numbers for augmented views that nobody else can reproduce.

        With reproducible views, whoever knows the seed could tell how many images of a client are
        in a step.
        """
        if self.config.reproducible_noise:
            return randomness
        return Randomness(secrets.randbits(256))

    def rows(self, exchange: AnyExchange, part: str, rows: Tensor) -> Tensor:
        """Clip each image's row, of (images, d), to the norm bound of the tensor named ``part``."""
        return image_bounds(self.config, exchange).clip_rows(part, rows)

    def open(
        self,
        exchange: AnyExchange,
        network: nn.Module,
        batch: Batch,
        parameters: Mapping[str, Tensor],
        trips: Sequence[Contribution],
    ) -> ImageSums:
        """Start a training step in which each image's contribution is clipped."""
        return ImageSums(network, batch, parameters, image_bounds(self.config, exchange), trips)


def bounding_of(config: PrivacyConfig) -> ImageBounding | None:
    """Return the object that clips what each image adds; None if images are not protected."""
    return ImageBounding(config) if config.level == "image" else None
