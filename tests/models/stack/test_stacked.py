"""A stack of models against the models themselves."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ccfcpp.clustering.ccfc.network import ContrastiveModel
from ccfcpp.clustering.scan.config import ScanConfig
from ccfcpp.clustering.scan.network import ScanBackbone
from ccfcpp.clustering.synthetic.config import GANConfig
from ccfcpp.clustering.synthetic.networks import Discriminator, Generator
from ccfcpp.core.randomness import Randomness
from ccfcpp.models.encoders import ConvBackbone, ResNet18Backbone
from ccfcpp.models.stack.optimizers import StackedAdam, StackedSGD
from ccfcpp.models.stack.stacked import ModelStack, training_bytes
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


def stack_of(make: Callable[[], nn.Module], count: int) -> tuple[ModelStack, list[nn.Module]]:
    models = [build(make, Randomness(0, 0, k).generator("model")) for k in range(count)]
    stack = ModelStack(make, count, CPU)
    for index, model in enumerate(models):
        stack.load(index, model.state_dict())
    return stack, models


def outputs(model: nn.Module, batch: Tensor) -> tuple[Tensor, ...]:
    result = model(batch)
    return result if isinstance(result, tuple) else (result,)


def assert_same_state(stack: ModelStack, index: int, model: nn.Module, atol: float) -> None:
    expected, found = model.state_dict(), stack.state(index)
    assert found.keys() == expected.keys()
    for name, entry in expected.items():
        assert found[name].dtype == entry.dtype
        torch.testing.assert_close(found[name], entry, atol=atol, rtol=0, msg=name)


@pytest.mark.parametrize(("make", "shape"), MODELS)
def test_what_is_loaded_comes_back(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    stack, models = stack_of(make, 3)
    for index, model in enumerate(models):
        assert_same_state(stack, index, model, atol=0)


@pytest.mark.parametrize(("make", "shape"), MODELS)
def test_training_steps_are_the_models_own(
    make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    """Three steps of Adam on two views; the second has short batches, the third fewer models."""
    stack, models = stack_of(make, 3)
    optimizer = StackedAdam(stack.parameters, stack.gradients, 1e-3)
    own = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in models]
    for step, lengths in enumerate([(8, 8, 8), (8, 5, 6), (6, 5)]):
        longest = max(lengths)
        batch = images(len(lengths), 2, longest, *shape) + step
        mask = (torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)).double()
        stack.activate(len(lengths))
        found = stack(batch.flatten(0, 2), views=2, mask=None if mask.all() else mask)
        generator = Randomness(step).generator("weights")
        weights = [torch.rand(part.shape, generator=generator) for part in found]
        valid = [mask.view(len(lengths), 1, longest, *[1] * (p.dim() - 3)) for p in found]
        loss = sum((p.sin() * w * v).sum() for p, w, v in zip(found, weights, valid, strict=True))
        assert isinstance(loss, Tensor)
        stack.backward(loss)
        optimizer.step(len(lengths))
        for k, length in enumerate(lengths):
            own[k].zero_grad()
            terms = []
            for view in range(2):
                parts = outputs(models[k], batch[k, view, :length])
                for part, whole, w in zip(parts, found, weights, strict=True):
                    torch.testing.assert_close(part, whole[k, view, :length], atol=1e-7, rtol=0)
                    terms.append((part.sin() * w[k, view, :length]).sum())
            torch.autograd.backward(torch.stack(terms).sum())
            own[k].step()
    for index, model in enumerate(models):
        assert_same_state(stack, index, model, atol=1e-6)


@pytest.mark.parametrize(("make", "shape"), MODELS)
def test_evaluation_uses_the_running_statistics(
    make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    stack, models = stack_of(make, 2)
    for step in range(2):
        stack(images(2 * 3, *shape) + step)
        for k, model in enumerate(models):
            model((images(2 * 3, *shape) + step)[3 * k : 3 * k + 3])
    stack.train(False)
    before = stack.state(0)
    with torch.no_grad():
        found = stack(images(2 * 5, *shape))
        for k, model in enumerate(models):
            expected = outputs(model.eval(), images(2 * 5, *shape)[5 * k : 5 * k + 5])
            for part, other in zip(found, expected, strict=True):
                torch.testing.assert_close(part[k, 0], other, atol=1e-9, rtol=0)
    assert all(torch.equal(entry, before[name]) for name, entry in stack.state(0).items())


def test_one_model_of_a_stack_can_run_alone() -> None:
    stack, models = stack_of(convolutional, 3)
    stack.train(False)
    stack.activate(1, first=1)
    (latents, _), (expected, _) = stack(images(4, 1, 9, 8)), models[1].eval()(images(4, 1, 9, 8))
    torch.testing.assert_close(latents[0, 0], expected)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9)])
def test_adam_is_pytorchs(betas: tuple[float, float]) -> None:
    stack, (model,) = stack_of(without_normalisation, 1)
    optimizer = StackedAdam(stack.parameters, stack.gradients, 0.01, betas)
    own = torch.optim.Adam(model.parameters(), 0.01, betas=betas)
    for step in range(4):
        stack.backward(stack(images(4, 1, 8, 8) + step)[1].square().sum())
        optimizer.step(1)
        own.zero_grad()
        torch.autograd.backward(outputs(model, images(4, 1, 8, 8) + step)[1].square().sum())
        own.step()
    assert_same_state(stack, 0, model, atol=1e-9)


@pytest.mark.parametrize("make", [discriminator, unusual_doublings])
def test_frozen_models_give_their_inputs_gradients_and_their_weights_none(
    make: Callable[[], nn.Module],
) -> None:
    shape = (2, 9, 7)
    stack, models = stack_of(make, 2)
    batch = images(2 * 4, *shape).requires_grad_()
    with stack.frozen():
        (found,) = stack(batch)
    leaves = [leaf for leaf, _ in stack._leaves]
    inputs, *weights = torch.autograd.grad(
        found.sin().sum(), [batch, *leaves], allow_unused=True, retain_graph=True
    )
    assert all(weight is None for weight in weights)
    halves = torch.split(batch, 4)
    parts = [model(half) for model, half in zip(models, halves, strict=True)]
    (expected,) = torch.autograd.grad(torch.cat(parts).sin().sum(), batch)
    torch.testing.assert_close(inputs, expected, atol=1e-9, rtol=0)
    for index, model in enumerate(models):  # the running statistics have moved
        assert_same_state(stack, index, model, atol=1e-9)
    stack.backward(stack(batch)[0].sin().sum())
    assert stack.weight_gradients.abs().sum() > 0


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_pytorchs(momentum: float) -> None:
    """Four steps with weight decay, two of them by the first model alone."""
    stack, models = stack_of(small, 2)
    optimizer = StackedSGD(stack.parameters, stack.gradients, 0.1, momentum, weight_decay=0.01)
    own = [
        torch.optim.SGD(model.parameters(), 0.1, momentum=momentum, weight_decay=0.01)
        for model in models
    ]
    for count in (2, 2, 1, 1):
        stack.activate(count)
        stack.backward(stack(images(count * 4, 1, 9, 8))[1].square().sum())
        optimizer.step(count)
        for k in range(count):
            own[k].zero_grad()
            part = images(count * 4, 1, 9, 8)[4 * k : 4 * k + 4]
            torch.autograd.backward(outputs(models[k], part)[1].square().sum())
            own[k].step()
    for index, model in enumerate(models):
        assert_same_state(stack, index, model, atol=1e-9)


def test_alexnet_can_be_stacked() -> None:
    def alexnet() -> Classifier:
        return Classifier(AlexNetBackbone((1, 63, 63)), classes=2)

    stack, (model,) = stack_of(alexnet, 1)
    batch = images(2, 1, 63, 63)
    for found, expected in zip(stack(batch), outputs(model, batch), strict=True):
        torch.testing.assert_close(found[0, 0], expected, atol=1e-7, rtol=0)


def test_a_state_that_was_taken_does_not_move_any_more() -> None:
    stack, _ = stack_of(convolutional, 1)
    taken = stack.state(0)
    kept = {name: entry.clone() for name, entry in taken.items()}
    stack.backward(stack(images(4, 1, 9, 8))[1].sum())
    StackedAdam(stack.parameters, stack.gradients, 0.1).step(1)
    assert all(torch.equal(taken[name], kept[name]) for name in kept)


def test_moments_go_on_where_they_were() -> None:
    def steps(stack: ModelStack, optimizer: StackedAdam, count: int) -> None:
        for _ in range(count):
            stack.backward(stack(images(4, 1, 9, 8))[1].square().sum())
            optimizer.step(1)

    whole, _ = stack_of(convolutional, 1)
    steps(whole, StackedAdam(whole.parameters, whole.gradients, 0.01), 4)
    stack, _ = stack_of(convolutional, 1)
    first = StackedAdam(stack.parameters, stack.gradients, 0.01)
    steps(stack, first, 2)
    second = StackedAdam(stack.parameters, stack.gradients, 0.01)
    second.restore(0, first.state(0))
    steps(stack, second, 2)
    assert first.state(0)["step"] == 2
    assert all(torch.equal(whole.state(0)[n], entry) for n, entry in stack.state(0).items())


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(2, 2, 3),
        nn.BatchNorm1d(2, momentum=None),
        nn.BatchNorm1d(2, track_running_stats=False),
        nn.PReLU(),
    ],
)
def test_layers_that_cannot_be_stacked_are_refused(layer: nn.Module) -> None:
    with pytest.raises(TypeError, match=r"can(not)? be stacked"):
        ModelStack(lambda: nn.Sequential(layer), 1, CPU)


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
        stack = ModelStack(make, 2, CPU, precision=precision)
        for index in range(2):
            stack.load(index, build(make, Randomness(0, 0, index).generator("model")).state_dict())
        stack.train(False)  # a normalisation over a few rounded samples may turn their order
        parts = stack(images(2 * 4, *shape))
        stack.backward(torch.stack([part.square().sum() for part in parts]).sum())
        return [*parts, stack.weight_gradients]

    for rounded, exact in zip(run("bfloat16"), run("float32"), strict=True):
        assert rounded.dtype == torch.float32
        assert 1e-4 < (rounded - exact).norm() / exact.norm() < 5e-2


def test_samples_that_do_not_count_change_nothing_and_get_no_gradient() -> None:
    """Whatever the padding holds."""
    lengths = torch.tensor([4, 2])
    mask = (torch.arange(4) < lengths.unsqueeze(1)).double()
    counted = mask.bool()[:, None, :, None, None, None].expand(2, 2, 4, 2, 6, 7)

    def run(padding: float) -> tuple[Tensor, ...]:
        stack, _ = stack_of(unusual_geometry, 2)
        batch = images(2, 2, 4, 2, 6, 7).where(counted, padding).requires_grad_()
        (found,) = stack(batch.flatten(0, 2), views=2, mask=mask)
        loss = found.sin().sum()
        (to_batch,) = torch.autograd.grad(loss, batch, retain_graph=True)
        stack.backward(loss)
        return to_batch, stack.weight_gradients, *stack.state(1).values()

    for first, second in zip(run(0.0), run(1e3), strict=True):
        assert torch.equal(first, second)
    assert run(1e3)[0][~counted].eq(0).all()


def test_biases_that_a_normalisation_takes_away_stay_where_they_are() -> None:
    """An optimizer would make steps of the rounding errors that are their gradients."""
    stack, (model,) = stack_of(convolutional, 1)
    stack.backward(stack(images(8, 1, 9, 8))[1].square().sum())
    StackedAdam(stack.parameters, stack.gradients, 0.1).step(1)
    moved = {n for n, e in stack.state(0).items() if not torch.equal(e, model.state_dict()[n])}
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
    stack, models = stack_of(convolutional, 2)
    kernel = models[1].state_dict()["backbone.3.weight"]
    found = stack.state(1)["backbone.3.weight"]
    assert found.shape == kernel.shape
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, kernel)
