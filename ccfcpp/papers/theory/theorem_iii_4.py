"""CCFC++'s Theorem III.4 and what the paper draws from it, beside simulated networks.

Source: Yan et al., Eqs. (7), (8), (15), (20) to (31), and the paragraph after Theorem III.4.
"""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.core.randomness import Randomness
from ccfcpp.papers.theory.contrast import (
    ClusteredData,
    Jacobian,
    LatentWeight,
    contrastive_drive,
)
from ccfcpp.papers.theory.linear_networks import flow
from ccfcpp.papers.theory.problems import REPRESENTATION, aligned_start, clustered_data
from ccfcpp.papers.theory.simulation import Simulation, path_rows, simulate
from ccfcpp.papers.theory.singular_values import (
    SplitNetwork,
    mean_effective_rank,
    offsets,
    paired_vectors,
    theorem_rates,
)
from ccfcpp.papers.theory.statements import Statement, about_rates, equal, smaller, worst
from ccfcpp.papers.theory.theorem_1 import DEPTHS, starting_values

SUBJECT = "CCFC++, Theorem III.4"
SKEWS = (0.0, 0.25, 0.5, 0.75, 1.0)
_DRAWS = 4
_SPREAD = 0.5
_LAM = 0.5  # the paper's 0.001 would not show a slip in its term
_STEP, _STEPS = 4e-3, 240
_CONSTANT = 0.5  # C


def theorem_iii_4_statements(
    randomness: Randomness,
) -> tuple[list[Statement], list[dict[str, object]]]:
    """Theorem III.4 as printed, with the full Jacobian, and its conclusions.

    Returns:
        The statements, and rows of a path for each depth of the encoder, under a predictor of one
        layer.
    """
    simulations, data = {}, {}
    for depth in DEPTHS:
        simulations[depth], data[depth] = _simulation((depth, 1), randomness)
    deep, deep_data = _simulation((2, 2), randomness)
    depths = "worst of L1 = 1, 2, 3"

    printed = {n: rates(simulations[n], data[n], "diagonal") for n in DEPTHS}
    full = {n: rates(simulations[n], data[n]) for n in DEPTHS}
    other = {n: rates(simulations[n], data[n], latent_weight="main text") for n in DEPTHS}

    def of_all(text: str, formula: dict[int, Tensor]) -> Statement:
        return worst([about_rates(SUBJECT, text, formula[n], simulations[n]) for n in DEPTHS])

    statements = [
        of_all(f"Eq. (7) as printed (diagonal Jacobian, 1/n_c^2 of Eq. 15); {depths}", printed),
        of_all(f"Eq. (7) with the full Jacobian; {depths}", full),
        of_all(f"the same with 1/n_c, as below Eq. (8); {depths}", other),
        about_rates(
            SUBJECT,
            "Eq. (7), full Jacobian, predictor of 2 layers, as printed: power 1/2",
            rates(deep, deep_data),
            deep,
        ),
        about_rates(
            SUBJECT,
            "Eq. (7), full Jacobian, predictor of 2 layers, with power L2/2",
            rates(deep, deep_data, head_depth=2),
            deep,
        ),
        *_gradients(simulations[2], data[2]),
        *_conclusions(randomness),
    ]
    rows = [
        row
        for n in DEPTHS
        for row in path_rows(
            simulations[n], {"equation_7": printed[n], "equation_7_full_jacobian": full[n]}
        )
    ]
    return statements, rows


def rates(
    simulation: Simulation,
    data: ClusteredData,
    jacobian: Jacobian = "full",
    latent_weight: LatentWeight = "appendix",
    head_depth: int = 1,
) -> Tensor:
    """Eq. (7), with the options of ``contrastive_drive`` and L' of ``theorem_rates``."""
    driving = contrastive_drive(simulation.network, data, jacobian, latent_weight)
    constants = offsets(simulation.start, head_depth)
    return theorem_rates(simulation.network, constants, driving, head_depth)


