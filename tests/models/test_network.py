"""A flat network against the module itself."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ccfcpp.clustering.systems.ccfc.network import ContrastiveModel
from ccfcpp.clustering.systems.fed_scan.config import ScanConfig
from ccfcpp.clustering.systems.fed_scan.network import ScanBackbone
from ccfcpp.clustering.systems.synthetic.config import GANConfig
from ccfcpp.clustering.systems.synthetic.networks import Discriminator, Generator
from ccfcpp.core.randomness import Randomness
from ccfcpp.models.encoders import ConvBackbone, ResNet18Backbone
from ccfcpp.models.network import FlatNetwork, training_bytes
from ccfcpp.models.optimizers import FlatAdam, FlatSGD
from ccfcpp.models.state import build
from supervised.networks import (
    AlexNetBackbone,
    Classifier,
    MobileNetV2Backbone,
    SmallBackbone,
    SmallResNetBackbone,
)

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("double_precision")


def convolutional() -> ContrastiveModel:
    return ContrastiveModel(ConvBackbone((1, 9, 8), (4, 6)), 12, 10, 3)


def one_by_one() -> ContrastiveModel:
    """Normalisations that see one image at a time, and a linear projector."""
    config = ScanConfig(stem=8, widths=(8, 16), hidden=6)
    return ContrastiveModel(ScanBackbone(config, (1, 8, 8)), None, 10, 3)


def residual() -> ContrastiveModel:
    return ContrastiveModel(ResNet18Backbone((3, 8, 8)), 6, 5, 3)


def unusual() -> nn.Sequential:
    """Biases that nothing takes away, and normalisations without what usually surrounds them."""
    return nn.Sequential(
        nn.BatchNorm2d(2),
        nn.Conv2d(2, 3, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 3, (1, 2), stride=2),
        nn.Flatten(),
        nn.Linear(48, 7),
        nn.BatchNorm1d(7, momentum=0.3),
        nn.Linear(7, 2),
    )


def small() -> Classifier:
    return Classifier(SmallBackbone((1, 9, 8), (4, 6), features=5, batch_norm=True), classes=3)


def without_normalisation() -> Classifier:
    return Classifier(SmallBackbone((1, 8, 8), (4,), features=5, batch_norm=False), classes=3)


def mobile() -> Classifier:
    return Classifier(MobileNetV2Backbone((3, 8, 8), "paper"), classes=2)


def mobile_of_the_code() -> Classifier:
    return Classifier(MobileNetV2Backbone((3, 8, 8), "code"), classes=2)


def resnet20() -> Classifier:
    return Classifier(SmallResNetBackbone((3, 8, 8), blocks=3), classes=2)


GAN = GANConfig(
    noise=3,
    generator_width=9,
    generator_channels=(4, 3),
    discriminator_channels=(4, 6),
    discriminator_width=5,
)


def generator() -> Generator:
    return Generator((2, 9, 7), codes=2, config=GAN)


def discriminator() -> Discriminator:
    return Discriminator((2, 9, 7), GAN)


def unusual_doublings() -> nn.Sequential:
    """Biases that nothing takes away, and kernels that leave gaps or differ in height and width."""
    return nn.Sequential(
        nn.ConvTranspose2d(2, 3, (2, 4), stride=3),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(3, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.Sigmoid(),
    )


def unusual_geometry() -> nn.Sequential:
    """Steps, borders and kernels that differ in height and width, dilation, and groups."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding="same", dilation=2),
        nn.Conv2d(4, 6, (2, 3), stride=(1, 2), padding=(0, 1), groups=2),
        nn.BatchNorm2d(6),
        nn.ReLU6(),
        nn.Conv2d(6, 6, 3, padding=1, padding_mode="reflect"),
        nn.ConvTranspose2d(6, 4, 3, stride=(1, 2), output_padding=(0, 1), groups=2, bias=False),
        nn.BatchNorm2d(4, affine=False),
    )


MODELS = [
    pytest.param(convolutional, (1, 9, 8), id="convolutional"),
    pytest.param(one_by_one, (1, 8, 8), id="one by one"),
    pytest.param(residual, (3, 8, 8), id="residual"),
    pytest.param(unusual, (2, 8, 8), id="unusual"),
    pytest.param(small, (1, 9, 8), id="small"),
    pytest.param(without_normalisation, (1, 8, 8), id="without normalisation"),
    pytest.param(mobile, (3, 8, 8), id="mobile"),
    pytest.param(mobile_of_the_code, (3, 8, 8), id="mobile of the code"),
    pytest.param(resnet20, (3, 8, 8), id="resnet20"),
    pytest.param(generator, (5,), id="generator"),
    pytest.param(discriminator, (2, 9, 7), id="discriminator"),
    pytest.param(unusual_doublings, (2, 3, 4), id="unusual doublings"),
    pytest.param(unusual_geometry, (2, 6, 7), id="unusual geometry"),
]


