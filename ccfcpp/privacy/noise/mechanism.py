"""The Gaussian mechanism: each contributor's part is clipped, and the sum gets noise.

A contributor is a client or an image, by the level of privacy.

Source: McMahan, Ramage, Talwar and Zhang, *Learning Differentially Private Recurrent Language
Models* (ICLR 2018); Abadi et al., *Deep Learning with Differential Privacy* (CCS 2016).

The parts (named tensors) of an update differ in size, so each group g of them has its own bound C_g
and a share w_g of the privacy loss of a sum, Σ w_g = 1. With the noise multiplier z, group g gets
noise of standard deviation z C_g/√w_g: divided by C_g/√w_g, one contributor changes all groups
together by √Σw_g = 1 at most, and the noise of each number is z.
"""

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ccfcpp.core.metrics import Integers
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.exchange import AnyExchange
from ccfcpp.engine.update_format import Addends, Part, Sum, find_part, group_names
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.discrete_gaussian import UniformWords, discrete_normal

_JUST_WITHIN = 1 - 2**-30
"""Factor that keeps a clipped norm below its bound, even if another processor rounds differently:
clipping again changes no bit, so that a server can clip what its clients have clipped."""

_SHARE_OF_REPORTS = 0.04
"""Share of the privacy loss for parts that only the report needs: so small that they get about five
times the noise."""


def shares(parts: Mapping[str, Part], names: Iterable[str]) -> dict[str, float]:
    """Return the share w of each group of parts in a sum's privacy loss; they add up to 1.

    Args:
        parts: Declared meaning of an update's parts, by name.
        names: Names of the groups. Those that only the report needs share a small part of the loss.
    """
    all_names = list(names)
    known = {name: find_part(parts, name) for name in all_names}
    reports = [name for name, part in known.items() if isinstance(part, Sum) and part.report]
    rest = len(all_names) - len(reports)
    if rest == 0 or not reports:
        return dict.fromkeys(all_names, 1 / len(all_names))
    equal = (1 - _SHARE_OF_REPORTS) / rest
    of_reports = _SHARE_OF_REPORTS / len(reports)
    return {name: of_reports if name in reports else equal for name in all_names}


