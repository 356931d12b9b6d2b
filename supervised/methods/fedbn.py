"""FedBN (Li et al. 2021): clients keep their batch normalisation layers."""

from ccfcpp.core.errors import UsageError
from ccfcpp.engine.client import Client
from supervised.config import ClassifyConfig, SmallNetwork
from supervised.messages import LocalUpdate
from supervised.methods.local import LocalMethod
from supervised.methods.method import Method
from supervised.sharing import PersonalNormalisation, to_memory


class KeptNormalisation(LocalMethod):
    """Local training in which each client keeps its batch normalisation layers between rounds."""

    def finish(self, client: Client, update: LocalUpdate) -> LocalUpdate:
        """Copy batch normalisation layers to the client's local state; return ``update``."""
        model, shared = self.network.state(), update.model
        kept = {name: entry.clone() for name, entry in model.items() if name not in shared}
        client.memory = to_memory(kept)
        return update


def _check_normalisations(config: ClassifyConfig) -> None:
    if isinstance(config.model, SmallNetwork) and not config.model.batch_norm:
        raise UsageError(
            "method = 'fedbn' keeps batch normalisation at the clients, and model.name = "
            "'small' with model.batch_norm = false has none: take another method or model"
        )


FEDBN = Method(
    "FedBN",
    KeptNormalisation,
    sharing=PersonalNormalisation,
    remembers=True,
    personal=True,
    check=_check_normalisations,
)
