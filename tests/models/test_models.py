from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ccfcpp.clustering.systems.ccfc.network import ContrastiveModel, NeighbourModel
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.models.encoders import ConvBackbone, ResNet18Backbone
from ccfcpp.models.state import build


def published_model() -> ContrastiveModel:
    return ContrastiveModel(ConvBackbone((1, 28, 28), (64, 128, 256)), 256, 256, 16)


def test_the_published_encoder_layer_by_layer() -> None:
    model = build(published_model, Randomness(0).generator("model"))
    assert model.backbone.features == 2304
    shapes = [tuple(p.shape) for n, p in model.named_parameters() if n.endswith("weight")]
    convolutions = [(64, 1, 4, 4), (128, 64, 4, 4), (256, 128, 4, 4)]
    assert [s for s in shapes if len(s) == 4] == convolutions
    assert [s for s in shapes if len(s) == 2] == [(256, 2304), (256, 256), (16, 256), (256, 16)]
    last = model.projector[-1]
    assert isinstance(last, nn.BatchNorm1d)
    assert not last.affine
    slopes = {m.negative_slope for m in model.modules() if isinstance(m, nn.LeakyReLU)}
    assert slopes == {0.2}


def test_latents_of_rounded_products_around_batch_normalisation_are_near() -> None:
    torch.manual_seed(0)
    model = ContrastiveModel(ConvBackbone((1, 8, 8), (8, 16)), 32, 16, 8)
    images = torch.rand(20, 1, 8, 8)
    exact = NeighbourModel(model, 3).eval()(images)
    rounded = NeighbourModel(model, 3, torch.bfloat16).eval()(images)
    assert rounded.dtype == torch.float32
    assert not torch.equal(exact, rounded)
    assert float(F.cosine_similarity(exact, rounded).min()) > 0.99


def test_latents_are_standardised_over_a_training_batch() -> None:
    model = build(published_model, Randomness(0).generator("model"))
    images = torch.rand(32, 1, 28, 28, generator=Randomness(0).generator("images"))
    latents, predictions = model(images)
    assert latents.shape == predictions.shape == (32, 256)
    torch.testing.assert_close(latents.mean(dim=0), torch.zeros(256), atol=1e-5, rtol=0)
    variance = latents.var(dim=0, unbiased=False)
    torch.testing.assert_close(variance, torch.ones(256), atol=0.05, rtol=0)
    torch.testing.assert_close(model.encode(images), latents)


@pytest.mark.parametrize(
    ("shape", "widths", "features"),
    [
        ((1, 28, 28), (64, 128, 256), 2304),
        ((1, 8, 8), (32, 64), 256),
        ((3, 9, 13), (4,), 4 * 4 * 6),
    ],
)
def test_conv_backbone_features(
    shape: tuple[int, int, int], widths: tuple[int, ...], features: int
) -> None:
    backbone = ConvBackbone(shape, widths)
    assert backbone.features == features
    assert backbone(torch.rand(2, *shape)).shape == (2, features)


@pytest.mark.parametrize("size", [32, 96])
def test_resnet_keeps_the_resolution_of_small_images(size: int) -> None:
    backbone = ResNet18Backbone((3, size, size)).eval()
    assert backbone(torch.rand(1, 3, size, size)).shape == (1, 512)
    stem = backbone.network.conv1(torch.rand(1, 3, size, size))
    assert stem.shape == (1, 64, size, size)


def test_too_many_convolutions_for_the_images_are_refused() -> None:
    with pytest.raises(UsageError, match="fewer widths"):
        ConvBackbone((1, 8, 8), (4, 4, 4, 4))


@pytest.mark.parametrize(
    "make",
    [published_model, lambda: ContrastiveModel(ResNet18Backbone((3, 32, 32)), 64, 32, 8)],
)
def test_weights_depend_on_the_generator_alone(make: Callable[[], ContrastiveModel]) -> None:
    before = torch.random.get_rng_state()
    first, again, other = (build(make, Randomness(s).generator("model")) for s in (0, 0, 1))
    assert torch.equal(before, torch.random.get_rng_state())
    for name, tensor in first.state_dict().items():
        assert torch.isfinite(tensor).all(), name
        assert torch.equal(tensor, again.state_dict()[name]), name
    weights = [n for n, p in first.named_parameters() if p.dim() > 1]
    assert all(not torch.equal(first.state_dict()[n], other.state_dict()[n]) for n in weights)


def test_the_initialisation_is_pytorchs_default() -> None:
    """Uniform on ±1/√fan-in for weights and biases: compare the spread with a fresh layer's."""
    ours = build(lambda: nn.Linear(100, 400), Randomness(0).generator("model"))
    theirs = nn.Linear(100, 400)
    for mine, default in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.abs().max() <= 0.1
        assert mine.std().item() == pytest.approx(default.std().item(), rel=0.15)
    norm = build(lambda: nn.BatchNorm2d(3), Randomness(0).generator("model"))
    torch.testing.assert_close(norm.state_dict(), nn.BatchNorm2d(3).state_dict())


def test_a_layer_without_known_initialisation_is_an_error() -> None:
    with pytest.raises(TypeError, match="Embedding"):
        build(lambda: nn.Embedding(3, 4), Randomness(0).generator("model"))
