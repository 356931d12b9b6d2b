"""Random small networks and data of the theory's tests."""

import torch
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.papers.theory.classification import LabelledData
from ccfcpp.papers.theory.contrast import ClusteredData
from ccfcpp.papers.theory.linear_networks import SplitNetwork, random_layers
from ccfcpp.papers.theory.problems import one_hot

INPUTS, LATENT, OUTPUTS, SAMPLES = 6, 4, 5, 12


def network(seed: int, depth: int, head_depth: int, outputs: int = OUTPUTS) -> SplitNetwork:
    widths = [INPUTS, *[LATENT] * depth, *[LATENT] * (head_depth - 1), outputs]
    generator = Randomness(seed).generator("network")
    return SplitNetwork(random_layers((), widths, 1.0, generator), depth)


def normal(seed: int, purpose: str, *shape: int) -> Tensor:
    generator = Randomness(seed).generator(purpose)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def labels(seed: int, count: int) -> Tensor:
    generator = Randomness(seed).generator("labels")
    return torch.randint(count, (SAMPLES,), generator=generator)


def labelled(seed: int, spread: float = 1.0) -> LabelledData:
    members = one_hot(labels(seed, OUTPUTS), OUTPUTS)
    centres = normal(seed, "means", INPUTS, OUTPUTS) @ members
    return LabelledData(centres + spread * normal(seed, "noise", INPUTS, SAMPLES), members)


def clustered(seed: int, lam: float, clusters: int = 3) -> ClusteredData:
    return ClusteredData(
        normal(seed, "inputs", INPUTS, SAMPLES),
        one_hot(labels(seed, clusters), clusters),
        normal(seed, "global", LATENT, SAMPLES),
        lam,
    )