@dataclass(frozen=True)
class Bounds:
    """Bounds on the Euclidean norm of what one contributor adds to the sums of an exchange.

    Attributes:
        exchange: The exchange.
        clip: Bound C of groups of parts (named tensors) that have no bound of their own.
        of_group: Bound C by the group's name, or by what stands before ``/`` in it.
        batch: Mean size of a batch. Parts declared ``of_batch`` are divided by it, and so are their
            bounds.
    """

    exchange: AnyExchange
    clip: float
    of_group: Mapping[str, float]
    batch: float = 1.0

    def of(self, group: str) -> float:
        """Return the bound C on the joint norm of a group of parts (named tensors)."""
        before = group.partition("/")[0]
        bound = self.of_group.get(group, self.of_group.get(before, self.clip))
        part = find_part(self.exchange.parts, group)
        return bound / self.batch if isinstance(part, Sum) and part.of_batch else bound

    def clip_parts(self, parts: Mapping[str, Tensor]) -> Addends:
        """Clip one contributor's tensors: scale down each group whose joint norm exceeds its bound.

        A group that holds NaN or Inf becomes 0: else one contributor would spoil the whole sum.
        """
        clipped: Addends = {}
        for group, names in self._groups(parts).items():
            norm = math.sqrt(sum(float(parts[name].square().sum()) for name in names))
            bound = self.of(group)
            factor = 1.0 if norm <= bound else bound * _JUST_WITHIN / norm
            is_number = math.isfinite(norm)
            clipped |= {
                name: factor * parts[name] if is_number else torch.zeros_like(parts[name])
                for name in names
            }
        return clipped

    def clip_and_sum(self, parts: Mapping[str, Tensor]) -> Addends:
        """Clip the tensors of each of several contributors, as ``clip_parts`` does, and sum them.

        Args:
            parts: Tensors of shape (contributors, …) by name.
        """
        sums: Addends = {}
        for group, names in self._groups(parts).items():
            rows = [parts[name].reshape(len(parts[name]), -1) for name in names]
            norms = torch.stack([row.square().sum(dim=1) for row in rows]).sum(dim=0).sqrt()
            factors, spoilt = self._factors(group, norms)
            rows = [row.masked_fill(spoilt.unsqueeze(1), 0) for row in rows]
            sums |= {
                name: (factors @ row).view(parts[name].shape[1:])
                for name, row in zip(names, rows, strict=True)
            }
        return sums

    def clip_rows(self, part: str, rows: Tensor) -> Tensor:
        """Clip the norm of each row to the bound of ``part``, a named tensor of the update.

        ``rows`` has the shape (contributors, d). Rows with NaN or Inf become 0.
        """
        factors, spoilt = self._factors(part, rows.norm(dim=1))
        return rows.masked_fill(spoilt.unsqueeze(1), 0) * factors.unsqueeze(1)

    def _factors(self, group: str, norms: Tensor) -> tuple[Tensor, Tensor]:
        """Return each contributor's scale factor, and whether its norm is not finite (factor 0)."""
        factors = (self.of(group) / norms.clamp(min=1e-300)).clamp(max=1.0)
        spoilt = ~norms.isfinite()
        return factors.masked_fill(spoilt, 0), spoilt

    def add_noise(
        self, totals: Mapping[str, Tensor], noise: float, source: "NoiseSource", step: float = 0.0
    ) -> Addends:
        """Add noise to sums of clipped parts.

        Args:
            totals: The sums, float64 by name.
            noise: z, the standard deviation divided by the largest change by one contributor.
            source: Source of random numbers.
            step: Step to which clients have rounded their clipped numbers; 0: not at all. By it one
                contributor can change each number more, and d numbers together by √d times that.
        """
        noisy: Addends = {}
        grouped = self._groups(totals)
        share = shares(self.exchange.parts, grouped)
        for group, names in grouped.items():
            rounding = step * math.sqrt(sum(totals[name].numel() for name in names))
            deviation = noise * (self.of(group) + rounding) / math.sqrt(share[group])
            noisy |= {
                name: totals[name] + deviation * source.normal(totals[name]) for name in names
            }
        return noisy

    def rounding_steps(
        self, parts: Mapping[str, Tensor], noise: float, deviation: float
    ) -> dict[str, float]:
        """Return each sum's rounding step for clients that add noise of ``deviation`` steps.

        With the step h of a group, whose d numbers are rounded to multiples of it, one contributor
        changes them by C + √d h at most. Noise of ``deviation`` steps is z (C + √d h)/√w if
        h = z C/√w / (deviation − z √d/√w).

        Args:
            parts: Sums by name, whose values are ignored.
            noise: z, the standard deviation divided by the largest change by one contributor.
            deviation: Standard deviation of the noise, in steps.

        Returns:
            The step by name; not positive, or infinite, if the noise is too small for any.
        """
        steps: dict[str, float] = {}
        grouped = self._groups(parts)
        share = shares(self.exchange.parts, grouped)
        for group, names in grouped.items():
            scaled = noise / math.sqrt(share[group])
            rest = deviation - scaled * math.sqrt(sum(parts[name].numel() for name in names))
            step = scaled * self.of(group) / rest if rest else math.inf
            steps |= dict.fromkeys(names, step)
        return steps

    def _groups(self, names: Iterable[str]) -> dict[str, list[str]]:
        return group_names(self.exchange.parts, names)


def bounds_of(config: PrivacyConfig, exchange: AnyExchange) -> Bounds:
    """Return the norm bounds on what one client, or at level "image" one image, adds to sums."""
    return (image_bounds if config.level == "image" else client_bounds)(config, exchange)


def clip_client_parts(config: PrivacyConfig, exchange: AnyExchange, parts: Addends) -> Addends:
    """Clip what a client adds to sums at privacy level "client"; else return it unchanged."""
    return client_bounds(config, exchange).clip_parts(parts) if config.level == "client" else parts


