"""Random small networks and data of the theory's tests, and losses whose gradients they check."""

import torch
from torch import Tensor

from ccfcpp.clustering.systems.ccfc.losses import cluster_contrast
from ccfcpp.core.randomness import Randomness
from ccfcpp.studies.theory.networks import SplitNetwork, product, random_layers
from ccfcpp.studies.theory.problems import ClusteredData, LabelledData, one_hot

INPUTS, LATENT, OUTPUTS, SAMPLES = 6, 4, 5, 12


def network(seed: int, depth: int, head_depth: int, outputs: int = OUTPUTS) -> SplitNetwork:
    widths = [INPUTS, *[LATENT] * depth, *[LATENT] * (head_depth - 1), outputs]
    generator = Randomness(seed).generator("network")
    return SplitNetwork(random_layers((), widths, generator), depth)


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


def cross_entropy_sum(network: SplitNetwork, data: LabelledData) -> Tensor:
    """Return the loss of Eq. (35), the sum over samples and not the mean; shape (…)."""
    logits = product(network.layers) @ data.inputs
    return -(data.labels * torch.log_softmax(logits, dim=-2)).sum(dim=(-2, -1))


def contrastive_loss(network: SplitNetwork, data: ClusteredData) -> Tensor:
    """Return Eq. (2) as the library computes it, over all clusters with a sample; shape (…)."""
    latents = network.encoder @ data.inputs
    return cluster_contrast(
        (network.head @ latents).mT,
        latents.mT,
        data.global_predictions.mT,
        data.members.argmax(dim=-2),
        data.members.shape[-2],
        data.lam,
        min_cluster_size=1,
    )
