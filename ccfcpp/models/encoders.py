"""Backbones, which map images to feature vectors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ccfcpp.core.errors import UsageError
from ccfcpp.models.pooled import PooledModule, Pooling, apply_pooled, batch_norm, child_path


class ConvBackbone(nn.Sequential):
    """Backbone of 4×4 convolutions with stride 2, each with BatchNorm and LeakyReLU(0.2).

    With ``widths`` (64, 128, 256) this is the backbone of the CCFC authors' code for 28×28 images.

    Args:
        image_shape: Channels, height and width of an image.
        widths: Output channels of each convolution.
        key: Key of the widths in the configuration, for error messages.

    Attributes:
        features: Length of the feature vector.

    Raises:
        UsageError: The images are too small for so many halvings.
    """

    def __init__(
        self, image_shape: Sequence[int], widths: Sequence[int], key: str = "model.widths"
    ) -> None:
        channels, height, width = image_shape
        layers: list[nn.Module] = []
        for out_channels in widths:
            if min(height, width) < 2:
                raise UsageError(
                    f"{key} = {list(widths)} halves images of {image_shape[1]} by "
                    f"{image_shape[2]} pixels below one pixel: give fewer widths"
                )
            layers += [
                nn.Conv2d(channels, out_channels, kernel_size=4, stride=2, padding=1),
                nn.BatchNorm2d(out_channels),
                nn.LeakyReLU(0.2),
            ]
            channels, height, width = out_channels, height // 2, width // 2
        super().__init__(*layers, nn.Flatten())
        self.features = channels * height * width


class ResNet18Backbone(PooledModule):
    """torchvision's ResNet-18 for small images: a 3×3 stem with stride 1 and no max-pooling."""

    features = 512

    def __init__(self, image_shape: Sequence[int]) -> None:
        # Imported where it is needed: torchvision takes seconds, and most networks do without.
        from torchvision.models import resnet18

        super().__init__()
        self.network = resnet18()
        self.network.conv1 = nn.Conv2d(image_shape[0], 64, kernel_size=3, padding=1, bias=False)
        self.network.maxpool = nn.Identity()
        self.network.fc = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Map images of shape (batch, channels, height, width) to features (batch, 512)."""
        features: Tensor = self.network(images)
        return features

    def pooled(self, x: Tensor, name: str) -> Pooling[Tensor]:
        """Compute ``forward`` as a generator; batch normalisation is over all clients' batches."""
        network, path = self.network, child_path(name, "network")
        x = yield from batch_norm(network.bn1, f"{path}.bn1", network.conv1(x))
        x = torch.relu(x)
        for stage in ("layer1", "layer2", "layer3", "layer4"):
            for number, block in network.get_submodule(stage).named_children():
                x = yield from _basic_block(block, x, f"{path}.{stage}.{number}")
        return torch.flatten(network.avgpool(x), 1)


def _basic_block(block: Any, x: Tensor, name: str) -> Pooling[Tensor]:
    """Apply torchvision's ``BasicBlock`` as a generator; batch norm is over all clients."""
    y = yield from batch_norm(block.bn1, f"{name}.bn1", block.conv1(x))
    y = yield from batch_norm(block.bn2, f"{name}.bn2", block.conv2(torch.relu(y)))
    if block.downsample is not None:
        x = yield from apply_pooled(block.downsample, x, f"{name}.downsample")
    return torch.relu(y + x)
