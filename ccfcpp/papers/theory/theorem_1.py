"""FedDecorr's Theorem 1 and what the paper draws from it, beside simulated networks.

Source: Shi et al. (ICLR 2023), Eqs. (3), (32) to (47); Section 3.3.
"""

from functools import partial

import torch
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.papers.theory.classification import LabelledData, class_mean_drive, exact_drive
from ccfcpp.papers.theory.linear_networks import flow, imbalance
from ccfcpp.papers.theory.problems import (
    CLASSES,
    REPRESENTATION,
    aligned_start,
    labelled_data,
    random_start,
    with_random_head,
)
from ccfcpp.papers.theory.simulation import Simulation, path_rows, simulate
from ccfcpp.papers.theory.singular_values import (
    SplitNetwork,
    mean_effective_rank,
    offsets,
    rates_without_alignment,
    theorem_rates,
)
from ccfcpp.papers.theory.statements import Statement, about_rates, equal, smaller, worst

SUBJECT = "FedDecorr, Theorem 1"
DEPTHS = (1, 2, 3)
_DRAWS = 4
_SPREAD = 0.5
_STEP, _STEPS = 2e-4, 400
_CONSTANT = 0.5  # M_k for all k
_RANK_TOLERANCE = 1e-9


def starting_values() -> Tensor:
    """The encoder's singular values at time 0 in the problems of both theorems."""
    return torch.linspace(0.9, 0.3, REPRESENTATION, dtype=torch.float64)


def theorem_1_statements(
    randomness: Randomness,
) -> tuple[list[Statement], list[dict[str, object]]]:
    """Theorem 1 as printed and as derived, without its assumptions, and its conclusion.

    Returns:
        The statements, and rows of a path for each depth of the encoder.
    """
    simulations, data = {}, {}
    for depth in DEPTHS:
        generator = randomness.generator(f"theorem 1, depth {depth}")
        data[depth] = labelled_data(_DRAWS, [CLASSES], _SPREAD, generator)
        simulations[depth] = _simulation(_aligned(depth, _CONSTANT, generator), data[depth])
    statements = [
        _class_means_alone(randomness),
        worst([_printed(simulations[depth], data[depth]) for depth in DEPTHS]),
        worst([_exact(simulations[depth], data[depth]) for depth in DEPTHS]),
        _balanced_for_good(simulations[DEPTHS[-1]]),
        _converged(randomness),
        *_without_assumptions(randomness),
        *_conclusions(randomness),
    ]
    rows = [
        row
        for depth, simulation in simulations.items()
        for row in path_rows(
            simulation,
            {
                "equation_32": printed_rates(simulation, data[depth]),
                "equation_44": derived_rates(simulation, data[depth]),
            },
        )
    ]
    return statements, rows


def printed_rates(simulation: Simulation, data: LabelledData) -> Tensor:
    """Eq. (32), with the matrix G of class means."""
    network = simulation.network
    return theorem_rates(network, offsets(simulation.start), class_mean_drive(network.layers, data))


def derived_rates(simulation: Simulation, data: LabelledData) -> Tensor:
    """Eq. (44): Eq. (32) before Eq. (45) replaces (y − γ) Xᵀ by N · G."""
    network = simulation.network
    return theorem_rates(network, offsets(simulation.start), exact_drive(network.layers, data))


def _aligned(depth: int, constants: Tensor | float, generator: torch.Generator) -> SplitNetwork:
    return aligned_start(_DRAWS, (depth, 1), CLASSES, starting_values(), constants, generator)


def _simulation(
    start: SplitNetwork, data: LabelledData, step: float = _STEP, steps: int = _STEPS
) -> Simulation:
    def drive(network: SplitNetwork) -> Tensor:
        return exact_drive(network.layers, data)

    return simulate(start.at_clients(data.inputs.shape[0]), drive, step, steps)


def _printed(simulation: Simulation, data: LabelledData) -> Statement:
    text = f"Eq. (32) as printed, with N G; spread {_SPREAD} within classes; worst of L = 1, 2, 3"
    return about_rates(SUBJECT, text, printed_rates(simulation, data), simulation)


def _exact(simulation: Simulation, data: LabelledData) -> Statement:
    text = "Eq. (44), with (y - softmax) X^T in place of N G; worst of L = 1, 2, 3"
    return about_rates(SUBJECT, text, derived_rates(simulation, data), simulation)


def _class_means_alone(randomness: Randomness) -> Statement:
    generator = randomness.generator("theorem 1, class means")
    data = labelled_data(_DRAWS, [CLASSES], 0.0, generator)
    simulation = _simulation(_aligned(2, _CONSTANT, generator), data)
    text = "Eq. (32) as printed, all samples of a class alike; L = 2"
    return about_rates(SUBJECT, text, printed_rates(simulation, data), simulation)


