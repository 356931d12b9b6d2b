"""How a weight changes in the course of a run."""

import math


def falling(done: float) -> float:
    """A half cosine from 1 to 0 (Loshchilov and Hutter 2017, without restarts).

    Args:
        done: Share of the run that is over, in [0, 1].
    """
    return (1 + math.cos(math.pi * done)) / 2
