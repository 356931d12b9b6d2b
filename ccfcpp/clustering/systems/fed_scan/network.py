"""The network of Fed-SCAN: an encoder, and a head that assigns over-clusters.

Only the batch normalisation of the latents, over the batches of all clients, depends on several
images; GroupNorm and LayerNorm normalise each image by itself. With LayerNorm of the latents, no
layer depends on several images.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ccfcpp.clustering.systems.fed_scan.config import ScanConfig
from ccfcpp.core.errors import UsageError
from ccfcpp.models.pooled import PooledModule, Pooling, apply_pooled, apply_rounded, child_path

_GROUPS = 8

MERGE = "merge"
"""Name of the submodule that merges over-clusters, and prefix of its tensors in a state."""


def _block(convolution: nn.Conv2d) -> list[nn.Module]:
    return [convolution, nn.GroupNorm(_GROUPS, convolution.out_channels), nn.LeakyReLU(0.2)]


class Merge(nn.Module):
    """Layer that merges over-clusters: it sums their probabilities within each cluster.

    It also holds each cluster's target share of the images, for the loss. At first each
    over-cluster is a cluster of its own, and all shares are equal.

    Args:
        overclusters: Number m of over-clusters.
    """

    groups: Tensor
    shares: Tensor

    def __init__(self, overclusters: int) -> None:
        super().__init__()
        self.register_buffer("groups", torch.empty(overclusters, dtype=torch.int64))
        self.register_buffer("shares", torch.empty(overclusters))
        if not self.groups.is_meta:  # Arithmetic on "meta" imports sympy: 1 s.
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Undo the merge: each over-cluster becomes a cluster of its own."""
        self.groups.copy_(torch.arange(len(self.groups)))
        self.shares.fill_(1 / len(self.shares))

    def forward(self, predictions: Tensor) -> Tensor:
        """Sum probabilities (…, m) by cluster; the result (…, m) is 0 from column k on."""
        # As F.one_hot, which on a CPU would first check all values.
        clusters = torch.arange(len(self.groups), device=self.groups.device)
        member = self.groups.unsqueeze(1) == clusters
        return predictions @ member.to(predictions)


class ClusterNetwork(PooledModule):
    """Base class of networks that Fed-SCAN trains; ``forward`` returns latents z, (batch, d).

    A subclass normalises the latents.

    Attributes:
        head: Linear map from latents to logits of the m over-clusters.
        latent_norm: Name of the submodule with the latents' batch normalisation; None without one.
        merge: Layer that merges over-clusters in training; None if there is none.
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
        """Return the probabilities of the over-clusters, softmax(head(z)), of shape (batch, m)."""
        return torch.softmax(self.head(latents), dim=-1)


class ScanBackbone(nn.Sequential):
    """Backbone for images: 4×4 convolutions with stride 2 and GroupNorm, then a hidden layer.

    Attributes:
        features: Number of output features.

    Raises:
        UsageError: The images are too small for so many layers that halve the resolution.
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
    """Backbone for vectors: a hidden layer with LayerNorm, or no layer for a linear encoder.

    Attributes:
        features: Number of output features.
    """

    def __init__(self, config: ScanConfig, d: int) -> None:
        hidden = config.hidden
        layers = [nn.Linear(d, hidden), nn.LayerNorm(hidden), nn.ReLU()]
        super().__init__(*(layers if config.encoder == "mlp" else ()))
        self.features = hidden if config.encoder == "mlp" else d


class ScanNetwork(ClusterNetwork):
    """Default network of Fed-SCAN: a backbone, a linear layer to the latents, and a head.

    Args:
        config: Widths of the layers, and the number of over-clusters per cluster.
        image_shape: Channels, height and width; for vectors (size,).
        clusters: Number of clusters k.
        precision: dtype to which the encoder's products are rounded; None for no rounding.

    Raises:
        UsageError: The images are too small for so many layers that halve the resolution.
    """

    def __init__(
        self,
        config: ScanConfig,
        image_shape: Sequence[int],
        clusters: int,
        precision: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        backbone: ScanBackbone | VectorBackbone = (
            VectorBackbone(config, image_shape[0])
            if len(image_shape) == 1
            else ScanBackbone(config, image_shape)
        )
        # The normalisation of the latents would remove a bias.
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
        """Return normalised latents z of float images or vectors: (batch, …) to (batch, d)."""
        return apply_rounded(self.encoder, images, self.precision).to(images.dtype)

    def pooled(self, x: Tensor, name: str) -> Pooling[Tensor]:
        """Run ``forward`` in training mode; yield the sums of BatchNorm, to pool over clients."""
        z = yield from apply_pooled(self.encoder, x, child_path(name, "encoder"), self.precision)
        return z.to(x.dtype)
