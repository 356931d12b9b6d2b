"""The papers' alignment assumption, measured while a network learns the digits.

FedDecorr's Assumption 2 and CCFC++'s Assumption III.2: |u_k · v'_k'| is 1 if k = k' and else 0,
for the left singular vectors of the encoder and the right ones of the layer above it. The ICLR
paper's Figure 6 draws these numbers for a linear network of three layers on MNIST after 3, 5, 7 and
9 epochs; here the network learns scikit-learn's digits.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.studies.theory.claim_checks import Row, Statement, equal
from ccfcpp.studies.theory.networks import (
    SplitNetwork,
    balanced_chain,
    depth_offsets,
    exact_rates,
    flow,
    orthonormal_columns,
    paired_vectors,
    theorem_rates,
)
from ccfcpp.studies.theory.problems import LabelledData, class_mean_drive, exact_drive, one_hot

INITIALISATIONS = ("PyTorch's weights", "a tenth of them", "balanced encoder", "all balanced")
"""The last two: W_1 and W_2 balanced, as Assumption 1 asks, under PyTorch's W_3; and W_3 as well,
with the singular vectors that balance needs."""
TIMES = (0, 28, 47, 66, 84)
"""The start, and 3, 5, 7 and 9 epochs of 938 batches at a learning rate of 0.01: the figure's, if
it was drawn with such steps (the paper does not say)."""
_PIXELS, _WIDTH, _CLASSES = 64, 32, 10
_STEP = 0.25  # half of it changes no result in the first four digits


@dataclass(frozen=True)
class HeatMap:
    """A heat map as in the FedDecorr paper's Figure 6: cosines of singular vectors.

    Attributes:
        cosines: |u_k · v'_k'|, of shape (k', k), row and column in descending order of singular
            values.
        error: ‖rates of Eq. (44) − exact ones‖ / ‖exact ones‖.
        printed_error: The same of Eq. (32), with the matrix of class means.
    """

    start: str
    time: int
    cosines: Tensor
    error: float
    printed_error: float

    @property
    def where(self) -> str:
        """The start and the time in words."""
        return f"{self.start}, time {self.time}"

    def diagonal(self, first: int, last: int) -> Statement:
        """State that |u_k · v'_k| is 1 from the first k to the last."""
        which = f"k = {first}" if first == last else f"mean of k = {first} to {last}"
        mean = float(self.cosines.diagonal()[first - 1 : last].mean())
        return equal(f"|u_k . v_k|, {which}: {self.where}", 1.0, mean)


def alignment_statements(randomness: Randomness) -> tuple[list[Statement], list[Row]]:
    """State how well vectors align on the digits from several starts, and the effect on Theorem 1.

    Returns:
        The statements, and each pixel of the heat maps as a row.
    """
    maps = heat_maps(randomness)
    start, *_ = maps
    default, *_ = ends = [each for each in maps if each.time == TIMES[-1]]
    printed = f"relative error of Eq. (32) with N G: {default.where}"
    statements = [
        start.diagonal(1, _CLASSES),
        default.diagonal(1, 1),
        default.diagonal(_CLASSES, _CLASSES),
        *(each.diagonal(1, _CLASSES) for each in ends),
        *(
            equal(f"relative error of Eq. (44): {each.where}", 0.0, each.error, each.error)
            for each in ends
        ),
        equal(printed, 0.0, default.printed_error, default.printed_error),
    ]
    rows: list[Row] = [
        {"start": each.start, "time": each.time, "k_head": row + 1, "k_encoder": column + 1}
        | {"cosine": float(cosine)}
        for each in maps
        for (row, column), cosine in np.ndenumerate(each.cosines.numpy())
    ]
    return statements, rows


def heat_maps(randomness: Randomness, times: tuple[int, ...] = TIMES) -> list[HeatMap]:
    """Compute the heat maps of all starts at some times: ascending multiples of ``_STEP``."""
    images, labels = load_digits(return_X_y=True)
    inputs = torch.from_numpy(images / 16).double().mT
    data = LabelledData(inputs, one_hot(torch.from_numpy(labels).long(), _CLASSES))

    def drive(network: SplitNetwork) -> Tensor:
        # Of the mean over samples, which is what networks are trained with.
        return exact_drive(network, data) / len(images)

    network = _stacked_networks(randomness)
    constants = depth_offsets(network)
    maps = _maps_at(times[0], network, data, constants)
    for before, time in pairwise(times):
        network = flow(network, drive, _STEP, round((time - before) / _STEP)).at_times(-1)
        maps += _maps_at(time, network, data, constants)
    return maps


def _stacked_networks(randomness: Randomness) -> SplitNetwork:
    """Make the networks of all starts, stacked along a leading axis."""
    generator = randomness.generator("alignment")
    widths = (_PIXELS, _WIDTH, _WIDTH, _CLASSES)
    # PyTorch's weights: uniform up to 1 / sqrt(width before).
    default = tuple(
        (2 * torch.rand(after, before, generator=generator, dtype=torch.float64) - 1) / before**0.5
        for before, after in pairwise(widths)
    )
    small = tuple(layer / 10 for layer in default)
    left = orthonormal_columns((), _WIDTH, _WIDTH, generator)
    right = orthonormal_columns((), _PIXELS, _WIDTH, generator)
    values = torch.linalg.svdvals(default[1] @ default[0]).clamp(min=1e-2)
    encoder = balanced_chain(left, values, right, 2)
    # A head of ten outputs is balanced with an encoder of rank ten.
    of_head = orthonormal_columns((), _CLASSES, _CLASSES, generator)
    low = torch.where(torch.arange(_WIDTH) < _CLASSES, values, 0.0)
    balanced = balanced_chain(left, low, right, 2)
    head = of_head * values[:_CLASSES].sqrt() @ left[:, :_CLASSES].mT
    starts = (default, small, (*encoder, default[2]), (*balanced, head))
    return SplitNetwork(tuple(map(torch.stack, zip(*starts, strict=True))), 2)


def _maps_at(
    time: int, network: SplitNetwork, data: LabelledData, constants: Tensor
) -> list[HeatMap]:
    driving = exact_drive(network, data)
    exact = exact_rates(network, driving)
    derived, printed = (
        (theorem_rates(network, constants, matrix) - exact).norm(dim=-1) / exact.norm(dim=-1)
        for matrix in (driving, class_mean_drive(network, data))
    )
    cosines = paired_vectors(network).alignment
    return [
        HeatMap(name, time, cosines[n], float(derived[n]), float(printed[n]))
        for n, name in enumerate(INITIALISATIONS)
    ]
