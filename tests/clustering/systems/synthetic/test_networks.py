import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ccfcpp.clustering.systems.synthetic.config import GANConfig
from ccfcpp.clustering.systems.synthetic.networks import Autoencoder, Discriminator, Generator
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.models.state import build


def generator_for(shape: tuple[int, int, int], config: GANConfig) -> Generator:
    return build(lambda: Generator(shape, 10, config), Randomness(0).generator("model"))


def discriminator_for(shape: tuple[int, int, int], config: GANConfig) -> Discriminator:
    return build(lambda: Discriminator(shape, config), Randomness(0).generator("model"))


def weight_shapes(model: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(p.shape) for p in model.parameters() if p.dim() > 1]


def test_the_published_networks_layer_by_layer() -> None:
    config = GANConfig()
    generator = generator_for((1, 28, 28), config)
    assert weight_shapes(generator) == [
        (1024, 72),
        (128 * 7 * 7, 1024),
        (128, 64, 4, 4),
        (64, 1, 4, 4),
    ]
    kinds = [type(layer).__name__ for layer in generator.network]
    assert kinds == [
        *("Linear", "BatchNorm1d", "ReLU") * 2,
        "Unflatten",
        *("ConvTranspose2d", "BatchNorm2d", "ReLU", "ConvTranspose2d", "Sigmoid"),
    ]
    discriminator = discriminator_for((1, 28, 28), config)
    convolutions = [(64, 1, 4, 4), (128, 64, 4, 4), (256, 128, 4, 4)]
    assert weight_shapes(discriminator) == [*convolutions, (1024, 2304), (1, 1024)]
    slopes = {m.negative_slope for m in discriminator.modules() if isinstance(m, nn.LeakyReLU)}
    assert slopes == {0.2}


@pytest.mark.parametrize(
    "shape", [(1, 28, 28), (1, 8, 8), (3, 32, 32), (3, 96, 96), (1, 15, 9), (2, 9, 30)]
)
def test_images_have_the_shape_of_the_clients_images(shape: tuple[int, int, int]) -> None:
    config = GANConfig(generator_width=8, generator_channels=(6, 4), discriminator_channels=(4, 3))
    with torch.no_grad():
        images = generator_for(shape, config)(torch.randn(3, 72))
        logits = discriminator_for(shape, config)(images)
    assert images.shape == (3, *shape)
    assert images.min() >= 0
    assert images.max() <= 1
    assert logits.shape == (3, 1)


def test_images_are_cut_from_the_middle_of_larger_ones() -> None:
    generator = generator_for((1, 15, 9), GANConfig(generator_width=8, generator_channels=(6, 4)))
    inputs = torch.randn(3, 72)
    with torch.no_grad():
        whole, images = generator.network(inputs), generator(inputs)
    assert whole.shape == (3, 1, 16, 12)
    torch.testing.assert_close(images, whole[:, :, :15, 1:10], atol=1e-6, rtol=0)


def test_images_depend_on_noise_and_code() -> None:
    generator = generator_for((1, 8, 8), GANConfig(generator_width=8)).eval()
    inputs = torch.zeros(3, 72)
    inputs[1, 0] = inputs[2, 71] = 1
    with torch.no_grad():
        plain, noised, coded = generator(inputs)
    assert not torch.equal(plain, noised)
    assert not torch.equal(plain, coded)


def test_networks_that_do_not_fit_name_their_setting() -> None:
    with pytest.raises(UsageError, match=r"gan\.discriminator_channels = \[64, 128, 256\]"):
        Discriminator((1, 4, 4), GANConfig())
    with pytest.raises(UsageError, match=r"gan\.generator_channels"):
        Generator((1, 8, 8), 10, GANConfig(generator_channels=()))


def test_transposed_convolutions_start_as_pytorchs() -> None:
    """Uniform on ±1/√(outputs · kernel): compare the spread with a fresh layer's."""
    ours = build(lambda: nn.ConvTranspose2d(40, 50, 2), Randomness(0).generator("model"))
    theirs = nn.ConvTranspose2d(40, 50, 2)
    for mine, default in zip(ours.parameters(), theirs.parameters(), strict=True):
        bound = 1 / (50 * 4) ** 0.5
        assert 0.9 * bound < mine.abs().max() <= bound
        assert mine.std().item() == pytest.approx(default.std().item(), rel=0.25)


def published_autoencoder() -> Autoencoder:
    return Autoencoder((1, 28, 28), (500, 500, 2000), 10)


def test_the_published_autoencoder_layer_by_layer() -> None:
    with torch.device("meta"):
        model = published_autoencoder()
    shapes = [(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)]
    there = [(784, 500), (500, 500), (500, 2000), (2000, 10)]
    assert shapes == [*there, *((outputs, inputs) for inputs, outputs in reversed(there))]
    assert sum(isinstance(m, nn.ReLU) for m in model.modules()) == 6


@pytest.mark.parametrize("widths", [(), (5,), (5, 7)])
def test_the_autoencoder_has_relu_between_layers_and_linear_outputs(
    widths: tuple[int, ...],
) -> None:
    model = build(lambda: Autoencoder((2, 3, 4), widths, 3), Randomness(0).generator("model"))
    images = torch.rand(6, 2, 3, 4, generator=Randomness(0).generator("images"))
    entries = list(model.parameters())
    layers = list(zip(entries[::2], entries[1::2], strict=True))
    x, half = images.reshape(6, -1), len(widths) + 1
    activations = []
    for number, (weight, bias) in enumerate(layers, 1):
        x = F.linear(x, weight, bias)
        activations.append(x)
        x = x if number in (half, 2 * half) else x.relu()
    latents, reconstructions = model(images)
    torch.testing.assert_close(latents, activations[half - 1])
    torch.testing.assert_close(reconstructions, x)
    torch.testing.assert_close(model.encode(images), latents)
    assert latents.shape == (6, 3)
    assert reconstructions.shape == (6, 24)
    assert (latents < 0).any()
    assert (reconstructions < 0).any()
