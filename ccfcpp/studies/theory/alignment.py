"""Check of the papers' alignment assumption while a linear network is trained on digits.

FedDecorr's Assumption 2 and CCFC++'s Assumption III.2: |u_k · v'_k'| is 1 if k = k' and else 0,
where u_k are left singular vectors of the encoder and v'_k' right ones of the layer above it.
Figure 6 of FedDecorr's ICLR version draws these numbers for a linear network of three layers on
MNIST after 3, 5, 7 and 9 epochs; here the network is trained on scikit-learn's digits.
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
"""Initial weights. Balanced layers fulfil Assumption 1, W_j W_jᵀ = W_{j+1}ᵀ W_{j+1}: those of the
encoder, W_1 and W_2, under PyTorch's W_3, or all three."""
TIMES = (0, 28, 47, 66, 84)
"""Times of gradient flow: 0, and 3, 5, 7 and 9 epochs of 938 batches at a learning rate of 0.01 (an
assumption: the paper does not give the steps of its figure)."""
_PIXELS, _WIDTH, _CLASSES = 64, 32, 10
_STEP = 0.25  # half of it changes no result in the first four digits


@dataclass(frozen=True)
class HeatMap:
    """Heat map of singular vectors' cosines, as in Figure 6 of FedDecorr's ICLR version.

    Attributes:
        start: Initialisation, one of ``INITIALISATIONS``.
        time: Time of gradient flow, one of ``TIMES``.
        cosines: |u_k · v'_k'|, float64 of shape (k', k), by descending singular values.
        error: Relative error of dσ_k/dt by Eq. (44): ‖dσ/dt − exact‖ / ‖exact‖.
        printed_error: The same for Eq. (32), which has class means in place of samples.
    """

    start: str
    time: int
    cosines: Tensor
    error: float
    printed_error: float

    @property
    def description(self) -> str:
        """Initialisation and time as text."""
        return f"{self.start}, time {self.time}"

    def diagonal(self, first: int, last: int) -> Statement:
        """Return the statement that |u_k · v'_k| is 1 for k from ``first`` to ``last``."""
        which = f"k = {first}" if first == last else f"mean of k = {first} to {last}"
        mean = float(self.cosines.diagonal()[first - 1 : last].mean())
        return equal(f"|u_k . v_k|, {which}: {self.description}", 1.0, mean)


def alignment_statements(randomness: Randomness) -> tuple[list[Statement], list[Row]]:
    """Check FedDecorr's alignment assumption and Theorem 1 on digits, for all initialisations.

    Returns:
        The statements, and a row for each entry of the heat maps.
    """
    maps = heat_maps(randomness)
    start, *_ = maps
    default, *_ = ends = [each for each in maps if each.time == TIMES[-1]]
    printed = f"relative error of Eq. (32) with N G: {default.description}"
    statements = [
        start.diagonal(1, _CLASSES),
        default.diagonal(1, 1),
        default.diagonal(_CLASSES, _CLASSES),
        *(each.diagonal(1, _CLASSES) for each in ends),
        *(
            equal(f"relative error of Eq. (44): {each.description}", 0.0, each.error, each.error)
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
    """Compute heat maps of all initialisations, at times that are ascending multiples of 0.25."""
    images, labels = load_digits(return_X_y=True)
    inputs = torch.from_numpy(images / 16).double().mT
    data = LabelledData(inputs, one_hot(torch.from_numpy(labels).long(), _CLASSES))

    def drive(network: SplitNetwork) -> Tensor:
        # The loss is the mean over samples.
        return exact_drive(network, data) / len(images)

    network = _stacked_networks(randomness)
    constants = depth_offsets(network)
    maps = _maps_at(times[0], network, data, constants)
    for before, time in pairwise(times):
        network = flow(network, drive, _STEP, round((time - before) / _STEP)).at_times(-1)
        maps += _maps_at(time, network, data, constants)
    return maps


def _stacked_networks(randomness: Randomness) -> SplitNetwork:
    """Make the networks of all ``INITIALISATIONS``, stacked along a leading axis."""
    generator = randomness.generator("alignment")
    widths = (_PIXELS, _WIDTH, _WIDTH, _CLASSES)
    # PyTorch's weights are uniform in ±1 / sqrt(width before).
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
