"""The decorrelation term that a configuration asks for."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from ccfcpp.core.errors import UsageError
from supervised.config import DecorrelationConfig
from supervised.losses import decov, feddecorr, structured_decov

DecorrelationTerm = Callable[[Tensor, Tensor | None], Tensor]
"""From representations (clients, batch, dimensions) and a mask to (clients,)."""


def decorrelation_term(config: DecorrelationConfig, dimensions: int) -> DecorrelationTerm | None:
    """The term without its weight; None where there is none.

    Raises:
        UsageError: The representation cannot be divided into the configured groups.
    """
    if config.kind == "none" or config.beta == 0:
        return None
    if config.kind == "feddecorr":
        return lambda z, mask: feddecorr(z, config.scale, mask)
    if config.kind == "decov":
        return decov
    if dimensions % config.groups:
        raise UsageError(
            f"decorrelation.groups = {config.groups} does not divide the {dimensions} dimensions "
            "of the representation: give a divisor of it"
        )
    return partial(_structured, config.groups)


def _structured(groups: int, representations: Tensor, mask: Tensor | None) -> Tensor:
    return structured_decov(representations, groups, mask)
