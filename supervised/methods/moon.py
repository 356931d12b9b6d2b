"""MOON (Li, He and Song 2021): model-contrastive local training."""

import torch
from torch import Tensor

from ccfcpp.core.config import Positive, PositiveNumber, Section, Unused, Weight, require_other
from ccfcpp.engine.client import Client
from ccfcpp.models.network import FlatNetwork
from supervised.losses import model_contrast
from supervised.messages import Broadcast, LocalUpdate
from supervised.methods.local import LocalContext, LocalMethod
from supervised.methods.method import Method
from supervised.sharing import from_memory, to_memory


class MoonConfig(Section):
    """Settings of MOON: its model-contrastive loss term, and a projection head."""

    mu: Weight = 1.0
    """μ: weight of the model-contrastive term."""
    temperature: PositiveNumber = 1.0
    """Temperature of the similarities; 1 in the FedDecorr authors' code, 0.5 in MOON's paper."""
    projection: tuple[Positive, ...] = ()
    """Widths of the layers of a projection head; the output of the last one is the representation,
    for the model-contrastive term, the decorrelation term and the classifier."""

    def unused(self) -> Unused:
        """Yield the temperature of a term without weight."""
        if self.mu == 0:
            yield "moon.temperature", require_other("moon.mu", 0)


class ModelContrast(LocalMethod):
    """Local training of MOON (Li, He and Song 2021), with a model-contrastive loss term.

    The term pulls representations towards those of the global model, and away from those of the
    client's model of its last round (without one: the global model, and the term has no gradient).
    Both models are frozen and in evaluation mode, as in the authors' code.
    """

    def __init__(self, context: LocalContext) -> None:
        super().__init__(context)
        self._global, self._previous = (
            FlatNetwork(
                context.make_model,
                context.sharing.device,
                trained=False,
                precision=self.config.compute.precision,
            )
            for _ in range(2)
        )

    def begin(self, message: Broadcast, client: Client) -> None:
        """Load the global model and the client's previous one into the frozen networks."""
        self._global.load(message.model)
        self._previous.load(
            from_memory(client.memory, self.context.sharing.device) or message.model
        )

    def penalty(self, images: Tensor, representations: Tensor) -> Tensor | None:
        """Return μ · the model-contrastive loss of a batch, a scalar; μ is the setting ``mu``."""
        settings = self.config.section(MoonConfig)
        with torch.no_grad():
            of_global, of_previous = (of(images)[0] for of in (self._global, self._previous))
        loss = model_contrast(representations, of_global, of_previous, settings.temperature)
        return settings.mu * loss

    def finish(self, client: Client, update: LocalUpdate) -> LocalUpdate:
        """Store the trained model in the client's local state, and return the update unchanged."""
        client.memory = to_memory(self.network.state())
        return update


MOON = Method(
    "MOON",
    ModelContrast,
    remembers=True,
    projection=lambda config: config.section(MoonConfig).projection,
    sections={"moon": MoonConfig},
)
