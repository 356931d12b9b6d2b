"""The network of Fed-SCAN: an encoder and a head.

Only the batch normalisation of the latents couples images, over the batches of all clients.
GroupNorm and LayerNorm see one image at a time; with a LayerNorm of the latents nothing in the
network couples images.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ccfcpp.clustering.systems.fed_scan.config import ScanConfig
from ccfcpp.core.errors import UsageError
from ccfcpp.models.pooled import PooledModule, Pooling, apply_pooled, apply_rounded, child_path

_GROUPS = 8

MERGE = "merge"
"""Name of the submodule that merges over-clusters."""


def _block(convolution: nn.Conv2d) -> list[nn.Module]:
    return [convolution, nn.GroupNorm(_GROUPS, convolution.out_channels), nn.LeakyReLU(0.2)]


class Merge(nn.Module):
    """A layer that merges over-clusters: it sums the probabilities of those of one cluster.

    It also holds each cluster's target share of the images, for the loss.

    At first each over-cluster is a cluster of its own, and all shares are equal.

    Args:
        overclusters: Number m of over-clusters.
    """

    groups: Tensor
    shares: Tensor

    def __init__(self, overclusters: int) -> None:
        super().__init__()
        self.register_buffer("groups", torch.empty(overclusters, dtype=torch.int64))
        self.register_buffer("shares", torch.empty(overclusters))
        if not self.groups.is_meta:  # where arithmetic imports a second's worth of symbolic algebra
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Undo the merge: each over-cluster becomes a cluster of its own."""
        self.groups.copy_(torch.arange(len(self.groups)))
        self.shares.fill_(1 / len(self.shares))

    def forward(self, predictions: Tensor) -> Tensor:
        """Add up the over-clusters of each cluster, (…, m) to (…, m); 0 beyond the last cluster."""
        # What F.one_hot gives, which on a processor looks at the values first.
        clusters = torch.arange(len(self.groups), device=self.groups.device)
        member = self.groups.unsqueeze(1) == clusters
        return predictions @ member.to(predictions)


class ClusterNetwork(PooledModule):
    """Base class of networks for Fed-SCAN's steps; ``forward`` returns latents z, (batch, d).

    The encoder ends in a normalisation of the latents.

    Attributes:
        head: A linear map from latents to over-clusters.
        latent_norm: The path of the latents' batch normalisation; None without one.
        merge: The merge that training uses; None if over-clusters are trained unmerged.
    """

    head: nn.Linear
    latent_norm: str | None

    def __init__(self) -> None:
        super().__init__()
        self.merge: Merge | None = None

    def with_merge(self) -> "ClusterNetwork":
        """Add a layer that merges over-clusters to this network, and return the network."""
        self.merge = Merge(self.head.out_features)
        return self

    def predictions(self, latents: Tensor) -> Tensor:
        """Return p = softmax(head(z)), of shape (batch, m), m ≥ k."""
        return torch.softmax(self.head(latents), dim=-1)


class ScanBackbone(nn.Sequential):
    """Convolutions 4×4 with stride 2 and GroupNorm, and a hidden layer with LayerNorm.

    Attributes:
        features: Number of output features.

    Raises:
        UsageError: The images are too small for so many halvings.
    """

    def __init__(self, config: ScanConfig, image_shape: Sequence[int]) -> None:
        channels, height, width = image_shape
        layers: list[nn.Module] = []
        if config.stem:
            layers += _block(nn.Conv2d(channels, config.stem, kernel_size=3, padding=1))
            channels = config.stem
        for out_channels in config.widths:
            if min(height, width) < 2:
                raise UsageError(
                    f"scan.widths = {list(config.widths)} halves images of {image_shape[1]} by "
                    f"{image_shape[2]} pixels below one pixel: give fewer widths"
                )
            layers += _block(nn.Conv2d(channels, out_channels, kernel_size=4, stride=2, padding=1))
            channels, height, width = out_channels, height // 2, width // 2
        features = channels * height * width
        layers += [nn.Flatten(), nn.Linear(features, config.hidden), nn.LayerNorm(config.hidden)]
        super().__init__(*layers, nn.ReLU())
        self.features = config.hidden


class VectorBackbone(nn.Sequential):
    """A hidden layer with LayerNorm, or nothing for a linear encoder.

    Attributes:
        features: Number of output features.
    """

    def __init__(self, config: ScanConfig, d: int) -> None:
        hidden = config.hidden
        layers = [nn.Linear(d, hidden), nn.LayerNorm(hidden), nn.ReLU()]
        super().__init__(*(layers if config.encoder == "mlp" else ()))
        self.features = hidden if config.encoder == "mlp" else d


class ScanNetwork(ClusterNetwork):
    """The default network: a backbone, a layer of latents and a head.

    Args:
        config: The section.
        image_shape: Channels, height and width; of vectors, their size.
        clusters: Number of clusters k.
        precision: What the encoder's products round to; None for no rounding.

    Raises:
        UsageError: The images are too small for so many halvings.
    """

    def __init__(
        self,
        config: ScanConfig,
        image_shape: Sequence[int],
        clusters: int,
        precision: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        # A bias would be taken away again by the normalisation of the latents.
        backbone: ScanBackbone | VectorBackbone = (
            VectorBackbone(config, image_shape[0])
            if len(image_shape) == 1
            else ScanBackbone(config, image_shape)
        )
        layers = [*backbone, nn.Linear(backbone.features, config.latent, bias=False)]
        pooled = config.normalisation == "batch"
        norm = (
            nn.BatchNorm1d(config.latent, affine=False)
            if pooled
            else nn.LayerNorm(config.latent, elementwise_affine=False)
        )
        self.encoder = nn.Sequential(*layers, norm)
        self.head = nn.Linear(config.latent, config.overclustering * clusters)
        self.latent_norm = f"encoder.{len(self.encoder) - 1}" if pooled else None
        self.precision = precision

    def forward(self, images: Tensor) -> Tensor:
        """Return normalised latents z (batch, d) of images or vectors, (batch, …)."""
        return apply_rounded(self.encoder, images, self.precision).to(images.dtype)

    def pooled(self, x: Tensor, name: str) -> Pooling[Tensor]:
        """Run ``forward`` in training mode, normalised over the batches of all clients."""
        z = yield from apply_pooled(self.encoder, x, child_path(name, "encoder"), self.precision)
        return z.to(x.dtype)
