"""FedDecorr's Theorem 1 and what the paper draws from it, beside simulated networks.

Source: Shi et al. (ICLR 2023), Eqs. (3), (32) to (47); Section 3.3.
"""

from functools import partial

import torch
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.papers.theory import problems, singular_values, statements
from ccfcpp.papers.theory.drives import LabelledData, class_mean_drive, exact_drive
from ccfcpp.papers.theory.linear_networks import SplitNetwork, flow, imbalance
from ccfcpp.papers.theory.statements import Row, Simulation, Statement

SUBJECT = "FedDecorr, Theorem 1"
DEPTHS = (1, 2, 3)
_DRAWS = 4
_SPREAD = 0.5
_STEP, _STEPS = 2e-4, 400
_CONSTANT = 0.5  # M_k for all k
_RANK_TOLERANCE = 1e-9

_rates = partial(statements.about_rates, SUBJECT)
_equal = partial(statements.equal, SUBJECT)
_smaller = partial(statements.smaller, SUBJECT)


def starting_values() -> Tensor:
    """Return the encoder's singular values at time 0 in the problems of both theorems."""
    return torch.linspace(0.9, 0.3, problems.REPRESENTATION, dtype=torch.float64)


def theorem_1_statements(randomness: Randomness) -> tuple[list[Statement], list[Row]]:
    """Hold Theorem 1, as printed and as derived, and its conclusions against simulations.

    Returns:
        The statements, and rows of a path for each depth of the encoder.
    """
    problems = [_problem(f"depth {depth}", depth, randomness) for depth in DEPTHS]
    paths = [path for path, _ in problems]
    printed = [_printed(*each) for each in problems]
    derived = [_derived(*each) for each in problems]
    spread = f"Eq. (32) as printed, with N G; spread {_SPREAD} within classes; worst of L"
    in_place = "Eq. (44), with (y - softmax) X^T in place of N G; worst of L"
    alike, data = _problem("class means", 2, randomness, spread=0.0)
    found = [
        _rates(
            "Eq. (32) as printed, all samples of a class alike; L = 2", _printed(alike, data), alike
        ),
        statements.worst_rates(SUBJECT, spread, printed, paths),
        statements.worst_rates(SUBJECT, in_place, derived, paths),
        _balanced_for_good(paths[-1]),
        _converged(randomness),
        *_without_assumptions(randomness),
        *_conclusions(randomness),
    ]
    return found, statements.path_rows(paths, {"equation_32": printed, "equation_44": derived})


def _problem(
    purpose: str, depth: int, randomness: Randomness, spread: float = _SPREAD
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


def _data(generator: torch.Generator, spread: float = _SPREAD) -> LabelledData:
    return problems.labelled_data(_DRAWS, [problems.CLASSES], spread, generator)


def _aligned(depth: int, constants: Tensor | float, generator: torch.Generator) -> SplitNetwork:
    return problems.aligned_start(
        _DRAWS, (depth, 1), problems.CLASSES, starting_values(), constants, generator
    )


def _simulated(start: SplitNetwork, data: LabelledData) -> Simulation:
    return statements.simulate(start.at_clients(1), partial(exact_drive, data=data), _STEP, _STEPS)


def _balanced_for_good(path: Simulation) -> Statement:
    end = path.network.at_times(-1)
    drift = imbalance(end.layers[: end.depth]).max()
    text = "W_j W_j^T = W_{j+1}^T W_{j+1} stays (Eq. 21): largest difference, L = 3"
    return _equal(text, 0.0, float(drift), float(drift / end.layers[0].square().max()))


def _converged(randomness: Randomness) -> Statement:
    """Check the simulation itself: what the size of its steps does to its end."""
    generator = randomness.generator("theorem 1, steps")
    data = _data(generator)
    start = _aligned(2, _CONSTANT, generator).at_clients(1)

    def end(halvings: int) -> Tensor:
        step, steps = _STEP / 2**halvings, (_STEPS // 2) * 2**halvings
        path = flow(start, partial(exact_drive, data=data), step, steps)
        values: Tensor = torch.linalg.svdvals(path.at_times(-1).encoder)
        return values

    coarse, fine = end(0), end(1)
    error = float((coarse - fine).norm() / fine.norm())
    text = "the simulation: largest singular value in the end, the step and half of it"
    return _equal(text, float(coarse.max()), float(fine.max()), error)


def _without_assumptions(randomness: Randomness) -> list[Statement]:
    generator = randomness.generator("theorem 1, assumptions")
    data = _data(generator)
    spread_out = torch.linspace(0.1, 1.5, problems.REPRESENTATION, dtype=torch.float64).flip(0)
    uneven = _simulated(_aligned(2, spread_out, generator), data)
    headless = _simulated(problems.with_random_head(_aligned(2, 0.0, generator), generator), data)
    free = _simulated(problems.random_start(_DRAWS, 2, problems.CLASSES, generator), data)

    def alone(path: Simulation) -> Tensor:
        return singular_values.rates_without_alignment(
            path.network, exact_drive(path.network, data)
        )

    third_line = "Eq. (40), third line (no alignment used): "
    return [
        _rates("Eq. (44), aligned at time 0, but M_k differ by k", _derived(uneven, data), uneven),
        _rates("Eq. (44), balanced, classifier not aligned", _derived(headless, data), headless),
        _rates(third_line + "balanced, classifier not aligned", alone(headless), headless),
        _rates(third_line + "random weights, not balanced", alone(free), free),
    ]


def _conclusions(randomness: Randomness) -> list[Statement]:
    """Fewer classes at a client: G of lower rank, and fewer singular values that grow."""
    generator = randomness.generator("theorem 1, conclusions")
    held = list(range(1, problems.CLASSES + 1))
    data = problems.labelled_data(2 * _DRAWS, held, _SPREAD, generator)
    small = torch.full((problems.REPRESENTATION,), 0.1, dtype=torch.float64)
    start = problems.aligned_start(2 * _DRAWS, (2, 1), problems.CLASSES, small, 0.0, generator)
    path = flow(start.at_clients(len(held)), partial(exact_drive, data=data), 1e-3, 1200)
    early = path.at_times(300)
    printed, exact = class_mean_drive(early, data), exact_drive(early, data)
    grown = singular_values.mean_growing(torch.linalg.svdvals(path.encoder)).tolist()
    of_drive = [singular_values.mean_effective_rank(each) for each in exact]
    of_end = [singular_values.mean_effective_rank(each) for each in path.at_times(-1).encoder]
    growing = (
        f"singular values (of {problems.REPRESENTATION}) that grow markedly: 1 class below all 6"
    )
    rank = "effective rank of "
    return [
        _equal("rank of G at a client with 2 of 6 classes", 2, _rank(printed[1])),
        _equal("rank of (y - softmax) X^T at a client with 2 of 6 classes", 2, _rank(exact[1])),
        _smaller(rank + "(y - softmax) X^T: 2 of 6 classes below all 6", of_drive[-1], of_drive[1]),
        _smaller(growing, grown[-1], grown[0]),
        _smaller(rank + "the encoder in the end: 1 class below all 6", of_end[-1], of_end[0]),
    ]


def _rank(matrices: Tensor) -> float:
    return float(torch.linalg.matrix_rank(matrices, rtol=_RANK_TOLERANCE).double().mean())
