"""CCFC++'s Theorem III.4 and what the paper draws from it, beside simulated networks.

Source: Yan et al., Eqs. (7), (8), (15), (20) to (31), and the paragraph after Theorem III.4.
"""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.core.randomness import Randomness
from ccfcpp.papers.theory.drives import ClusteredData, contrastive_drive
from ccfcpp.papers.theory.linear_networks import flow
from ccfcpp.papers.theory.problems import (
    DEPTHS,
    DRAWS,
    REPRESENTATION,
    SPREAD,
    STARTING_VALUES,
    aligned_start,
    clustered_data,
)
from ccfcpp.papers.theory.singular_values import mean_effective_rank, mean_growing, paired_vectors
from ccfcpp.papers.theory.statements import (
    Row,
    Simulation,
    Statement,
    about_rates,
    equal,
    path_rows,
    simulate,
    smaller,
    worst_rates,
)

_SKEWS = (0.0, 0.25, 0.5, 0.75, 1.0)
_LAM = 0.5  # the paper's 0.001 would not show a slip in its term
_CONSTANT = 0.5  # C


def theorem_iii_4_statements(randomness: Randomness) -> tuple[list[Statement], list[Row]]:
    """Hold Theorem III.4, printed and with the full Jacobian, and its conclusions to simulations.

    Returns:
        The statements, and rows of a path for each depth of the encoder, under a predictor of one
        layer.
    """
    drawn = [_simulated((depth, 1), randomness) for depth in DEPTHS]
    paths = [path for path, _ in drawn]
    printed, full, other = (
        [path.theorem(contrastive_drive(path.network, data, *choice)) for path, data in drawn]
        for choice in (("diagonal",), (), ("full", "main text"))
    )
    deep, deep_data = _simulated((2, 2), randomness)
    drive = contrastive_drive(deep.network, deep_data)
    as_printed = "Eq. (7) as printed (diagonal Jacobian, 1/n_c^2 of Eq. 15); worst of L1"
    two_layers = "Eq. (7), full Jacobian, predictor of 2 layers, "
    found = [
        worst_rates(as_printed, printed, paths),
        worst_rates("Eq. (7) with the full Jacobian; worst of L1", full, paths),
        worst_rates("the same with 1/n_c, as below Eq. (8); worst of L1", other, paths),
        about_rates(two_layers + "as printed: power 1/2", deep.theorem(drive), deep),
        about_rates(two_layers + "with power L2/2", deep.theorem(drive, head_depth=2), deep),
        *_gradients(*drawn[DEPTHS.index(2)]),
        *_conclusions(randomness),
    ]
    return found, path_rows(paths, {"equation_7": printed, "equation_7_full_jacobian": full})


def _simulated(depths: tuple[int, int], randomness: Randomness) -> tuple[Simulation, ClusteredData]:
    generator = randomness.generator(f"theorem III.4, depths {depths}")
    start = aligned_start(DRAWS, depths, REPRESENTATION, STARTING_VALUES, _CONSTANT, generator)
    data = clustered_data(start, [0.0], SPREAD, _LAM, generator)
    return simulate(start.at_clients(1), partial(contrastive_drive, data=data), 4e-3, 240), data


def _gradients(path: Simulation, data: ClusteredData) -> list[Statement]:
    """Compare the printed Q̄ with the loss's gradient: its direction, and what it does to norms."""
    network = path.network
    printed, full = (contrastive_drive(network, data, each) for each in ("diagonal", "full"))
    cosine = F.cosine_similarity(printed.flatten(-2), full.flatten(-2), dim=-1).mean()

    def head_growth(driving: Tensor) -> float:
        # d/dt of half the squared norm of the predictor, for one layer, is <W, dW/dt>
        velocity = driving @ network.encoder.mT
        growth = (network.head * velocity).sum(dim=(-2, -1)) / network.head.norm(dim=(-2, -1))
        return float(growth.mean())

    norms = paired_vectors(network).head_values.square().sum(dim=-1)
    change = float((norms[-1] / norms[0] - 1).abs().max())
    speed = float((full @ network.encoder.mT).norm(dim=(-2, -1)).mean())
    grown, true = head_growth(printed), head_growth(full)
    beside = "d|predictor|/dt by the printed Q, beside that of the loss; error: share of |dW/dt|"
    conserved = "full Jacobian: |predictor|^2 is conserved, relative change"
    return [
        equal("cosine of the printed Q and the true one", 1.0, float(cosine)),
        equal(beside, grown, true, abs(grown - true) / speed),
        equal(conserved, 0.0, change, change),
    ]


def _conclusions(randomness: Randomness) -> list[Statement]:
    """More skew: Q̄ of lower rank, fewer singular values that grow, an encoder of lower rank."""
    generator = randomness.generator("theorem III.4, conclusions")
    sizes = 4 * DRAWS, (2, 1), REPRESENTATION
    start = aligned_start(*sizes, STARTING_VALUES, _CONSTANT, generator)
    data = clustered_data(start, _SKEWS, SPREAD, 0.001, generator)
    at_clients = start.at_clients(len(_SKEWS))
    path = flow(at_clients, partial(contrastive_drive, data=data), 0.05, 400)
    of_drive = list(map(mean_effective_rank, contrastive_drive(at_clients, data)))
    values = torch.linalg.svdvals(path.encoder)
    grown = mean_growing(values).tolist()
    of_end = list(map(mean_effective_rank, path.encoder[-1]))
    minor = (values[-1, 0, :, -2:] / values[0, 0, :, -2:]).mean()
    growing = f"singular values (of {REPRESENTATION}) that grow markedly: p = 1 below p = 0"
    collapse = "collapse within training, p = 0: effective rank in the end below that at the start"
    rank = "effective rank of "
    others = "the other singular values stay: the two least at p = 0, end over start"
    return [
        smaller(rank + "Q at the start: p = 0.75 below p = 0", of_drive[0], of_drive[-2]),
        smaller(rank + "Q at the start: p = 1 below p = 0", of_drive[0], of_drive[-1]),
        smaller(growing, grown[0], grown[-1]),
        smaller(rank + "the encoder in the end: p = 1 below p = 0", of_end[0], of_end[-1]),
        smaller(collapse, mean_effective_rank(path.encoder[0, 0]), of_end[0]),
        equal(others, 1.0, float(minor)),
    ]
