"""The Gaussian mechanism: what each contributor adds is clipped, and the sum gets noise.

Source: McMahan, Ramage, Talwar and Zhang, *Learning Differentially Private Recurrent Language
Models* (ICLR 2018); Abadi et al., *Deep Learning with Differential Privacy* (CCS 2016).

The parts of an update are of different sizes, so each group of them has a bound of its own. Of G
groups with bounds C_g, group g gets noise of standard deviation z C_g √G: divided by C_g √G, one
contributor changes all groups together by at most 1, and the noise of each number is z.
"""

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.privacy.addition import Parts

_STATISTICS = ("sums", "slopes")
"""Parts of which each name is a group by itself: they are of different sizes."""


def group_of(name: str) -> str:
    """The group of a part: ``gradient/a.b`` belongs to ``gradient``, ``sums/a`` is its own."""
    first = name.partition("/")[0]
    return name if first in _STATISTICS else first


def groups(names: Iterable[str]) -> dict[str, list[str]]:
    """The names of the parts of each group."""
    found: dict[str, list[str]] = {}
    for name in sorted(names):
        found.setdefault(group_of(name), []).append(name)
    return found


@dataclass(frozen=True)
class Bounds:
    """How large a contribution may be.

    Attributes:
        clip: C of groups that have no bound of their own.
        of_group: C by group, or by what is before its ``/``.
    """

    clip: float
    of_group: Mapping[str, float]

    def of(self, group: str) -> float:
        """C of a group."""
        before = group.partition("/")[0]
        return self.of_group.get(group, self.of_group.get(before, self.clip))

    def clipped(self, parts: Mapping[str, Tensor]) -> Parts:
        """The parts of one contributor, each group scaled down to its bound where it is beyond."""
        found: Parts = {}
        for group, names in groups(parts).items():
            norm = math.sqrt(sum(float(parts[name].square().sum()) for name in names))
            factor = min(1.0, self.of(group) / norm) if norm > 0 else 1.0
            found |= {name: factor * parts[name] for name in names}
        return found

    def noised(self, totals: Mapping[str, Tensor], noise: float, source: "NoiseSource") -> Parts:
        """Sums of clipped parts with their noise.

        Args:
            totals: float64 by name.
            noise: z.
            source: Of standard normal numbers.
        """
        found: Parts = {}
        grouped = groups(totals)
        for group, names in grouped.items():
            deviation = noise * self.of(group) * math.sqrt(len(grouped))
            found |= {
                name: totals[name] + deviation * source.normal(totals[name]) for name in names
            }
        return found


class NoiseSource:
    """Standard normal numbers: of the operating system's randomness, which nobody can draw again.

    Args:
        reproducible: Where it is given, numbers follow from it, and protect nothing from whoever
            knows the run's seed.
    """

    def __init__(self, reproducible: Randomness | None = None) -> None:
        self._reproducible = reproducible
        self._drawn = 0

    def normal(self, like: Tensor) -> Tensor:
        """float64 of the shape of a tensor, on its device."""
        if self._reproducible is None:
            generator = np.random.Generator(np.random.Philox(secrets.randbits(256)))
            drawn = torch.from_numpy(generator.standard_normal(tuple(like.shape)))
        else:
            self._drawn += 1
            source = self._reproducible.generator(f"privacy noise {self._drawn}")
            drawn = torch.randn(like.shape, generator=source, dtype=torch.float64)
        return torch.as_tensor(drawn, dtype=torch.float64).reshape(like.shape).to(like.device)

    def at_round(self, number: int) -> None:
        """Say which round it is."""
        if self._reproducible is not None:
            self._reproducible = self._reproducible.at_round(number)
            self._drawn = 0