def _simulation(
    depths: tuple[int, int], randomness: Randomness
) -> tuple[Simulation, ClusteredData]:
    generator = randomness.generator(f"theorem III.4, depths {depths}")
    start = aligned_start(_DRAWS, depths, REPRESENTATION, starting_values(), _CONSTANT, generator)
    data = clustered_data(start, [0.0], _SPREAD, _LAM, generator)
    drive = partial(contrastive_drive, data=data)
    return simulate(start.at_clients(1), drive, _STEP, _STEPS), data


def _gradients(simulation: Simulation, data: ClusteredData) -> list[Statement]:
    """The printed Q̄ beside the loss's gradient: its direction, and what it would do to norms."""
    network = simulation.network
    printed = contrastive_drive(network, data, "diagonal")
    full = contrastive_drive(network, data)
    cosine = F.cosine_similarity(printed.flatten(-2), full.flatten(-2), dim=-1).mean()

    def head_growth(driving: Tensor) -> float:
        # d/dt of half the squared norm of the predictor, for one layer, is <W, dW/dt>
        velocity = driving @ network.encoder.mT
        growth = (network.head * velocity).sum(dim=(-2, -1)) / network.head.norm(dim=(-2, -1))
        return float(growth.mean())

    norms = paired_vectors(network).head_values.square().sum(dim=-1)
    change = float((norms[-1] / norms[0] - 1).abs().max())
    speed = float((full @ network.encoder.mT).norm(dim=(-2, -1)).mean())
    return [
        equal(SUBJECT, "cosine of the printed Q and the true one", 1.0, float(cosine)),
        Statement(
            SUBJECT,
            "d|predictor|/dt by the printed Q, beside that of the loss; error: share of |dW/dt|",
            head_growth(printed),
            head_growth(full),
            "=",
            abs(head_growth(printed) - head_growth(full)) / speed,
        ),
        Statement(
            SUBJECT,
            "full Jacobian: |predictor|^2 is conserved, relative change",
            0.0,
            change,
            "=",
            change,
        ),
    ]


def _conclusions(randomness: Randomness) -> list[Statement]:
    """More skew: Q̄ of lower rank, fewer singular values that grow, an encoder of lower rank."""
    generator = randomness.generator("theorem III.4, conclusions")
    draws = 4 * _DRAWS
    start = aligned_start(draws, (2, 1), REPRESENTATION, starting_values(), _CONSTANT, generator)
    data = clustered_data(start, SKEWS, _SPREAD, 0.001, generator)
    layers = start.at_clients(len(SKEWS)).layers

    def drive(at: tuple[Tensor, ...]) -> Tensor:
        return contrastive_drive(SplitNetwork(at, 2), data)

    path = SplitNetwork(flow(layers, drive, 0.05, 400), 2)
    first = drive(layers)
    values = torch.linalg.svdvals(path.encoder)
    growth = values[-1] - values[0]
    grown = (growth > 0.1 * growth.amax(dim=-1, keepdim=True)).double().sum(dim=-1).mean(dim=-1)
    ends = path.encoder[-1]
    minor = (values[-1, 0, :, -2:] / values[0, 0, :, -2:]).mean()
    return [
        smaller(
            SUBJECT,
            "effective rank of Q at the start: p = 0.75 below p = 0",
            mean_effective_rank(first[0]),
            mean_effective_rank(first[-2]),
        ),
        smaller(
            SUBJECT,
            "effective rank of Q at the start: p = 1 below p = 0",
            mean_effective_rank(first[0]),
            mean_effective_rank(first[-1]),
        ),
        smaller(
            SUBJECT,
            f"singular values (of {REPRESENTATION}) that grow markedly: p = 1 below p = 0",
            float(grown[0]),
            float(grown[-1]),
        ),
        smaller(
            SUBJECT,
            "effective rank of the encoder in the end: p = 1 below p = 0",
            mean_effective_rank(ends[0]),
            mean_effective_rank(ends[-1]),
        ),
        smaller(
            SUBJECT,
            "collapse within training, p = 0: effective rank in the end below that at the start",
            mean_effective_rank(path.encoder[0, 0]),
            mean_effective_rank(ends[0]),
        ),
        equal(
            SUBJECT,
            "the other singular values stay: the two least at p = 0, end over start",
            1.0,
            float(minor),
        ),
    ]
