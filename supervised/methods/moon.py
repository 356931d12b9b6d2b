"""MOON (Li, He and Song 2021): model-contrastive local training."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ccfcpp.core.config import Positive, PositiveNumber, Section, Weight
from ccfcpp.data.batches import CohortBatch
from ccfcpp.engine.client import Client
from ccfcpp.models.stack.stacked import ModelStack
from supervised.config import ClassifyConfig
from supervised.losses import model_contrast
from supervised.messages import Broadcast, LocalUpdate
from supervised.methods.local import LocalContext, LocalMethod
from supervised.methods.method import Method
from supervised.sharing import held, hold


class MoonConfig(Section):
    """Model-contrastive term of MOON."""

    mu: Weight = 1.0
    temperature: PositiveNumber = 1.0
    """1 in the FedDecorr authors' code, 0.5 in MOON's paper."""
    projection: tuple[Positive, ...] = ()
    """Widths of the layers of a projection head; the model-contrastive term, the decorrelation term
    and the classifier act on what the last one gives."""


def _projection(config: ClassifyConfig) -> Sequence[int]:
    return config.section(MoonConfig).projection


class ModelContrast(LocalMethod):
    """MOON: attracts representations to the global model's, and repels them from the previous ones.

    Both frozen models are in evaluation mode, as in the authors' code. A client without a previous
    model uses the global one in its place, and the term has no gradient.
    """

    def __init__(self, context: LocalContext) -> None:
        super().__init__(context)
        make, device, precision = context.make_model, context.device, self.config.compute.precision
        self._global, self._previous = (
            ModelStack(make, count, device, trained=False, precision=precision)
            for count in (1, len(self.models.parameters))
        )

    def begin(self, message: Broadcast, clients: Sequence[Client]) -> None:
        """Load the global and the previous models."""
        self._global.load(0, message.model)
        for index, client in enumerate(clients):
            self._previous.load(index, held(client.memory, self.context.device) or message.model)

    @torch.no_grad()
    def _frozen(self, images: Tensor, clients: int) -> tuple[Tensor, Tensor]:
        self._previous.activate(clients)
        of_global = self._global(images)[0]
        of_previous = self._previous(images)[0]
        return of_global.view(of_previous.shape)[:, 0], of_previous[:, 0]

    def penalty(self, images: Tensor, representations: Tensor, batch: CohortBatch) -> Tensor | None:
        """Compute μ times the model-contrastive loss."""
        settings = self.config.section(MoonConfig)
        of_global, of_previous = self._frozen(images, len(batch))
        loss = model_contrast(
            representations, of_global, of_previous, settings.temperature, batch.mask
        )
        return settings.mu * loss

    def finish(self, index: int, client: Client, update: LocalUpdate) -> LocalUpdate:
        """Store the trained model in the client's memory."""
        client.memory = hold(self.models.state(index))
        return update


MOON = Method(
    "MOON",
    ModelContrast,
    remembers=True,
    projection=_projection,
    sections={"moon": MoonConfig},
)
