"""Spectra of the local models of a run's last round, to compare with the global model's.

Source: Shi et al., *Understanding and Mitigating Dimensional Collapse in Federated Learning*
(TPAMI), Section 3.3; Yan et al., *CCFC++*, Section III-C.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ccfcpp.core.metrics import effective_rank, spectral_gap, spectrum, tail_share
from ccfcpp.core.profiling import section
from ccfcpp.models.state import ModelState

_MOST_MODELS = 20
"""Largest number of local models; those of the largest clients come first."""


class LocalSpectra:
    """Recorder of local models' spectra, computed when the server receives the models.

    Args:
        last_round: The round of the local models.
        represent: Maps a client's number and its model to representations of some images, floats of
            shape (images, dimensions); None for a model that cannot be compared.
        values: Filled with singular values, descending, by the client's number.
    """

    def __init__(
        self,
        last_round: int,
        represent: Callable[[int, ModelState], Tensor | None],
        values: dict[str, list[float]],
    ) -> None:
        self.last_round = last_round
        self.represent = represent
        self.values = values

    def __call__(self, number: int, client: int, model: ModelState) -> None:
        """Compute and store the spectrum of a local model that the server has accepted."""
        if number != self.last_round or len(self.values) == _MOST_MODELS:
            return
        with section("local spectra"):
            representations = self.represent(client, model)
            if representations is not None:
                self.values[str(client)] = spectrum(representations).tolist()

    def arrays(self, global_values: Tensor) -> dict[str, Tensor]:
        """Return all spectra as arrays, to be saved in a run's folder.

        These are ``global`` of shape (dimensions,), the numbers ``client``, and in their order
        ``local`` of shape (clients, dimensions).
        """
        clients = sorted(map(int, self.values))
        local = [self.values[str(client)] for client in clients]
        return {
            "global": global_values,
            "client": torch.tensor(clients, dtype=torch.int64),
            "local": torch.tensor(local, dtype=torch.float64).reshape(-1, len(global_values)),
        }


def describe_spectra(arrays: Mapping[str, Tensor]) -> dict[str, float | None]:
    """Return metrics of ``LocalSpectra.arrays`` for the summary, means over the local models.

    Returns:
        ``effective_rank``, ``tail_share``, ``local_effective_rank`` and ``gap``, the R of Eq. (1);
        None without a model, or if a model has diverged.
    """
    of_all, local = arrays["global"], list(arrays["local"])
    return {
        "effective_rank": mean([effective_rank(of_all)]),
        "tail_share": mean([tail_share(of_all)]),
        "local_effective_rank": mean([effective_rank(values) for values in local]),
        "gap": mean([spectral_gap(values, of_all) for values in local]),
    }


def mean(values: list[float]) -> float | None:
    """Return the mean; None without values or with NaN, which JSON does not have."""
    average = float(torch.tensor(values, dtype=torch.float64).mean())
    return None if math.isnan(average) else average
