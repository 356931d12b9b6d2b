"""Simulations of FedDecorr's Theorem 1, CCFC++'s Theorem III.4, and the papers' conclusions.

Sources: Shi et al. (ICLR 2023), Eqs. (3), (32) to (47), Section 3.3; Yan et al., Eqs. (7), (8),
(15), (20) to (31), and the paragraph after Theorem III.4.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.core.metrics import effective_rank
from ccfcpp.core.randomness import Randomness
from ccfcpp.studies.theory.alignment import alignment_statements
from ccfcpp.studies.theory.claim_checks import (
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
from ccfcpp.studies.theory.networks import (
    SplitNetwork,
    flow,
    imbalance,
    paired_vectors,
    rates_without_alignment,
)
from ccfcpp.studies.theory.problems import (
    CLASSES,
    REPRESENTATION,
    ClusteredData,
    LabelledData,
    aligned_start,
    class_mean_drive,
    clustered_data,
    contrastive_drive,
    exact_drive,
    labelled_data,
    random_start,
    with_random_head,
)
from ccfcpp.studies.theory.proposition import proposition_statements

DRAWS, DEPTHS, SPREAD = 4, (1, 2, 3), 0.5
STARTING_VALUES = torch.linspace(0.9, 0.3, REPRESENTATION, dtype=torch.float64)
"""The encoder's singular values at time 0, for both theorems."""
_CONSTANT = 0.5  # M_k of all k; called C in the CCFC++ paper
_STEP, _STEPS = 2e-4, 400
_SKEWS = (0.0, 0.25, 0.5, 0.75, 1.0)
_LAM = 0.5  # with the paper's 0.001, an error in its term would not show


def theorem_1_statements(randomness: Randomness) -> tuple[list[Statement], list[Row]]:
    """Check FedDecorr's Theorem 1, as printed and as derived, and its conclusions by simulation.

    Returns:
        The statements, and a table of σ_k and dσ_k/dt along a path for each encoder depth.
    """
    drawn = [_simulate_classification(f"depth {depth}", depth, randomness) for depth in DEPTHS]
    paths = [path for path, _ in drawn]
    printed = [_rates_as_printed(*each) for each in drawn]
    derived = [_rates_as_derived(*each) for each in drawn]
    alike, data = _simulate_classification("class means", 2, randomness, spread=0.0)
    as_printed = "Eq. (32) as printed, all samples of a class alike; L = 2"
    spread = f"Eq. (32) as printed, with N G; spread {SPREAD} within classes; worst of L"
    in_place = "Eq. (44), with (y - softmax) X^T in place of N G; worst of L"
    statements = [
        about_rates(as_printed, _rates_as_printed(alike, data), alike),
        worst_rates(spread, printed, paths),
        worst_rates(in_place, derived, paths),
        _check_balance(paths[-1]),
        _check_step_size(randomness),
        *_check_assumptions(randomness),
        *_check_few_classes(randomness),
    ]
    return statements, path_rows(paths, {"equation_32": printed, "equation_44": derived})


def _simulate_classification(
    purpose: str, depth: int, randomness: Randomness, spread: float = SPREAD
) -> tuple[Simulation, LabelledData]:
    generator = randomness.generator(f"theorem 1, {purpose}")
    data = _draw_data(generator, spread)
    return _simulate(_aligned_network(depth, _CONSTANT, generator), data), data


def _rates_as_printed(path: Simulation, data: LabelledData) -> Tensor:
    """Return dσ_k/dt by FedDecorr's Eq. (32), with the matrix N · G of class means."""
    return path.theorem(class_mean_drive(path.network, data))


def _rates_as_derived(path: Simulation, data: LabelledData) -> Tensor:
    """Return dσ_k/dt by FedDecorr's Eq. (44), with (y − γ) Xᵀ in place of N · G."""
    return path.theorem(exact_drive(path.network, data))


def _draw_data(generator: torch.Generator, spread: float = SPREAD) -> LabelledData:
    return labelled_data(DRAWS, [CLASSES], spread, generator)


def _aligned_network(
    depth: int, constants: Tensor | float, generator: torch.Generator
) -> SplitNetwork:
    values = STARTING_VALUES
    return aligned_start(DRAWS, (depth, 1), CLASSES, values, constants, generator)


def _simulate(start: SplitNetwork, data: LabelledData) -> Simulation:
    return simulate(start.at_clients(1), partial(exact_drive, data=data), _STEP, _STEPS)