def images(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=Randomness(0).generator("images"))


def loaded(make: Callable[[], nn.Module]) -> tuple[FlatNetwork, nn.Module]:
    """A network with the weights of a module, and the module."""
    module = build(make, Randomness(0).generator("model"))
    network = FlatNetwork(make, CPU)
    network.load(module.state_dict())
    return network, module


def outputs(model: nn.Module, batch: Tensor) -> tuple[Tensor, ...]:
    result = model(batch)
    return result if isinstance(result, tuple) else (result,)


def assert_same_state(network: FlatNetwork, model: nn.Module, atol: float) -> None:
    expected, found = model.state_dict(), network.state()
    assert found.keys() == expected.keys()
    for name, entry in expected.items():
        assert found[name].dtype == entry.dtype
        torch.testing.assert_close(found[name], entry, atol=atol, rtol=0, msg=name)


@pytest.mark.parametrize(("make", "shape"), MODELS)
def test_what_is_loaded_comes_back(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    assert_same_state(*loaded(make), atol=0)


@pytest.mark.parametrize(("make", "shape"), MODELS)
def test_training_steps_are_the_modules_own(
    make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    """Three steps of Adam on two views, each of which moves the running statistics."""
    network, model = loaded(make)
    ours, own = FlatAdam(network), torch.optim.Adam(model.parameters(), lr=1e-3)
    ours.begin(1e-3)
    for step, length in enumerate((8, 5, 8)):
        losses = []
        views = images(2, length, *shape) + step
        for results in ([network(view) for view in views], [outputs(model, v) for v in views]):
            generator = Randomness(step).generator("weights")
            parts = [part for result in results for part in result]
            terms = [(p.sin() * torch.rand(p.shape, generator=generator)).sum() for p in parts]
            losses.append(torch.stack(terms).sum())
        torch.testing.assert_close(*losses, atol=1e-7, rtol=0)
        network.backward(losses[0])
        ours.step()
        own.zero_grad()
        torch.autograd.backward(losses[1])
        own.step()
    assert_same_state(network, model, atol=1e-6)


@pytest.mark.parametrize(("make", "shape"), MODELS)
def test_evaluation_uses_the_running_statistics(
    make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    network, model = loaded(make)
    for step in range(2):
        network(images(3, *shape) + step)
        model(images(3, *shape) + step)
    network.train(False)
    before = network.state()
    with torch.no_grad():
        found, expected = network(images(5, *shape)), outputs(model.eval(), images(5, *shape))
        for part, other in zip(found, expected, strict=True):
            torch.testing.assert_close(part, other, atol=1e-9, rtol=0)
    assert all(torch.equal(entry, before[name]) for name, entry in network.state().items())


Ours = Callable[[FlatNetwork], FlatAdam | FlatSGD]
Theirs = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
ADAMS: list[tuple[Any, ...]] = [
    (
        partial(FlatAdam, betas=betas),
        partial(torch.optim.Adam, lr=0.01, betas=betas),
        (0.01,),
        without_normalisation,
        (4, 1, 8, 8),
    )
    for betas in ((0.9, 0.999), (0.5, 0.9))
]
SGDS: list[tuple[Any, ...]] = [
    (
        partial(FlatSGD, learning_rate=0.1, momentum=momentum, weight_decay=0.01),
        partial(torch.optim.SGD, lr=0.1, momentum=momentum, weight_decay=0.01),
        (),
        small,
        (4, 1, 9, 8),
    )
    for momentum in (0.0, 0.9)
]


@pytest.mark.parametrize(("ours", "theirs", "rate", "make", "shape"), [*ADAMS, *SGDS])
def test_optimizers_are_pytorchs(
    ours: Ours, theirs: Theirs, rate: tuple[Any, ...], make: Callable[[], nn.Module], shape: Any
) -> None:
    """And begin anew when they are told to."""
    network, model = loaded(make)
    optimizer = ours(network)
    for _ in range(2):
        network.load(model.state_dict())
        optimizer.begin(*rate)
        own = theirs(model.parameters())
        for step in range(4):
            batch = images(*shape) + step
            network.backward(network(batch)[1].square().sum())
            optimizer.step()
            own.zero_grad()
            torch.autograd.backward(outputs(model, batch)[1].square().sum())
            own.step()
        assert_same_state(network, model, atol=1e-9)


def test_a_loss_sets_gradients_of_its_own_network_alone() -> None:
    """As the generator's loss does, which goes through the discriminator."""
    first, _ = loaded(generator)
    second, _ = loaded(discriminator)
    (made,) = first(images(4, 5))
    first.backward(second(made)[0].square().sum())
    assert first.gradients.abs().sum() > 0
    assert not second.gradients.any()


def test_alexnet_runs() -> None:
    def alexnet() -> Classifier:
        return Classifier(AlexNetBackbone((1, 63, 63)), classes=2)

    network, model = loaded(alexnet)
    batch = images(2, 1, 63, 63)
    for found, expected in zip(network(batch), outputs(model, batch), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-7, rtol=0)


def test_a_state_that_was_taken_does_not_move_any_more() -> None:
    network, _ = loaded(convolutional)
    taken = network.state()
    kept = {name: entry.clone() for name, entry in taken.items()}
    network.backward(network(images(4, 1, 9, 8))[1].sum())
    adam = FlatAdam(network)
    adam.begin(0.1)
    adam.step()
    assert all(torch.equal(taken[name], kept[name]) for name in kept)


def test_moments_go_on_where_they_were() -> None:
    def steps(network: FlatNetwork, optimizer: FlatAdam, count: int) -> None:
        for _ in range(count):
            network.backward(network(images(4, 1, 9, 8))[1].square().sum())
            optimizer.step()

    whole, _ = loaded(convolutional)
    first = FlatAdam(whole)
    first.begin(0.01)
    steps(whole, first, 4)
    network, _ = loaded(convolutional)
    first = FlatAdam(network)
    first.begin(0.01)
    steps(network, first, 2)
    second = FlatAdam(network)
    second.begin(0.01, first.moments())
    steps(network, second, 2)
    assert first.moments()["step"] == 2
    assert all(torch.equal(whole.state()[n], entry) for n, entry in network.state().items())


@pytest.mark.parametrize("settings", [{"momentum": None}, {"track_running_stats": False}])
def test_other_running_statistics_are_refused(settings: dict[str, bool | None]) -> None:
    with pytest.raises(TypeError, match="exponential running statistics"):
        FlatNetwork(lambda: nn.Sequential(nn.BatchNorm1d(2, **settings)), CPU)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (convolutional, (1, 9, 8)),
        (one_by_one, (1, 8, 8)),
        (small, (1, 9, 8)),
        (generator, (5,)),
        (unusual, (2, 8, 8)),
    ],
)
def test_rounded_products_change_results_by_their_rounding(
    make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    """bfloat16 has eight significant bits; results and gradients keep their own type."""
    torch.set_default_dtype(torch.float32)  # that of every run; the library mixes no other

    def run(precision: str) -> list[Tensor]:
        network = FlatNetwork(make, CPU, precision=precision)
        network.load(build(make, Randomness(0).generator("model")).state_dict())
        network.train(False)  # a normalisation over a few rounded samples may turn their order
        parts = network(images(8, *shape))
        network.backward(torch.stack([part.square().sum() for part in parts]).sum())
        return [*parts, network.gradients]

    for rounded, exact in zip(run("bfloat16"), run("float32"), strict=True):
        assert rounded.dtype == torch.float32
        assert 1e-4 < (rounded - exact).norm() / exact.norm() < 5e-2


def test_biases_that_a_normalisation_takes_away_stay_where_they_are() -> None:
    """An optimizer would make steps of the rounding errors that are their gradients."""
    network, model = loaded(convolutional)
    network.backward(network(images(8, 1, 9, 8))[1].square().sum())
    adam = FlatAdam(network)
    adam.begin(0.1)
    adam.step()
    moved = {n for n, e in network.state().items() if not torch.equal(e, model.state_dict()[n])}
    assert {name for name, _ in model.named_parameters()} - moved == {
        f"{layer}.bias"
        for layer in ("backbone.0", "backbone.3", "projector.0", "projector.3", "predictor.0")
    }


def test_training_bytes_grow_with_batch_and_views() -> None:
    def needed(batch: int, views: int) -> int:
        return training_bytes(convolutional, (1, 9, 8), batch, views)

    model = 8 * 8 * sum(p.numel() for p in convolutional().parameters())
    assert needed(2, 1) > model
    step = needed(4, 1) - needed(2, 1)
    assert needed(8, 1) - needed(4, 1) == 2 * step
    assert needed(4, 2) == needed(8, 1)


def test_kernels_lie_channels_last_and_read_back_in_their_own_order() -> None:
    network, model = loaded(convolutional)
    kernel = model.state_dict()["backbone.3.weight"]
    found = network.state()["backbone.3.weight"]
    assert found.shape == kernel.shape
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, kernel)
