"""CCFC++'s Theorem III.4 and what the paper draws from it, beside simulated networks.

Source: Yan et al., Eqs. (7), (8), (15), (20) to (31), and the paragraph after Theorem III.4.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.core.randomness import Randomness
from ccfcpp.papers.theory import statements
from ccfcpp.papers.theory.drives import ClusteredData, contrastive_drive
from ccfcpp.papers.theory.linear_networks import SplitNetwork, flow
from ccfcpp.papers.theory.problems import REPRESENTATION, aligned_start, clustered_data
from ccfcpp.papers.theory.singular_values import mean_effective_rank, mean_growing, paired_vectors
from ccfcpp.papers.theory.statements import Row, Simulation, Statement
from ccfcpp.papers.theory.theorem_1 import DEPTHS, starting_values

SUBJECT = "CCFC++, Theorem III.4"
SKEWS = (0.0, 0.25, 0.5, 0.75, 1.0)
_DRAWS = 4
_SPREAD = 0.5
_LAM = 0.5  # the paper's 0.001 would not show a slip in its term
_STEP, _STEPS = 4e-3, 240
_CONSTANT = 0.5  # C

_rates = partial(statements.about_rates, SUBJECT)
_equal = partial(statements.equal, SUBJECT)
_smaller = partial(statements.smaller, SUBJECT)


def theorem_iii_4_statements(randomness: Randomness) -> tuple[list[Statement], list[Row]]:
    """Hold Theorem III.4, printed and with the full Jacobian, and its conclusions to simulations.

    Returns:
        The statements, and rows of a path for each depth of the encoder, under a predictor of one
        layer.
    """
    problems = [_simulated((depth, 1), randomness) for depth in DEPTHS]
    paths = [path for path, _ in problems]
    drives: list[Callable[[SplitNetwork, ClusteredData], Tensor]] = [
        partial(contrastive_drive, jacobian="diagonal"),
        contrastive_drive,
        partial(contrastive_drive, latent_weight="main text"),
    ]
    printed, full, other = (
        [path.theorem(drive(path.network, data)) for path, data in problems] for drive in drives
    )
    deep, deep_data = _simulated((2, 2), randomness)
    drive = contrastive_drive(deep.network, deep_data)
    two_layers = "Eq. (7), full Jacobian, predictor of 2 layers, "
    as_printed = "Eq. (7) as printed (diagonal Jacobian, 1/n_c^2 of Eq. 15)"
    found = [
        statements.worst_rates(SUBJECT, f"{as_printed}; worst of L1", printed, paths),
        statements.worst_rates(SUBJECT, "Eq. (7) with the full Jacobian; worst of L1", full, paths),
        statements.worst_rates(
            SUBJECT, "the same with 1/n_c, as below Eq. (8); worst of L1", other, paths
        ),
        _rates(two_layers + "as printed: power 1/2", deep.theorem(drive), deep),
        _rates(two_layers + "with power L2/2", deep.theorem(drive, head_depth=2), deep),
        *_gradients(*problems[DEPTHS.index(2)]),
        *_conclusions(randomness),
    ]
    return found, statements.path_rows(
        paths, {"equation_7": printed, "equation_7_full_jacobian": full}
    )


def _simulated(depths: tuple[int, int], randomness: Randomness) -> tuple[Simulation, ClusteredData]:
    generator = randomness.generator(f"theorem III.4, depths {depths}")
    start = aligned_start(_DRAWS, depths, REPRESENTATION, starting_values(), _CONSTANT, generator)
    data = clustered_data(start, [0.0], _SPREAD, _LAM, generator)
    drive = partial(contrastive_drive, data=data)
    return statements.simulate(start.at_clients(1), drive, _STEP, _STEPS), data


def _gradients(path: Simulation, data: ClusteredData) -> list[Statement]:
    """Compare the printed Q̄ with the loss's gradient: its direction, and what it does to norms."""
    network = path.network
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
    grown, true = head_growth(printed), head_growth(full)
    beside = "d|predictor|/dt by the printed Q, beside that of the loss; error: share of |dW/dt|"
    conserved = "full Jacobian: |predictor|^2 is conserved, relative change"
    return [
        _equal("cosine of the printed Q and the true one", 1.0, float(cosine)),
        _equal(beside, grown, true, abs(grown - true) / speed),
        _equal(conserved, 0.0, change, change),
    ]


def _conclusions(randomness: Randomness) -> list[Statement]:
    """More skew: Q̄ of lower rank, fewer singular values that grow, an encoder of lower rank."""
    generator = randomness.generator("theorem III.4, conclusions")
    draws = 4 * _DRAWS
    start = aligned_start(draws, (2, 1), REPRESENTATION, starting_values(), _CONSTANT, generator)
    data = clustered_data(start, SKEWS, _SPREAD, 0.001, generator)
    at_clients = start.at_clients(len(SKEWS))
    path = flow(at_clients, partial(contrastive_drive, data=data), 0.05, 400)
    of_drive = [mean_effective_rank(each) for each in contrastive_drive(at_clients, data)]
    values = torch.linalg.svdvals(path.encoder)
    grown = mean_growing(values)
    of_end = [mean_effective_rank(each) for each in path.encoder[-1]]
    minor = (values[-1, 0, :, -2:] / values[0, 0, :, -2:]).mean()
    growing = f"singular values (of {REPRESENTATION}) that grow markedly: p = 1 below p = 0"
    collapse = "collapse within training, p = 0: effective rank in the end below that at the start"
    rank = "effective rank of "
    others = "the other singular values stay: the two least at p = 0, end over start"
    return [
        _smaller(rank + "Q at the start: p = 0.75 below p = 0", of_drive[0], of_drive[-2]),
        _smaller(rank + "Q at the start: p = 1 below p = 0", of_drive[0], of_drive[-1]),
        _smaller(growing, float(grown[0]), float(grown[-1])),
        _smaller(rank + "the encoder in the end: p = 1 below p = 0", of_end[0], of_end[-1]),
        _smaller(collapse, mean_effective_rank(path.encoder[0, 0]), of_end[0]),
        _equal(others, 1.0, float(minor)),
    ]
