"""The cluster-contrastive model of CCFC: backbone, projector and predictor."""

import torch
from torch import Tensor, nn

from ccfcpp.clustering.systems.ccfc.config import ModelConfig
from ccfcpp.clustering.systems.fed_scan.config import ScanConfig
from ccfcpp.clustering.systems.fed_scan.network import ClusterNetwork, ScanBackbone
from ccfcpp.core.config import RunConfig
from ccfcpp.models.encoders import ConvBackbone, ResNet18Backbone
from ccfcpp.models.pooled import Pooling, apply_pooled, apply_rounded, child_path


class ContrastiveModel(nn.Module):
    """Encoder (backbone and projector) and predictor, Section III-A of the CCFC++ paper.

    The projector ends in a BatchNorm without affine, so that in training each latent dimension is
    standardised over the batch.

    Args:
        backbone: Maps images to vectors of length ``features``.
        projector_width: Width of the projector's hidden layer; None for a linear projector.
        latent: Size d of a latent.
        predictor_width: Width of the predictor's hidden layer.
    """

    def __init__(
        self,
        backbone: ConvBackbone | ResNet18Backbone | ScanBackbone,
        projector_width: int | None,
        latent: int,
        predictor_width: int,
    ) -> None:
        super().__init__()
        self.latent = latent
        self.backbone = backbone
        self.projector = nn.Sequential(
            *_projection(backbone.features, projector_width, latent),
            nn.BatchNorm1d(latent, affine=False),
        )
        self.predictor = nn.Sequential(
            nn.Linear(latent, predictor_width),
            nn.BatchNorm1d(predictor_width),
            nn.ReLU(),
            nn.Linear(predictor_width, latent),
        )

    def encode(self, images: Tensor) -> Tensor:
        """Return latents z = f(x): (batch, channels, height, width) to (batch, latent)."""
        latents: Tensor = self.projector(self.backbone(images))
        return latents

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return latents z and predictions p = h(z), both of shape (batch, latent)."""
        latents = self.encode(images)
        return latents, self.predictor(latents)


def _projection(features: int, width: int | None, latent: int) -> list[nn.Module]:
    if width is None:
        return [nn.Linear(features, latent, bias=False)]
    hidden = [nn.Linear(features, width), nn.BatchNorm1d(width), nn.ReLU()]
    return [*hidden, nn.Linear(width, latent)]


class NeighbourModel(ClusterNetwork):
    """The encoder of a contrastive model with a head for Fed-SCAN's steps.

    Args:
        model: The model.
        clusters: Number of clusters k.
        precision: What the backbone's products round to, but for ResNet-18; None for no rounding.
    """

    def __init__(
        self, model: ContrastiveModel, clusters: int, precision: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.precision = precision
        self.backbone = model.backbone
        self.projector = model.projector
        self.head = nn.Linear(model.latent, clusters)
        self.latent_norm = f"projector.{len(model.projector) - 1}"

    def forward(self, images: Tensor) -> Tensor:
        """Return latents z: (batch, channels, height, width) to (batch, latent)."""
        features = apply_rounded(self.backbone, images, self.precision).to(images.dtype)
        latents: Tensor = self.projector(features)
        return latents

    def pooled(self, x: Tensor, name: str) -> Pooling[Tensor]:
        """Run ``forward`` in training mode, normalised over the batches of all clients."""
        return (yield from pooled_latents(self, x, name, self.precision))


def pooled_latents(
    model: ContrastiveModel | NeighbourModel,
    x: Tensor,
    name: str = "",
    precision: torch.dtype | None = None,
) -> Pooling[Tensor]:
    """Compute latents in training mode, normalised over the batches of all clients.

    Returns:
        z of shape (batch, latent).
    """
    features = yield from apply_pooled(model.backbone, x, child_path(name, "backbone"), precision)
    return (
        yield from apply_pooled(
            model.projector, features.to(x.dtype), child_path(name, "projector")
        )
    )


def make_model(config: RunConfig, image_shape: tuple[int, ...]) -> ContrastiveModel:
    """Build the network for images of shape (channels, height, width).

    Raises:
        UsageError: The images do not fit the backbone.
    """
    model = config.section(ModelConfig)
    if model.backbone == "scan":
        backbone = ScanBackbone(config.section(ScanConfig), image_shape)
        return ContrastiveModel(backbone, None, model.latent, model.predictor_width)
    conv = model.backbone == "conv" or (model.backbone == "auto" and image_shape[0] == 1)
    return ContrastiveModel(
        ConvBackbone(image_shape, model.widths) if conv else ResNet18Backbone(image_shape),
        model.projector_width,
        model.latent,
        model.predictor_width,
    )
