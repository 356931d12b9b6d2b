"""FedDecorr's Theorem 1 and what the paper draws from it, beside simulated networks.

Source: Shi et al. (ICLR 2023), Eqs. (3), (32) to (47); Section 3.3.
"""

from functools import partial

import torch
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.papers.theory import problems, singular_values
from ccfcpp.papers.theory.drives import LabelledData, class_mean_drive, exact_drive
from ccfcpp.papers.theory.linear_networks import SplitNetwork, flow, imbalance
from ccfcpp.papers.theory.problems import CLASSES, DEPTHS, DRAWS, REPRESENTATION, SPREAD
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

_STEP, _STEPS = 2e-4, 400
_CONSTANT = 0.5  # M_k for all k


def theorem_1_statements(randomness: Randomness) -> tuple[list[Statement], list[Row]]:
    """Hold Theorem 1, as printed and as derived, and its conclusions against simulations.

    Returns:
        The statements, and rows of a path for each depth of the encoder.
    """
    drawn = [_problem(f"depth {depth}", depth, randomness) for depth in DEPTHS]
    paths = [path for path, _ in drawn]
    printed = [_printed(*each) for each in drawn]
    derived = [_derived(*each) for each in drawn]
    alike, data = _problem("class means", 2, randomness, spread=0.0)
    as_printed = "Eq. (32) as printed, all samples of a class alike; L = 2"
    spread = f"Eq. (32) as printed, with N G; spread {SPREAD} within classes; worst of L"
    in_place = "Eq. (44), with (y - softmax) X^T in place of N G; worst of L"
    found = [
        about_rates(as_printed, _printed(alike, data), alike),
        worst_rates(spread, printed, paths),
        worst_rates(in_place, derived, paths),
        _balanced_for_good(paths[-1]),
        _converged(randomness),
        *_without_assumptions(randomness),
        *_conclusions(randomness),
    ]
    return found, path_rows(paths, {"equation_32": printed, "equation_44": derived})


def _problem(
    purpose: str, depth: int, randomness: Randomness, spread: float = SPREAD
) -> tuple[Simulation, LabelledData]:
    generator = randomness.generator(f"theorem 1, {purpose}")
    data = _data(generator, spread)
    return _simulated(_aligned(depth, _CONSTANT, generator), data), data


def _printed(path: Simulation, data: LabelledData) -> Tensor:
    """Eq. (32), with the matrix G of class means."""
    return path.theorem(class_mean_drive(path.network, data))


def _derived(path: Simulation, data: LabelledData) -> Tensor:
    """Eq. (44): Eq. (32) before Eq. (45) replaces (y − γ) Xᵀ by N · G."""
    return path.theorem(exact_drive(path.network, data))


def _data(generator: torch.Generator, spread: float = SPREAD) -> LabelledData:
    return problems.labelled_data(DRAWS, [CLASSES], spread, generator)


def _aligned(depth: int, constants: Tensor | float, generator: torch.Generator) -> SplitNetwork:
    values = problems.STARTING_VALUES
    return problems.aligned_start(DRAWS, (depth, 1), CLASSES, values, constants, generator)


def _simulated(start: SplitNetwork, data: LabelledData) -> Simulation:
    return simulate(start.at_clients(1), partial(exact_drive, data=data), _STEP, _STEPS)


def _balanced_for_good(path: Simulation) -> Statement:
    end = path.network.at_times(-1)
    drift = imbalance(end.layers[: end.depth]).max()
    text = "W_j W_j^T = W_{j+1}^T W_{j+1} stays (Eq. 21): largest difference, L = 3"
    return equal(text, 0.0, float(drift), float(drift / end.layers[0].square().max()))


def _converged(randomness: Randomness) -> Statement:
    """Check the simulation itself: what the size of its steps does to its end."""
    generator = randomness.generator("theorem 1, steps")
    drive = partial(exact_drive, data=_data(generator))
    start = _aligned(2, _CONSTANT, generator).at_clients(1)
    coarse, fine = (
        torch.linalg.svdvals(flow(start, drive, step, steps).at_times(-1).encoder)
        for step, steps in ((_STEP, _STEPS // 2), (_STEP / 2, _STEPS))
    )
    error = float((coarse - fine).norm() / fine.norm())
    text = "the simulation: largest singular value in the end, the step and half of it"
    return equal(text, float(coarse.max()), float(fine.max()), error)


def _without_assumptions(randomness: Randomness) -> list[Statement]:
    generator = randomness.generator("theorem 1, assumptions")
    data = _data(generator)
    spread_out = torch.linspace(0.1, 1.5, REPRESENTATION, dtype=torch.float64).flip(0)
    uneven = _simulated(_aligned(2, spread_out, generator), data)
    headless = _simulated(problems.with_random_head(_aligned(2, 0.0, generator), generator), data)
    free = _simulated(problems.random_start(DRAWS, 2, CLASSES, generator), data)

    def alone(path: Simulation) -> Tensor:
        drive = exact_drive(path.network, data)
        return singular_values.rates_without_alignment(path.network, drive)

    fourth, third = "Eq. (44), ", "Eq. (40), third line (no alignment used): "
    not_aligned = "balanced, classifier not aligned"
    by_k = "aligned at time 0, but M_k differ by k"
    return [
        about_rates(fourth + by_k, _derived(uneven, data), uneven),
        about_rates(fourth + not_aligned, _derived(headless, data), headless),
        about_rates(third + not_aligned, alone(headless), headless),
        about_rates(third + "random weights, not balanced", alone(free), free),
    ]


def _conclusions(randomness: Randomness) -> list[Statement]:
    """Fewer classes at a client: G of lower rank, and fewer singular values that grow."""
    generator = randomness.generator("theorem 1, conclusions")
    held = list(range(1, CLASSES + 1))
    data = problems.labelled_data(2 * DRAWS, held, SPREAD, generator)
    small = torch.full((REPRESENTATION,), 0.1, dtype=torch.float64)
    start = problems.aligned_start(2 * DRAWS, (2, 1), CLASSES, small, 0.0, generator)
    path = flow(start.at_clients(len(held)), partial(exact_drive, data=data), 1e-3, 1200)
    early = path.at_times(300)
    printed, exact = class_mean_drive(early, data), exact_drive(early, data)
    grown = singular_values.mean_growing(torch.linalg.svdvals(path.encoder)).tolist()
    of_drive = list(map(singular_values.mean_effective_rank, exact))
    of_end = list(map(singular_values.mean_effective_rank, path.at_times(-1).encoder))
    growing = f"singular values (of {REPRESENTATION}) that grow markedly: 1 class below all 6"
    rank = "effective rank of "
    return [
        equal("rank of G at a client with 2 of 6 classes", 2, _rank(printed[1])),
        equal("rank of (y - softmax) X^T at a client with 2 of 6 classes", 2, _rank(exact[1])),
        smaller(rank + "(y - softmax) X^T: 2 of 6 classes below all 6", of_drive[-1], of_drive[1]),
        smaller(growing, grown[-1], grown[0]),
        smaller(rank + "the encoder in the end: 1 class below all 6", of_end[-1], of_end[0]),
    ]


def _rank(matrices: Tensor) -> float:
    return float(torch.linalg.matrix_rank(matrices, rtol=1e-9).double().mean())