def _check_balance(path: Simulation) -> Statement:
    end = path.network.at_times(-1)
    drift = imbalance(end.layers[: end.depth]).max()
    text = "W_j W_j^T = W_{j+1}^T W_{j+1} stays (Eq. 21): largest difference, L = 3"
    return equal(text, 0.0, float(drift), float(drift / end.layers[0].square().max()))


def _check_step_size(randomness: Randomness) -> Statement:
    """Check the simulation itself: half the step size should give the same singular values."""
    generator = randomness.generator("theorem 1, steps")
    drive = partial(exact_drive, data=_draw_data(generator))
    start = _aligned_network(2, _CONSTANT, generator).at_clients(1)
    coarse, fine = (
        torch.linalg.svdvals(flow(start, drive, step, steps).at_times(-1).encoder)
        for step, steps in ((_STEP, _STEPS // 2), (_STEP / 2, _STEPS))
    )
    error = float((coarse - fine).norm() / fine.norm())
    text = "the simulation: largest singular value in the end, the step and half of it"
    return equal(text, float(coarse.max()), float(fine.max()), error)


def _check_assumptions(randomness: Randomness) -> list[Statement]:
    generator = randomness.generator("theorem 1, assumptions")
    data = _draw_data(generator)
    spread_out = torch.linspace(0.1, 1.5, REPRESENTATION, dtype=torch.float64).flip(0)
    uneven = _simulate(_aligned_network(2, spread_out, generator), data)
    headless = _simulate(with_random_head(_aligned_network(2, 0.0, generator), generator), data)
    free = _simulate(random_start(DRAWS, 2, CLASSES, generator), data)

    def alone(path: Simulation) -> Tensor:
        drive = exact_drive(path.network, data)
        return rates_without_alignment(path.network, drive)

    fourth, third = "Eq. (44), ", "Eq. (40), third line (no alignment used): "
    not_aligned = "balanced, classifier not aligned"
    by_k = "aligned at time 0, but M_k differ by k"
    return [
        about_rates(fourth + by_k, _rates_as_derived(uneven, data), uneven),
        about_rates(fourth + not_aligned, _rates_as_derived(headless, data), headless),
        about_rates(third + not_aligned, alone(headless), headless),
        about_rates(third + "random weights, not balanced", alone(free), free),
    ]


def _check_few_classes(randomness: Randomness) -> list[Statement]:
    """Check that fewer classes lower the rank of FedDecorr's G, Eq. (33); fewer σ_k grow."""
    generator = randomness.generator("theorem 1, conclusions")
    held = list(range(1, CLASSES + 1))
    data = labelled_data(2 * DRAWS, held, SPREAD, generator)
    small = torch.full((REPRESENTATION,), 0.1, dtype=torch.float64)
    start = aligned_start(2 * DRAWS, (2, 1), CLASSES, small, 0.0, generator)
    path = flow(start.at_clients(len(held)), partial(exact_drive, data=data), 1e-3, 1200)
    early = path.at_times(300)
    printed, exact = class_mean_drive(early, data), exact_drive(early, data)
    grown = _mean_growing(torch.linalg.svdvals(path.encoder)).tolist()
    of_drive = list(map(_mean_rank, exact))
    of_end = list(map(_mean_rank, path.at_times(-1).encoder))
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


# --- CCFC++, Theorem III.4 ---


def theorem_iii_4_statements(randomness: Randomness) -> tuple[list[Statement], list[Row]]:
    """Check CCFC++'s Theorem III.4, as printed and with the full Jacobian, by simulation.

    Returns:
        The statements, and a table of σ_k and dσ_k/dt along a path for each encoder depth, with a
        predictor of one layer.
    """
    drawn = [_simulate_clustering((depth, 1), randomness) for depth in DEPTHS]
    paths = [path for path, _ in drawn]
    printed, full, other = (
        [path.theorem(contrastive_drive(path.network, data, *choice)) for path, data in drawn]
        for choice in (("diagonal",), (), ("full", "main text"))
    )
    deep, deep_data = _simulate_clustering((2, 2), randomness)
    drive = contrastive_drive(deep.network, deep_data)
    as_printed = "Eq. (7) as printed (diagonal Jacobian, 1/n_c^2 of Eq. 15); worst of L1"
    two_layers = "Eq. (7), full Jacobian, predictor of 2 layers, "
    statements = [
        worst_rates(as_printed, printed, paths),
        worst_rates("Eq. (7) with the full Jacobian; worst of L1", full, paths),
        worst_rates("the same with 1/n_c, as below Eq. (8); worst of L1", other, paths),
        about_rates(two_layers + "as printed: power 1/2", deep.theorem(drive), deep),
        about_rates(two_layers + "with power L2/2", deep.theorem(drive, head_depth=2), deep),
        *_check_gradient(*drawn[DEPTHS.index(2)]),
        *_check_skew(randomness),
    ]
    return statements, path_rows(paths, {"equation_7": printed, "equation_7_full_jacobian": full})


def _simulate_clustering(
    depths: tuple[int, int], randomness: Randomness
) -> tuple[Simulation, ClusteredData]:
    generator = randomness.generator(f"theorem III.4, depths {depths}")
    start = aligned_start(DRAWS, depths, REPRESENTATION, STARTING_VALUES, _CONSTANT, generator)
    data = clustered_data(start, [0.0], SPREAD, _LAM, generator)
    return simulate(start.at_clients(1), partial(contrastive_drive, data=data), 4e-3, 240), data


def _check_gradient(path: Simulation, data: ClusteredData) -> list[Statement]:
    """Compare the printed Q̄ with the loss's negative gradient: direction, and effect on norms."""
    network = path.network
    printed, full = (contrastive_drive(network, data, each) for each in ("diagonal", "full"))
    cosine = F.cosine_similarity(printed.flatten(-2), full.flatten(-2), dim=-1).mean()

    def head_growth(driving: Tensor) -> float:
        # For a predictor of one layer W, d|W|/dt = <W, dW/dt> / |W|.
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


def _check_skew(randomness: Randomness) -> list[Statement]:
    """Check that skew lowers the ranks of Q̄, CCFC++'s Eq. (8), and encoder; fewer σ_k grow."""
    generator = randomness.generator("theorem III.4, conclusions")
    sizes = 4 * DRAWS, (2, 1), REPRESENTATION
    start = aligned_start(*sizes, STARTING_VALUES, _CONSTANT, generator)
    data = clustered_data(start, _SKEWS, SPREAD, 0.001, generator)
    at_clients = start.at_clients(len(_SKEWS))
    path = flow(at_clients, partial(contrastive_drive, data=data), 0.05, 400)
    of_drive = list(map(_mean_rank, contrastive_drive(at_clients, data)))
    values = torch.linalg.svdvals(path.encoder)
    grown = _mean_growing(values).tolist()
    of_end = list(map(_mean_rank, path.encoder[-1]))
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
        smaller(collapse, _mean_rank(path.encoder[0, 0]), of_end[0]),
        equal(others, 1.0, float(minor)),
    ]


def _mean_rank(matrices: Tensor) -> float:
    """Return the mean effective rank of matrices of shape (…, rows, columns)."""
    values = torch.linalg.svdvals(matrices).flatten(end_dim=-2)
    return sum(map(effective_rank, values)) / len(values)


def _mean_growing(values: Tensor) -> Tensor:
    """Count singular values that grow by more than a tenth of the fastest one's growth.

    Values along a path (times, clients, draws, k) give mean counts over draws, of shape (clients,).
    """
    growth = values[-1] - values[0]
    grown = growth > 0.1 * growth.amax(dim=-1, keepdim=True)
    return grown.double().sum(dim=-1).mean(dim=-1)


# --- all statements ---

_CHECKS: dict[str, tuple[str, Callable[[Randomness], tuple[list[Statement], list[Row]]]]] = {
    "FedDecorr, Proposition 1": ("", lambda randomness: (proposition_statements(randomness), [])),
    "FedDecorr, Theorem 1": ("theorem-1-singular-values", theorem_1_statements),
    "Alignment (digits, 3 layers)": ("alignment", alignment_statements),
    "CCFC++, Theorem III.4": ("theorem-iii-4-singular-values", theorem_iii_4_statements),
}
"""For each subject: the name of its CSV table, and the function that checks it."""


def verify_statements(
    seed: int, note: Callable[[str], None] = lambda _: None
) -> tuple[dict[str, list[Statement]], dict[str, list[Row]]]:
    """Check the theorems by simulation; ``note`` is called with the name of each before its check.

    Returns:
        The statements by subject, and the rows of each CSV file by its name without the suffix.
    """
    statements: dict[str, list[Statement]] = {}
    tables: dict[str, list[Row]] = {"statements": []}
    for subject, (name, check) in _CHECKS.items():
        note(subject)
        statements[subject], rows = check(Randomness(seed))
        tables["statements"] += [
            {"subject": subject} | each.as_json() for each in statements[subject]
        ]
        tables |= {name: rows} if name else {}
    return statements, tables
