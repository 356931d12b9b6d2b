import pytest
import torch
from torch import Tensor
from torchvision.transforms import AutoAugment, AutoAugmentPolicy

from ccfcpp.core.randomness import generator_of
from ccfcpp.data.autoaugment import (
    SUB_POLICIES,
    Policies,
    draw_policies,
    render_policies,
)

TABLE = (
    (("Invert", 0.1, None), ("Contrast", 0.2, 6)),
    (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
    (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
    (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.5, None), ("Equalize", 0.9, None)),
    (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
    (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
    (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
    (("Equalize", 0.6, None), ("Equalize", 0.5, None)),
    (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
    (("Color", 0.7, 7), ("TranslateX", 0.5, 8)),
    (("Equalize", 0.3, None), ("AutoContrast", 0.4, None)),
    (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6)),
    (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
    (("Solarize", 0.5, 2), ("Invert", 0.0, None)),
    (("Equalize", 0.2, None), ("AutoContrast", 0.6, None)),
    (("Equalize", 0.2, None), ("Equalize", 0.6, None)),
    (("Color", 0.9, 9), ("Equalize", 0.6, None)),
    (("AutoContrast", 0.8, None), ("Solarize", 0.2, 8)),
    (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
    (("Solarize", 0.4, 5), ("AutoContrast", 0.9, None)),
    (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.9, None), ("Solarize", 0.8, 3)),
    (("Equalize", 0.8, None), ("Invert", 0.1, None)),
    (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, None)),
)


def noise(count: int, height: int, width: int, seed: int = 0) -> Tensor:
    shape = (count, 3, height, width)
    return torch.randint(256, shape, generator=generator_of(seed), dtype=torch.uint8)


def assorted_images(height: int, width: int, seed: int = 0) -> Tensor:
    """Images in which each operation has something to stumble over."""
    batch = noise(9, height, width, seed)
    batch[1] = 0
    batch[2] = 255
    batch[3] = torch.tensor([7, 200, 128], dtype=torch.uint8).view(3, 1, 1)
    batch[4, 1] = 93  # a constant channel
    batch[5] = batch[5] // 64 * 80  # few values
    batch[6] = 100 + batch[6] % 3  # low contrast
    batch[7] = torch.linspace(0, 255, width).to(torch.uint8)
    batch[8] = torch.where(batch[8] < 254, 0, batch[8])  # the brightest values are rare
    return batch


def test_the_policy_is_the_papers_table() -> None:
    assert tuple(AutoAugment(AutoAugmentPolicy.CIFAR10).policies) == TABLE
    assert len(TABLE) == SUB_POLICIES


@pytest.mark.parametrize(("height", "width"), [(32, 32), (20, 33)])
def test_magnitudes_are_the_papers(height: int, width: int) -> None:
    """The first and the last one; of a translation, 150 of 331 pixels; with their signs."""
    found = AutoAugment(AutoAugmentPolicy.CIFAR10)._augmentation_space(10, (height, width))
    ends = {name: (float(m[0]), float(m[-1]), s) for name, (m, s) in found.items() if m.ndim}
    assert ends == {
        "ShearX": (0.0, pytest.approx(0.3), True),
        "ShearY": (0.0, pytest.approx(0.3), True),
        "TranslateX": (0.0, pytest.approx(150 / 331 * width), True),
        "TranslateY": (0.0, pytest.approx(150 / 331 * height), True),
        "Rotate": (0.0, 30.0, True),
        "Brightness": (0.0, pytest.approx(0.9), True),
        "Color": (0.0, pytest.approx(0.9), True),
        "Contrast": (0.0, pytest.approx(0.9), True),
        "Sharpness": (0.0, pytest.approx(0.9), True),
        "Posterize": (8.0, 4.0, False),
        "Solarize": (255.0, 0.0, False),
    }


def every_policy() -> Policies:
    """Each sub-policy with each choice of operations and signs, 400 in all."""
    choice = torch.arange(2)
    drawn = torch.cartesian_prod(torch.arange(25), choice, choice, choice, choice)
    # A chance below 0 is below every probability, and one of 1 is below none.
    return Policies(drawn[:, 0], 1.0 - 2 * drawn[:, 1:3], drawn[:, 3:].bool())


def torchvisions(image: Tensor, policy: Policies, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """What AutoAugment makes of a single image (3, height, width) once it has drawn ``policy``."""
    # torchvision applies an operation where a number is at most its probability, and negates where
    # another is 0.
    numbers = torch.where(policy.chances[0] < 0, -1.0, 2.0)
    drawn = int(policy.sub_policies), numbers, (~policy.negated[0]).long()
    monkeypatch.setattr(AutoAugment, "get_params", staticmethod(lambda count: drawn))
    augmented = AutoAugment(AutoAugmentPolicy.CIFAR10)(image)
    assert isinstance(augmented, Tensor)
    return augmented


@pytest.mark.parametrize("shape", [(32, 32), (24, 32)])
def test_every_policy_is_torchvisions(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly: at the policy's own magnitudes, no pixel lies half-way between two."""
    policies = every_policy()
    batch = assorted_images(*shape).repeat(45, 1, 1, 1)[: len(policies)]
    theirs = [
        torchvisions(image, policies[i : i + 1], monkeypatch) for i, image in enumerate(batch)
    ]
    assert torch.equal(render_policies(batch, policies), torch.stack(theirs))


def test_a_sub_policy_that_is_not_applied_changes_nothing() -> None:
    batch, policies = noise(100, 8, 8), draw_policies(100, generator_of(1))
    unapplied = Policies(policies.sub_policies, policies.chances + 1, policies.negated)
    assert torch.equal(render_policies(batch, unapplied), batch)


@pytest.mark.parametrize(
    "wrong", [noise(2, 8, 8).float(), noise(2, 8, 8)[:, :1], noise(2, 8, 8)[0]]
)
def test_images_of_another_kind_are_refused(wrong: Tensor) -> None:
    with pytest.raises(ValueError, match=r"must be uint8 \(batch, 3, height, width\)"):
        render_policies(wrong, draw_policies(2, generator_of(1)))


def test_draws_have_the_policys_probabilities() -> None:
    drawn = draw_policies(250_000, generator_of(0))
    counts = torch.bincount(drawn.sub_policies)
    assert counts.shape == (25,)
    assert (counts - 10_000).abs().max() < 490  # five standard deviations
    for number, steps in enumerate(TABLE):
        here = drawn[drawn.sub_policies == number]
        expected = torch.tensor([steps[0][1], steps[1][1]])
        tolerance = 5 * (expected * (1 - expected) / len(here)).sqrt()
        applied = (here.chances < expected).float()
        assert ((applied.mean(dim=0) - expected).abs() <= tolerance).all()
        assert ((here.negated.float().mean(dim=0) - 0.5).abs() < 2.5 / len(here) ** 0.5).all()


def test_draws_are_independent_of_each_other() -> None:
    drawn = draw_policies(250_000, generator_of(0))
    probabilities = torch.tensor([[step[1] for step in steps] for steps in TABLE])
    wanted = probabilities[drawn.sub_policies]
    surprises = (drawn.chances < wanted).float() - wanted
    numbers = torch.cat([surprises, drawn.negated.float() - 0.5], dim=1)
    correlations = torch.corrcoef(numbers.T) - torch.eye(4)
    assert correlations.abs().max() < 5 / len(drawn) ** 0.5
