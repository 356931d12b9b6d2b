"""Networks for classification: a backbone for the representation, and a linear layer on top.

A backbone maps images (batch, channels, height, width) to representations (batch, features).
"""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn
from torch.nn import functional as F

from ccfcpp.core.errors import UsageError

if TYPE_CHECKING:
    from torchvision.models.resnet import BasicBlock


class Backbone(Protocol):
    """Interface of a network that maps images to representations."""

    features: int

    def __call__(self, images: Tensor) -> Tensor:
        """Return representations of shape (batch, features)."""
        ...


class Classifier(nn.Module):
    """Network of a backbone and a linear layer, which returns representations and logits.

    Args:
        backbone: The backbone, a module.
        classes: Number of classes.
        projection: Widths of the layers of a projection head after the backbone, with ReLU between
            them; its output is then the representation. Empty: no projection head.
    """

    def __init__(self, backbone: Backbone, classes: int, projection: Sequence[int] = ()) -> None:
        super().__init__()
        self.backbone = backbone
        widths = [backbone.features, *projection]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.ReLU()] if layers else []
            layers.append(nn.Linear(before, after))
        self.projection = nn.Sequential(*layers)
        self.features = widths[-1]
        self.head = nn.Linear(self.features, classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return representations (batch, features) and logits (batch, classes)."""
        representations = self.projection(self.backbone(images))
        return representations, self.head(representations)


class SmallBackbone(nn.Sequential):
    """Backbone of 4×4 convolutions with stride 2 and a hidden layer, for digits and MNIST.

    ``widths`` are the convolutions' output channels, ``features`` is the hidden layer's width.

    Raises:
        UsageError: The images are too small for so many convolutions, each of which halves them.
    """

    def __init__(
        self, image_shape: Sequence[int], widths: Sequence[int], features: int, batch_norm: bool
    ) -> None:
        _check_size("model.widths", image_shape, 2 ** len(widths))
        channels, height, width = image_shape
        layers: list[nn.Module] = []
        for out_channels in widths:
            layers.append(nn.Conv2d(channels, out_channels, kernel_size=4, stride=2, padding=1))
            layers += [nn.BatchNorm2d(out_channels)] if batch_norm else []
            layers.append(nn.ReLU())
            channels, height, width = out_channels, height // 2, width // 2
        layers += [nn.Flatten(), nn.Linear(channels * height * width, features)]
        layers += [nn.BatchNorm1d(features)] if batch_norm else []
        super().__init__(*layers, nn.ReLU())
        self.features = features


_MOBILENET_STAGES = (  # expansion, channels, blocks, stride
    (1, 16, 1, 1),
    (6, 24, 2, 1),  # of stride 2 for the large images of the paper
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class MobileNetV2Backbone(nn.Module):
    """Backbone MobileNetV2 (Sandler et al. 2018) for small images.

    The first convolution and the first down-sampling stage have stride 1.

    Args:
        image_shape: Channels, height and width of an image.
        variant: ``paper``: torchvision's network; ``code``: that of FedDecorr's public code, which
            has ReLU in place of ReLU6, an expansion in the first block too, and a projection if a
            block of stride 1 changes the width.
    """

    features = 1280

    def __init__(self, image_shape: Sequence[int], variant: str) -> None:
        super().__init__()
        make = _paper_mobilenet if variant == "paper" else _code_mobilenet
        self.network = make(image_shape[0], self.features)

    def forward(self, images: Tensor) -> Tensor:
        """Return representations of shape (batch, 1280)."""
        representations: Tensor = self.network(images)
        return representations


def _paper_mobilenet(channels: int, features: int) -> nn.Module:
    # Imported here, since torchvision takes seconds, and small networks do not need it.
    from torchvision.models import MobileNetV2
    from torchvision.ops import Conv2dNormActivation

    network = MobileNetV2(inverted_residual_setting=[list(stage) for stage in _MOBILENET_STAGES])
    network.features[0] = Conv2dNormActivation(channels, 32, stride=1, activation_layer=nn.ReLU6)
    network.classifier = nn.Identity()
    assert network.last_channel == features
    return network  # type: ignore[no-any-return] # torchvision ships no types


def _code_mobilenet(channels: int, features: int) -> nn.Module:
    blocks: list[nn.Module] = []
    width = 32
    for expansion, out_channels, count, stride in _MOBILENET_STAGES:
        for number in range(count):
            step = stride if number == 0 else 1
            blocks.append(_InvertedResidual(width, out_channels, expansion, step))
            width = out_channels
    return nn.Sequential(
        *_normed_convolution(channels, 32, kernel=3),
        nn.ReLU(),
        *blocks,
        *_normed_convolution(width, features, kernel=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


class _InvertedResidual(nn.Module):
    """MobileNetV2 block: expansion, depthwise convolution, projection; shortcut if stride is 1."""

    def __init__(self, before: int, after: int, expansion: int, stride: int) -> None:
        super().__init__()
        width = expansion * before
        self.layers = nn.Sequential(
            *_normed_convolution(before, width, kernel=1),
            nn.ReLU(),
            *_normed_convolution(width, width, kernel=3, stride=stride, groups=width),
            nn.ReLU(),
            *_normed_convolution(width, after, kernel=1),
        )
        self.has_shortcut = stride == 1
        projected = self.has_shortcut and before != after
        projection = _normed_convolution(before, after, kernel=1) if projected else []
        self.shortcut = nn.Sequential(*projection)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y + self.shortcut(x) if self.has_shortcut else y


def _normed_convolution(
    before: int, after: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    padding = kernel // 2
    convolution = nn.Conv2d(before, after, kernel, stride, padding, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(after)]


class SmallResNetBackbone(nn.Sequential):
    """Backbone ResNet for CIFAR (He et al. 2016, Section 4.2): 6 · ``blocks`` + 2 layers.

    Shortcuts have no parameters (option A): if the size changes, every other pixel is taken and the
    channels are padded with zeros.
    """

    features = 64

    def __init__(self, image_shape: Sequence[int], blocks: int) -> None:
        stages = [
            _basic_block(before, after, stride if number == 0 else 1)
            for first, after, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2))
            for number in range(blocks)
            for before in (first if number == 0 else after,)
        ]
        super().__init__(
            nn.Conv2d(image_shape[0], 16, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            *stages,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )


def _basic_block(before: int, after: int, stride: int) -> "BasicBlock":
    from torchvision.models.resnet import BasicBlock

    shortcut = _PaddedShortcut(after - before) if after != before else None
    return BasicBlock(before, after, stride, shortcut)


class _PaddedShortcut(nn.Module):
    """ResNet shortcut without parameters: every other pixel, and zeros as new channels."""

    def __init__(self, new_channels: int) -> None:
        super().__init__()
        self.new_channels = new_channels

    def forward(self, x: Tensor) -> Tensor:
        half = self.new_channels // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, half, self.new_channels - half))


class AlexNetBackbone(nn.Sequential):
    """Backbone AlexNet with batch normalisation after each layer, as in FedBN (Li et al. 2021).

    Raises:
        UsageError: The images have fewer than 63 pixels a side.
    """

    features = 4096

    def __init__(self, image_shape: Sequence[int]) -> None:
        _check_size("model.name = 'alexnet'", image_shape, 63)
        layers: list[nn.Module] = []
        channels = image_shape[0]
        for out_channels, kernel, stride, padding, pooled in (
            (64, 11, 4, 2, True),
            (192, 5, 1, 2, True),
            (384, 3, 1, 1, False),
            (256, 3, 1, 1, False),
            (256, 3, 1, 1, True),
        ):
            layers += [
                nn.Conv2d(channels, out_channels, kernel, stride, padding),
                nn.BatchNorm2d(out_channels),
                nn.ReLU(),
            ]
            layers += [nn.MaxPool2d(kernel_size=3, stride=2)] if pooled else []
            channels = out_channels
        layers += [nn.AdaptiveAvgPool2d(6), nn.Flatten()]
        for inputs in (channels * 6 * 6, self.features):
            layers += [nn.Linear(inputs, self.features), nn.BatchNorm1d(self.features), nn.ReLU()]
        super().__init__(*layers)


def fresh_normalisations(model: nn.Module) -> dict[str, Tensor]:
    """Return initial parameters and buffers of all batch normalisation layers of a model, by name.

    ``model`` may be on the meta device.
    """
    return {
        f"{path}.{name}" if path else name: entry
        for path, module in model.named_modules()
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
        for name, entry in type(module)(module.num_features).state_dict().items()
    }


def _check_size(what: str, image_shape: Sequence[int], least: int) -> None:
    if min(image_shape[1:]) < least:
        raise UsageError(
            f"{what} needs images of {least} pixels a side, and these have {image_shape[1]} by "
            f"{image_shape[2]}: take another model, or larger images with data.image_size"
        )
