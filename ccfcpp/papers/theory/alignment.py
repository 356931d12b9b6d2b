"""The papers' alignment assumption while a network learns the digits.

FedDecorr's Assumption 2 and CCFC++'s Assumption III.2: |u_k · v'_k'| is 1 where k = k' and else 0,
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
from ccfcpp.papers.theory import singular_values
from ccfcpp.papers.theory.drives import LabelledData, class_mean_drive, exact_drive
from ccfcpp.papers.theory.linear_networks import (
    SplitNetwork,
    balanced_chain,
    flow,
    orthonormal_columns,
)
from ccfcpp.papers.theory.problems import one_hot
from ccfcpp.papers.theory.statements import Row, Statement, equal

SUBJECT = "Alignment (digits, 3 layers)"
STARTS = ("PyTorch's weights", "a tenth of them", "balanced encoder", "all balanced")
"""The last two: W_1 and W_2 balanced, as Assumption 1 asks, under PyTorch's W_3; and W_3 as well,
with the singular vectors that balance needs."""
TIMES = (0, 28, 47, 66, 84)
"""The start, and 3, 5, 7 and 9 epochs of 938 batches at a learning rate of 0.01: the figure's, if
it was drawn with such steps (the paper does not say)."""
_CLASSES, _WIDTH = 10, 32
_STEP = 0.25  # half of it changes no figure in the first four digits


@dataclass(frozen=True)
class HeatMap:
    """One picture of Figure 6.

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
    def diagonal(self) -> Tensor:
        """|u_k · v'_k|, of shape (k,)."""
        return self.cosines.diagonal()

    @property
    def rows(self) -> list[Row]:
        """Each pixel as a row of a table."""
        at: Row = {"start": self.start, "time": self.time}
        return [
            at | {"k_head": row + 1, "k_encoder": column + 1, "cosine": float(cosine)}
            for (row, column), cosine in np.ndenumerate(self.cosines.numpy())
        ]


def alignment_statements(randomness: Randomness) -> tuple[list[Statement], list[HeatMap]]:
    """State the alignment on the digits from several starts, and what it does to Theorem 1."""
    maps = heat_maps(randomness)
    at = {(each.start, each.time): each for each in maps}
    default, end = STARTS[0], TIMES[-1]
    statements = [
        _diagonal(at[default, TIMES[0]], 1, _CLASSES),
        _diagonal(at[default, end], 1, 1),
        _diagonal(at[default, end], _CLASSES, _CLASSES),
        *(_diagonal(at[name, end], 1, _CLASSES) for name in STARTS),
        *(_error(at[name, end], at[name, end].error, "Eq. (44)") for name in STARTS),
        _error(at[default, end], at[default, end].printed_error, "Eq. (32) with N G"),
    ]
    return statements, maps


def heat_maps(randomness: Randomness, times: tuple[int, ...] = TIMES) -> list[HeatMap]:
    """Draw the heat maps of all starts at ascending multiples of a quarter, the first one 0."""
    data = digits()
    samples = data.inputs.shape[-1]

    def drive(network: SplitNetwork) -> Tensor:
        # Of the mean over samples, which is what networks are trained with.
        return exact_drive(network, data) / samples

    network = _starts(randomness)
    constants = singular_values.offsets(network)
    maps = _maps_at(times[0], network, data, constants)
    for before, time in pairwise(times):
        path = flow(network, drive, _STEP, round((time - before) / _STEP))
        network = path.at_times(-1)
        maps += _maps_at(time, network, data, constants)
    return maps


def digits() -> LabelledData:
    """Load scikit-learn's digits with pixels in [0, 1], as columns."""
    images, labels = load_digits(return_X_y=True)
    inputs = torch.from_numpy(images / 16).double().mT
    return LabelledData(inputs, one_hot(torch.from_numpy(labels).long(), _CLASSES))


def _starts(randomness: Randomness) -> SplitNetwork:
    """Make the networks of all starts, stacked along a leading axis."""
    generator = randomness.generator("alignment")
    pixels = 64
    widths = (pixels, _WIDTH, _WIDTH, _CLASSES)
    default = tuple(_uniform(after, before, generator) for before, after in pairwise(widths))
    small = tuple(layer / 10 for layer in default)
    left = orthonormal_columns((), _WIDTH, _WIDTH, generator)
    right = orthonormal_columns((), pixels, _WIDTH, generator)
    values = torch.linalg.svdvals(default[1] @ default[0]).clamp(min=1e-2)
    encoder = balanced_chain(left, values, right, 2)
    # A head of ten outputs is balanced with an encoder of rank ten.
    kept = values[:_CLASSES]
    of_head = orthonormal_columns((), _CLASSES, _CLASSES, generator)
    low = torch.where(torch.arange(_WIDTH) < _CLASSES, values, 0.0)
    balanced = balanced_chain(left, low, right, 2)
    head = of_head * kept.sqrt() @ left[:, :_CLASSES].mT
    starts = (default, small, (*encoder, default[2]), (*balanced, head))
    return SplitNetwork(tuple(torch.stack(layer) for layer in zip(*starts, strict=True)), 2)


def _uniform(after: int, before: int, generator: torch.Generator) -> Tensor:
    """Draw the weights with which PyTorch begins a linear layer."""
    numbers = torch.rand(after, before, generator=generator, dtype=torch.float64)
    return (2 * numbers - 1).div(before**0.5)


def _maps_at(
    time: int, network: SplitNetwork, data: LabelledData, constants: Tensor
) -> list[HeatMap]:
    cosines = singular_values.paired_vectors(network).alignment
    driving = exact_drive(network, data)
    exact = singular_values.exact_rates(network, driving)

    def errors(matrix: Tensor) -> list[float]:
        difference = singular_values.theorem_rates(network, constants, matrix) - exact
        return [float(each) for each in difference.norm(dim=-1) / exact.norm(dim=-1)]

    derived, printed = errors(driving), errors(class_mean_drive(network, data))
    return [
        HeatMap(name, time, cosines[n], derived[n], printed[n]) for n, name in enumerate(STARTS)
    ]


def _diagonal(heat_map: HeatMap, first: int, last: int) -> Statement:
    chosen = heat_map.diagonal[first - 1 : last]
    which = f"k = {first}" if first == last else f"mean of k = {first} to {last}"
    text = f"|u_k . v_k|, {which}: {heat_map.start}, time {heat_map.time}"
    return equal(SUBJECT, text, 1.0, float(chosen.mean()))


def _error(heat_map: HeatMap, error: float, equation: str) -> Statement:
    text = f"relative error of {equation}: {heat_map.start}, time {heat_map.time}"
    return equal(SUBJECT, text, 0.0, error, error)