def _balanced_for_good(simulation: Simulation) -> Statement:
    depth = simulation.start.depth
    drift = imbalance(simulation.network.at_time(-1).layers[:depth]).max()
    size = simulation.network.at_time(-1).layers[0].square().max()
    text = "W_j W_j^T = W_{j+1}^T W_{j+1} stays (Eq. 21): largest difference, L = 3"
    return Statement(SUBJECT, text, 0.0, float(drift), "=", float(drift / size))


def _converged(randomness: Randomness) -> Statement:
    """The simulation itself: what is left of the step's size in its end."""
    generator = randomness.generator("theorem 1, steps")
    data = labelled_data(_DRAWS, [CLASSES], _SPREAD, generator)
    start = _aligned(2, _CONSTANT, generator).at_clients(1)

    def end(halvings: int) -> Tensor:
        step, steps = _STEP / 2**halvings, (_STEPS // 2) * 2**halvings
        path = SplitNetwork(flow(start.layers, partial(exact_drive, data=data), step, steps), 2)
        values: Tensor = torch.linalg.svdvals(path.at_time(-1).encoder)
        return values

    coarse, fine = end(0), end(1)
    error = float((coarse - fine).norm() / fine.norm())
    text = "the simulation: largest singular value in the end, the step and half of it"
    return Statement(SUBJECT, text, float(coarse.max()), float(fine.max()), "=", error)


def _without_assumptions(randomness: Randomness) -> list[Statement]:
    generator = randomness.generator("theorem 1, assumptions")
    data = labelled_data(_DRAWS, [CLASSES], _SPREAD, generator)
    spread_out = torch.linspace(0.1, 1.5, REPRESENTATION, dtype=torch.float64).flip(0)
    uneven = _simulation(_aligned(2, spread_out, generator), data)
    headless = _simulation(with_random_head(_aligned(2, 0.0, generator), generator), data)
    free = _simulation(random_start(_DRAWS, 2, CLASSES, generator), data)
    alone = "Eq. (40), third line (no alignment used): "
    return [
        about_rates(
            SUBJECT,
            "Eq. (44), aligned at time 0, but M_k differ by k",
            derived_rates(uneven, data),
            uneven,
        ),
        about_rates(
            SUBJECT,
            "Eq. (44), balanced, classifier not aligned",
            derived_rates(headless, data),
            headless,
        ),
        about_rates(
            SUBJECT,
            alone + "balanced, classifier not aligned",
            rates_without_alignment(headless.network, exact_drive(headless.network.layers, data)),
            headless,
        ),
        about_rates(
            SUBJECT,
            alone + "random weights, not balanced",
            rates_without_alignment(free.network, exact_drive(free.network.layers, data)),
            free,
        ),
    ]


def _conclusions(randomness: Randomness) -> list[Statement]:
    """Fewer classes at a client: G of lower rank, and fewer singular values that grow."""
    generator = randomness.generator("theorem 1, conclusions")
    held = list(range(1, CLASSES + 1))
    data = labelled_data(2 * _DRAWS, held, _SPREAD, generator)
    small = torch.full((REPRESENTATION,), 0.1, dtype=torch.float64)
    start = aligned_start(2 * _DRAWS, (2, 1), CLASSES, small, 0.0, generator)
    layers = start.at_clients(len(held)).layers
    path = SplitNetwork(flow(layers, partial(exact_drive, data=data), 1e-3, 1200), 2)
    early = path.at_time(300).layers
    printed, exact = class_mean_drive(early, data), exact_drive(early, data)
    values = torch.linalg.svdvals(path.encoder)
    growth = values[-1] - values[0]
    grown = (growth > 0.1 * growth.amax(dim=-1, keepdim=True)).double().sum(dim=-1).mean(dim=-1)
    ends = path.at_time(-1).encoder
    exact_rank = "rank of (y - softmax) X^T at a client with 2 of 6 classes"
    return [
        equal(SUBJECT, "rank of G at a client with 2 of 6 classes", 2, _rank(printed[1])),
        equal(SUBJECT, exact_rank, 2, _rank(exact[1])),
        smaller(
            SUBJECT,
            "effective rank of (y - softmax) X^T: 2 of 6 classes below all 6",
            mean_effective_rank(exact[-1]),
            mean_effective_rank(exact[1]),
        ),
        smaller(
            SUBJECT,
            f"singular values (of {REPRESENTATION}) that grow markedly: 1 class below all 6",
            float(grown[-1]),
            float(grown[0]),
        ),
        smaller(
            SUBJECT,
            "effective rank of the encoder in the end: 1 class below all 6",
            mean_effective_rank(ends[-1]),
            mean_effective_rank(ends[0]),
        ),
    ]


def _rank(matrices: Tensor) -> float:
    return float(torch.linalg.matrix_rank(matrices, rtol=_RANK_TOLERANCE).double().mean())
