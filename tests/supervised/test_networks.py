"""Networks of the FedDecorr papers against their published properties."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.models.encoders import ResNet18Backbone
from ccfcpp.models.state import build
from supervised.networks import (
    AlexNetBackbone,
    Backbone,
    Classifier,
    MobileNetV2Backbone,
    SmallBackbone,
    SmallResNetBackbone,
    fresh_normalisations,
)

# Millions of parameters of the backbone: He et al. 2016 (Table 6) for ResNet-20 and -32,
# torchvision for MobileNetV2 (3.50 with its layer of 1,000 classes) and ResNet-18 (11.69 with it).
PUBLISHED = [
    pytest.param(lambda: MobileNetV2Backbone((3, 32, 32), "paper"), 1280, 3.50 - 1.281, id="paper"),
    pytest.param(lambda: ResNet18Backbone((3, 32, 32)), 512, 11.69 - 0.513, id="resnet18"),
    pytest.param(lambda: SmallResNetBackbone((3, 32, 32), 3), 64, 0.27, id="resnet20"),
    pytest.param(lambda: SmallResNetBackbone((3, 32, 32), 5), 64, 0.46, id="resnet32"),
]


@pytest.mark.parametrize(("make", "features", "millions"), PUBLISHED)
def test_published_sizes(make: Callable[[], Backbone], features: int, millions: float) -> None:
    with torch.device("meta"):
        model = Classifier(make(), 10)
    parameters = sum(p.numel() for n, p in model.named_parameters() if n.startswith("backbone"))
    assert parameters / 1e6 == pytest.approx(millions, abs=0.012)
    assert model.backbone.features == features
    representations, logits = model(torch.empty(2, 3, 32, 32, device="meta"))
    assert representations.shape == (2, features)
    assert logits.shape == (2, 10)


def test_a_projection_head_has_relu_between_its_layers_alone() -> None:
    def make() -> Classifier:
        return Classifier(SmallBackbone((1, 8, 8), (4,), 12, batch_norm=True), 3, (6, 5))

    model = build(make, Randomness(0).generator("model")).eval()
    images = torch.rand(7, 1, 8, 8, generator=Randomness(0).generator("images"))
    entries = model.state_dict()
    hidden = model.backbone(images) @ entries["projection.0.weight"].T
    hidden = (hidden + entries["projection.0.bias"]).clamp(min=0)
    expected = hidden @ entries["projection.2.weight"].T + entries["projection.2.bias"]
    representations, logits = model(images)
    torch.testing.assert_close(representations, expected)
    assert representations.shape == (7, model.features) == (7, 5)
    assert bool((representations < 0).any())
    torch.testing.assert_close(logits, expected @ entries["head.weight"].T + entries["head.bias"])


def test_without_a_projection_head_a_model_has_the_entries_it_always_had() -> None:
    with torch.device("meta"):
        model = Classifier(SmallBackbone((1, 8, 8), (4,), 12, batch_norm=False), 3)
    assert {name.partition(".")[0] for name in model.state_dict()} == {"backbone", "head"}
    assert model.features == 12


@pytest.mark.parametrize("variant", ["paper", "code"])
@pytest.mark.parametrize("size", [32, 64])
def test_mobilenet_halves_small_images_three_times(size: int, variant: str) -> None:
    with torch.device("meta"):
        model = MobileNetV2Backbone((3, size, size), variant)
    sizes: list[tuple[int, ...]] = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda _m, _x, y: sizes.append(tuple(y.shape)))
    assert model(torch.empty(1, 3, size, size, device="meta")).shape == (1, 1280)
    assert sizes[0] == (1, 32, size, size)
    assert sizes[-1] == (1, 1280, size // 8, size // 8)


def test_the_codes_mobilenet_adds_an_expansion_and_four_projections() -> None:
    """To the paper's: 32 to 32 in the first block; 32 to 16, 16 to 24, 64 to 96 and 160 to 320."""

    def parameters(variant: str) -> int:
        with torch.device("meta"):
            model = MobileNetV2Backbone((3, 32, 32), variant)
        return sum(p.numel() for p in model.parameters())

    convolutions = [(32, 32), (32, 16), (16, 24), (64, 96), (160, 320)]
    added = sum(before * after + 2 * after for before, after in convolutions)
    assert parameters("code") - parameters("paper") == added


def test_alexnet_is_fedbns() -> None:
    """61 million parameters, as the original has, but for its layer of 1,000 classes."""
    with torch.device("meta"):
        model = Classifier(AlexNetBackbone((3, 256, 256)), 10)
    weights = [p for n, p in model.named_parameters() if p.dim() > 1]
    assert [tuple(w.shape[:2]) for w in weights[:5]] == [
        (64, 3), (192, 64), (384, 192), (256, 384), (256, 256),
    ]  # fmt: skip
    assert [tuple(w.shape) for w in weights[5:]] == [(4096, 9216), (4096, 4096), (10, 4096)]
    assert model(torch.empty(2, 3, 256, 256, device="meta"))[0].shape == (2, 4096)
    assert len({name.rpartition(".")[0] for name in fresh_normalisations(model)}) == 7


def test_the_shortcut_of_small_resnets_drops_pixels_and_pads_channels() -> None:
    backbone = build(lambda: SmallResNetBackbone((3, 8, 8), 3), Randomness(0).generator("m"))
    block = next(m for m in backbone if getattr(m, "downsample", None) is not None)
    x = torch.rand(2, 16, 8, 8, generator=Randomness(0).generator("x"))
    downsample = block.get_submodule("downsample")
    shortcut = downsample(x)
    assert shortcut.shape == (2, 32, 4, 4)
    assert torch.equal(shortcut[:, 8:24], x[:, :, ::2, ::2])
    assert not shortcut[:, :8].any()
    assert not shortcut[:, 24:].any()


@pytest.mark.parametrize(
    "make",
    [
        lambda: SmallBackbone((1, 8, 8), (4, 4, 4, 4), 8, batch_norm=True),
        lambda: AlexNetBackbone((3, 32, 32)),
    ],
)
def test_images_that_are_too_small_are_refused(make: Callable[[], Backbone]) -> None:
    with pytest.raises(UsageError, match=r"needs images of \d+ pixels a side"):
        make()


def test_fresh_normalisations_are_pytorchs() -> None:
    def make() -> Classifier:
        return Classifier(SmallBackbone((1, 8, 8), (4,), 6, batch_norm=True), 3)

    state = build(make, Randomness(0).generator("model")).state_dict()
    with torch.device("meta"):
        model = make()
    fresh = fresh_normalisations(model)
    assert len(fresh) == 10
    assert all(torch.equal(state[name], entry) for name, entry in fresh.items())
