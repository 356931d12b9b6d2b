"""Spectra of local models' representations in the last round, compared with the global model's.

A spectrum holds the singular values of the covariance of a model's representations of images.

Source: Shi et al., *Understanding and Mitigating Dimensional Collapse in Federated Learning*
(TPAMI), Section 3.3; Yan et al., *CCFC++*, Section III-C.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.core.metrics import effective_rank, spectral_gap, spectrum, tail_share
from ccfcpp.core.profiling import section
from ccfcpp.models.state import ModelState

_MOST_MODELS = 20
"""Largest number of local models; those of the largest clients come first."""


@dataclass
class LocalSpectra:
    """Recorder of the spectra of local models, computed when the server receives the models.

    Attributes:
        last_round: Number of the last round; models of earlier rounds are ignored.
        represent: Maps a client's number and its model to representations of some images, floats of
            shape (images, dimensions); None for a model that cannot be compared.
        values: Is filled with singular values, descending, by the client's number.
    """

    last_round: int
    represent: Callable[[int, ModelState], Tensor | None]
    values: dict[str, list[float]]

    def __call__(self, number: int, client: int, model: ModelState) -> None:
        """Store the spectrum of a client's model, in the last round and for at most 20 models.

        ``number`` is the number of the round.
        """
        if number != self.last_round or len(self.values) == _MOST_MODELS:
            return
        with section("local spectra"):
            representations = self.represent(client, model)
            if representations is not None:
                self.values[str(client)] = spectrum(representations).tolist()

    def arrays(self, global_values: Tensor) -> dict[str, Tensor]:
        """Return all spectra as arrays, to be saved in a run's folder.

        These are ``global``, the given values of shape (dimensions,); ``client``, the clients'
        numbers, ascending; and ``local``, in their order, of shape (clients, dimensions).
        """
        clients = sorted(map(int, self.values))
        local = [self.values[str(client)] for client in clients]
        return {
            "global": global_values,
            "client": torch.tensor(clients, dtype=torch.int64),
            "local": torch.tensor(local, dtype=torch.float64).reshape(-1, len(global_values)),
        }


def describe_spectra(arrays: Mapping[str, Tensor]) -> dict[str, float | None]:
    """Compute metrics of the spectra that ``LocalSpectra.arrays`` returns, for the summary.

    Returns:
        ``effective_rank`` and ``tail_share`` of the global model; means over the local models:
        ``local_effective_rank`` and ``gap``, which is R of Eq. (1) of Shi et al. A metric is None
        without a model, or if a model has diverged.
    """
    of_all, local = arrays["global"], list(arrays["local"])
    return {
        "effective_rank": mean([effective_rank(of_all)]),
        "tail_share": mean([tail_share(of_all)]),
        "local_effective_rank": mean([effective_rank(values) for values in local]),
        "gap": mean([spectral_gap(values, of_all) for values in local]),
    }


def mean(values: list[float]) -> float | None:
    """Return the mean of numbers; None without any or with NaN, which JSON does not have."""
    average = float(torch.tensor(values, dtype=torch.float64).mean())
    return None if math.isnan(average) else average
