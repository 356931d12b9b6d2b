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
    """Network of CCFC: an encoder (backbone and projector), then a predictor.

    See Section III-A of the CCFC++ paper. The projector ends in a BatchNorm without weights, so
    that in training each latent dimension is standardised over the batch.

    Args:
        backbone: Maps images to vectors of length ``backbone.features``.
        projector_width: Width of the projector's hidden layer; None for a linear projector.
        latent: Number d of latent dimensions.
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
        """Return latents z of float images (batch, channels, height, width): (batch, latent)."""
        latents: Tensor = self.projector(self.backbone(images))
        return latents

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images' latents z, and the predictor's outputs p; both (batch, latent)."""
        latents = self.encode(images)
        return latents, self.predictor(latents)


def _projection(features: int, width: int | None, latent: int) -> list[nn.Module]:
    if width is None:
        return [nn.Linear(features, latent, bias=False)]
    hidden = [nn.Linear(features, width), nn.BatchNorm1d(width), nn.ReLU()]
    return [*hidden, nn.Linear(width, latent)]


class NeighbourModel(ClusterNetwork):
    """The encoder of a contrastive model with a classification head, for Fed-SCAN's steps.

    Args:
        model: The contrastive model; its backbone and projector are used, not copied.
        clusters: Number of outputs of the head.
        precision: dtype to which the backbone's products are rounded, except for ResNet-18; None
            for no rounding.
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
        """Return latents z of float images (batch, channels, height, width): (batch, latent)."""
        features = apply_rounded(self.backbone, images, self.precision).to(images.dtype)
        latents: Tensor = self.projector(features)
        return latents

    def pooled(self, x: Tensor, name: str) -> Pooling[Tensor]:
        """Run ``forward`` in training mode; yield the sums of BatchNorm, to pool over clients."""
        return (yield from pooled_latents(self, x, name, self.precision))


def pooled_latents(
    model: ContrastiveModel | NeighbourModel,
    x: Tensor,
    name: str = "",
    precision: torch.dtype | None = None,
) -> Pooling[Tensor]:
    """Compute latents in training mode; yield the sums of BatchNorm, to pool over clients.

    Args:
        model: Its backbone and projector are used.
        x: Images of shape (batch, channels, height, width).
        name: Prefix of the names of pooled sums.
        precision: dtype to which the backbone's products are rounded; None for no rounding.

    Returns:
        Latents z of shape (batch, latent).
    """
    features = yield from apply_pooled(model.backbone, x, child_path(name, "backbone"), precision)
    return (
        yield from apply_pooled(
            model.projector, features.to(x.dtype), child_path(name, "projector")
        )
    )


def make_model(config: RunConfig, image_shape: tuple[int, ...]) -> ContrastiveModel:
    """Build the configured network for images of shape (channels, height, width).

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
