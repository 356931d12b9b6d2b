"""Noise that clients add in parts, under the masks of a secure sum, which hide sums without it.

Source: Kairouz, Liu and Steinke, *The Distributed Discrete Gaussian Mechanism for Federated
Learning with Secure Aggregation* (ICML 2021).

Each client scales its clipped numbers, rounds them to integers, and adds to each an integer of its
own from the discrete Gaussian of variance s². A sum that the server can learn has the parts of at
least m honest clients (``min_honest_clients``), and the noise is scaled for these: of m clients
alone it has the variance that the accountant assumes. The noise of more clients only hides more.

**What it costs.** What the accountant says of one Gaussian of variance m s² (1 − 2⁻²⁰)²:

1. The sum of m discrete Gaussians is one of variance m s², up to factors of exp(±τ) in each number,
   τ = 10 Σ exp(−2π²s² k/(k+1)), k = 1 … m − 1 (section 3 of the paper).
2. A continuous Gaussian of variance m s² − 4 whose value x becomes an integer z, with weights
   exp(−(z − x)²/8), is that discrete one up to factors of 1 ± 2·10⁻³⁴ in each number (Peikert, *An
   Efficient and Parallel Gaussian Sampler for Lattices*, 2010, section 3; by Poisson summation).
   Such rounding does not depend on the images, and commutes with shifts by integers. So the
   discrete Gaussian costs no more than the continuous one, whether images are sampled or not.

With s = 2²⁴ all these factors together change ε by less than 10⁻²⁰, for 10⁶ numbers in 10⁶ sums.
The shift itself is that of integers, clipped and then rounded, as in ``Bounds.rounding_steps``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.engine.exchange import AnyExchange, RefusedUpdateError
from ccfcpp.engine.update_format import Addends
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.mechanism import Bounds, NoiseSource, bounds_of
from ccfcpp.privacy.sums.agreement import Terms

EXPONENT = 24
"""log₂ of s, the standard deviation of a client's part of the noise, in units of its integers."""
_JUST_BELOW = 1 - 2**-20
"""Factor that covers the losses of point 2 above, and rounding in floating point."""
_MOST = 2.0**52
"""Bound on a client's integers: float64 holds larger ones exactly, so that noise fits, too."""


def min_honest_clients(terms: Terms, colluders: int) -> int:
    """Return the smallest number of honest clients in a sum that a dishonest server can learn.

    Args:
        terms: Terms of the sum.
        colluders: Number of clients that tell the server all they know.

    Raises:
        RefusedUpdateError: With so many colluders, it could learn a single client's numbers.
    """
    if honest := terms.honest(colluders):
        return honest
    raise RefusedUpdateError(
        f"privacy.colluders = {colluders} is too many for a secure sum of {terms.asked} clients "
        f"with a threshold of {terms.threshold}: give fewer, or a larger privacy.threshold"
    )


@dataclass(frozen=True)
class OwnNoise:
    """Noise of one sum, of which each client adds a part.

    Attributes:
        bounds: Norm bounds on what one client or image adds to the sum.
        noise: z, the standard deviation divided by the largest change by one contributor.
        honest: Number of clients whose parts alone make up that noise.
    """

    bounds: Bounds
    noise: float
    honest: int

    @staticmethod
    def of(config: PrivacyConfig, exchange: AnyExchange, terms: Terms) -> "OwnNoise | None":
        """Return the noise of an exchange's sum; None if clients add none.

        Raises:
            RefusedUpdateError: The noise is unknown, or there are too many colluders.
        """
        if not config.own_noise:
            return None
        if config.noise is None:
            raise RefusedUpdateError("the run does not say how much noise its sums get")
        bounds = bounds_of(config, exchange)
        return OwnNoise(bounds, config.noise, min_honest_clients(terms, config.colluders))

    def added(self, parts: Mapping[str, Tensor], source: NoiseSource, purpose: str) -> Addends:
        """Round a client's clipped parts and add its noise; return integers as float64 on the CPU.

        Args:
            parts: Clipped parts, float64 by name.
            source: Source of the noise.
            purpose: Name of the sum, for reproducible noise.

        Raises:
            RefusedUpdateError: The numbers are too large, or too many, for so little noise.
        """
        steps, noisy = self._steps(parts), {}
        for name, part in parts.items():
            whole = (part.cpu() / steps[name]).round()
            if not bool((whole.abs() < _MOST).all()):
                raise RefusedUpdateError(
                    f"it holds a number beyond 2^52 units of its noise: {self.noise:.3g} is too "
                    "little for privacy.noise_at = clients"
                )
            noise = source.discrete(whole.numel(), EXPONENT, f"{purpose}/{name}")
            noisy[name] = whole + torch.from_numpy(noise).view(whole.shape)
        return noisy

    def scaled(self, totals: Mapping[str, Tensor]) -> Addends:
        """Scale the noisy sums back to the units of the clients' numbers."""
        steps = self._steps(totals)
        return {name: total * steps[name] for name, total in totals.items()}

    def _steps(self, parts: Mapping[str, Tensor]) -> dict[str, float]:
        deviation = math.sqrt(self.honest) * 2.0**EXPONENT * _JUST_BELOW
        steps = self.bounds.rounding_steps(parts, self.noise, deviation)
        if not all(0 < step < math.inf for step in steps.values()):
            raise RefusedUpdateError(
                f"privacy.noise = {self.noise:.3g} for so many numbers is more than clients can "
                "add: give a larger privacy.epsilon, fewer rounds, or privacy.noise_at = server"
            )
        return steps
