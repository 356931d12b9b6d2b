"""The network of Fed-SCAN: an encoder without batch normalisation, and a head.

No layer of it sees another image: what couples images is the pooled normalisation of the latents,
which is a part of the step (``ccfcpp.clustering.scan.statistics``) and not of the network.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from ccfcpp.clustering.scan.config import ScanConfig
from ccfcpp.core.errors import UsageError

_GROUPS = 8


def _block(convolution: nn.Conv2d) -> list[nn.Module]:
    return [convolution, nn.GroupNorm(_GROUPS, convolution.out_channels), nn.LeakyReLU(0.2)]


class ScanNetwork(nn.Module):
    """Convolutions 4×4 with stride 2 and GroupNorm, a hidden layer with LayerNorm, latents, a head.

    Args:
        config: Its widths.
        image_shape: Channels, height and width of an image.
        clusters: Number of clusters k.

    Raises:
        UsageError: The images are too small for so many halvings.
    """

    def __init__(self, config: ScanConfig, image_shape: Sequence[int], clusters: int) -> None:
        super().__init__()
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
        layers += [nn.ReLU(), nn.Linear(config.hidden, config.latent)]
        self.encoder = nn.Sequential(*layers)
        self.head = nn.Linear(config.latent, clusters)

    def forward(self, images: Tensor) -> Tensor:
        """Latents before their normalisation: (batch, channels, height, width) to (batch, d)."""
        latents: Tensor = self.encoder(images)
        return latents