def client_bounds(config: PrivacyConfig, exchange: AnyExchange) -> Bounds:
    """Return the norm bounds on what one client adds to an exchange's sums."""
    return Bounds(exchange, config.clip, _configured(config, exchange.usual))


def image_bounds(config: PrivacyConfig, exchange: AnyExchange) -> Bounds:
    """Return the norm bounds on what one image adds to sums; raise ``ValueError`` if unbounded."""
    images = exchange.images
    if isinstance(images, str):
        raise ValueError(f"{exchange.name}: {images}")
    of_group = _configured(config, images.usual)
    # Configured bounds are for parts that are not yet divided by the batch.
    configured = Bounds(replace(exchange, parts={}), config.clip, of_group)
    tighter = {name: min(most, configured.of(name)) for name, most in images.largest.items()}
    return Bounds(exchange, config.clip, {**of_group, **tighter}, images.batch)


def _configured(config: PrivacyConfig, usual: Mapping[str, float]) -> dict[str, float]:
    """Return norm bounds by group: from ``privacy.clips``, else ``clip`` times the usual norm."""
    return {name: config.clip * size for name, size in usual.items()} | config.clips


class NoiseSource:
    """Source of secret random numbers: ChaCha20 with keys from the operating system.

    Args:
        reproducible: If given, numbers are drawn from this source instead, and protect nothing from
            anyone who knows the run's seed.
    """

    def __init__(self, reproducible: Randomness | None = None) -> None:
        self._reproducible = reproducible
        self._drawn = 0

    def normal(self, like: Tensor) -> Tensor:
        """Draw standard normal numbers, float64 of the shape of a tensor, on its device."""
        if self._reproducible is None:
            return _normal(like.numel()).view(like.shape).to(like.device)
        drawn = np.asarray(self._generator(self._reproducible).standard_normal(tuple(like.shape)))
        return torch.from_numpy(drawn).to(like.device)

    def uniform(self, numbers: int) -> Tensor:
        """Draw uniform numbers in [0, 1), float64 of shape (numbers,)."""
        if self._reproducible is None:
            return _uniform(numbers)
        return torch.from_numpy(self._generator(self._reproducible).random(numbers))

    def discrete(self, numbers: int, exponent: int, purpose: str) -> Integers:
        """Draw discrete Gaussians of standard deviation 2^exponent, int64 of shape (numbers,).

        ``purpose`` says what they are for: reproducible numbers differ between purposes.
        """
        own = self._reproducible
        words = np.random.Philox(own.integer(purpose)).random_raw if own else _open_word_stream()
        return discrete_normal(numbers, exponent, words)

    def of(self, randomness: Randomness) -> "NoiseSource":
        """Return this source, or if it is reproducible, one that draws from ``randomness``."""
        return self if self._reproducible is None else NoiseSource(randomness)

    def _generator(self, randomness: Randomness) -> np.random.Generator:
        self._drawn += 1
        return np.random.Generator(
            np.random.Philox(randomness.integer(f"privacy noise {self._drawn}"))
        )


def _open_word_stream() -> UniformWords:
    """Start a cryptographic stream of random words, with a fresh secret key."""
    # Imported where it is needed: it is an extra.
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    stream = Cipher(ChaCha20(secrets.token_bytes(32), secrets.token_bytes(16)), None).encryptor()
    return lambda numbers: np.frombuffer(bytearray(stream.update(bytes(8 * numbers))), "<u8")


def _uniform(numbers: int) -> Tensor:
    """Draw multiples of 2⁻⁵³ in [0, 1) from a cryptographic stream, float64 of shape (numbers,)."""
    words = _open_word_stream()(numbers)
    return torch.from_numpy((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _normal(numbers: int) -> Tensor:
    """Draw standard normal numbers, float64 of shape (numbers,), by Box and Muller (1958)."""
    half = (numbers + 1) // 2
    lengths, angles = _uniform(2 * half).view(2, half)
    lengths, angles = (-2 * (1 - lengths).log()).sqrt(), 2 * math.pi * angles
    return torch.cat([lengths * angles.cos(), lengths * angles.sin()])[:numbers]
