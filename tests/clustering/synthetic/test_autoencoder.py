import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ccfcpp.clustering.synthetic.networks import Autoencoder
from ccfcpp.core.randomness import Randomness
from ccfcpp.models.initialisation import build
from ccfcpp.models.stack.stacked import ModelStack


def published_model() -> Autoencoder:
    return Autoencoder((1, 28, 28), (500, 500, 2000), 10)


def test_the_published_network_layer_by_layer() -> None:
    with torch.device("meta"):
        model = published_model()
    shapes = [(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)]
    there = [(784, 500), (500, 500), (500, 2000), (2000, 10)]
    assert shapes == [*there, *((outputs, inputs) for inputs, outputs in reversed(there))]
    assert sum(isinstance(m, nn.ReLU) for m in model.modules()) == 6


@pytest.mark.parametrize("widths", [(), (5,), (5, 7)])
def test_relu_between_layers_and_linear_outputs(widths: tuple[int, ...]) -> None:
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


def test_a_stack_of_it_computes_the_same() -> None:
    model = build(lambda: Autoencoder((1, 4, 4), (8, 6), 2), Randomness(0).generator("model"))
    stack = ModelStack(lambda: Autoencoder((1, 4, 4), (8, 6), 2), 1, torch.device("cpu"))
    stack.load(0, model.state_dict())
    images = torch.rand(5, 1, 4, 4, generator=Randomness(0).generator("images"))
    for ours, theirs in zip(stack(images), model(images), strict=True):
        torch.testing.assert_close(ours[0, 0], theirs)
