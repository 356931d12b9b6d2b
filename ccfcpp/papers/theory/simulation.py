"""A simulated path of singular values, and how far a formula for their rates is from it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.papers.theory.linear_networks import Layers, flow
from ccfcpp.papers.theory.singular_values import SplitNetwork, paired_vectors

_RESOLUTION = 1e-7
"""Two difference quotients that differ by a larger share do not resolve the path."""


@dataclass(frozen=True)
class Simulation:
    """A path of gradient flow, and the rates of its singular values, measured on the path alone.

    Attributes:
        start: The network at time 0.
        network: The network at the inner times: layers (times, …, width after, width before).
        times: Of shape (times,).
        values: The encoder's singular values, of shape (times, …, k).
        rates: dσ_k/dt by differences of order four, of the same shape.
        resolved: bool of shape (times, …): whether steps twice as long give the same rates. Where
            two singular values almost meet, they turn faster than any fixed step can follow.
    """

    start: SplitNetwork
    network: SplitNetwork
    times: Tensor
    values: Tensor
    rates: Tensor
    resolved: Tensor


def simulate(
    start: SplitNetwork, drive: Callable[[SplitNetwork], Tensor], step: float, steps: int
) -> Simulation:
    """Follow the gradient flow from a start.

    Args:
        start: The network at time 0.
        drive: −∂ℓ/∂(head · encoder) of a network.
        step: Time between two points.
        steps: At least 8.

    Raises:
        ValueError: There are too few steps for the differences.
    """
    depth = start.depth

    def of_layers(layers: Layers) -> Tensor:
        return drive(SplitNetwork(layers, depth))

    path = SplitNetwork(flow(start.layers, of_layers, step, steps), depth)
    values = paired_vectors(path).values
    fine, coarse = differences(values, step), differences(values[::2], 2 * step)
    # The coarse quotients stand at every second time, from the fifth on: compare them there.
    at_both = fine[2::2][: len(coarse)]
    error = (at_both - coarse).norm(dim=-1) / at_both.norm(dim=-1)
    inner = slice(4, 4 + 2 * len(coarse), 2)
    return Simulation(
        start=start,
        network=SplitNetwork(tuple(layer[inner] for layer in path.layers), depth),
        times=step * torch.arange(len(values), dtype=torch.float64)[inner],
        values=values[inner],
        rates=at_both,
        resolved=error < _RESOLUTION * 16,  # the coarse quotient's own error is 16 times as large
    )


def differences(values: Tensor, step: float) -> Tensor:
    """d/dt by central differences of order four.

    Args:
        values: At consecutive times, of shape (times, …), five times or more.
        step: Time between two of them.

    Returns:
        Tensor of shape (times − 4, …): without the first two and the last two.

    Raises:
        ValueError: There are fewer than five times.
    """
    if len(values) < 5:
        raise ValueError(f"a difference of order four needs five times, not {len(values)}")
    near, far = values[3:-1] - values[1:-3], values[4:] - values[:-4]
    return (8 * near - far) / (12 * step)


def relative_error(predicted: Tensor, simulation: Simulation) -> float:
    """‖predicted − simulated‖ / ‖simulated‖ over all resolved times, networks and singular values.

    Args:
        predicted: dσ_k/dt of a formula, of the shape of ``simulation.rates``.
        simulation: What it is held against.

    Returns:
        Not negative; NaN where no time is resolved.
    """
    simulated = simulation.rates[simulation.resolved]
    difference = predicted[simulation.resolved] - simulated
    return float(difference.norm() / simulated.norm())


def path_rows(simulation: Simulation, formulas: Mapping[str, Tensor]) -> list[dict[str, object]]:
    """The path of the first network as rows of a table, at every fourth time.

    Args:
        simulation: A path with leading axes (times, clients, draws).
        formulas: dσ_k/dt of each formula, of the shape of ``simulation.rates``.
    """
    return [
        {
            "layers_of_encoder": simulation.start.depth,
            "time": float(simulation.times[at]),
            "k": k + 1,
            "singular_value": float(simulation.values[at, 0, 0, k]),
            "simulated_rate": float(simulation.rates[at, 0, 0, k]),
            **{name: float(rates[at, 0, 0, k]) for name, rates in formulas.items()},
            "resolved": bool(simulation.resolved[at, 0, 0]),
        }
        for at in range(0, len(simulation.times), 4)
        for k in range(simulation.values.shape[-1])
    ]
