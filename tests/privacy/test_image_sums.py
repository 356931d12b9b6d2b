"""Per-image parts of a synchronised step, beside a tape for each image by itself."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from ccfcpp.clustering.systems.ccfc.config import LossConfig
from ccfcpp.clustering.systems.ccfc.network import ContrastiveModel
from ccfcpp.clustering.systems.ccfc.pooled_losses import (
    LARGEST_OF_CONTRAST,
    LARGEST_OF_SIAMESE,
    contrast_program,
    siamese_program,
)
from ccfcpp.clustering.systems.fed_scan.config import ScanConfig
from ccfcpp.clustering.systems.fed_scan.network import ScanNetwork
from ccfcpp.clustering.systems.fed_scan.objective import PREDICTIONS, scan_program
from ccfcpp.engine.exchange import Exchange
from ccfcpp.engine.payload import sum_updates
from ccfcpp.engine.synchronised.contract import PARTS, Batch, Contribution, StepMessage
from ccfcpp.engine.synchronised.tape import Lags, Tape, rehearse_plans
from ccfcpp.engine.update_format import group_names
from ccfcpp.models.encoders import ConvBackbone
from ccfcpp.models.pooled import Objective, Pool, Program, apply_pooled, updated_parameters
from ccfcpp.privacy.noise.mechanism import Bounds
from ccfcpp.privacy.noise.per_image_clipping import ImageSums, ShownImages

STEP = Exchange("step", StepMessage, Contribution, PARTS)
Make = Callable[..., Program]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
        nn.Linear(4 * 36, 5), nn.BatchNorm1d(5), nn.Tanh(),
    ).double()  # fmt: skip


def program(module: nn.Module, pairs: Tensor) -> Program:
    """Two batch normalisations, a pool that only a common part depends on, and a local part."""
    z = yield from apply_pooled(module, pairs.flatten(0, 1))
    z, total = yield Pool("mean", z, lambda x: x.sum(dim=0).double(), common=True)
    local = (z**3).sum() / total.square().sum().detach() + (z[0] * z[1]).sum()
    figures = {"cubes": (z**3).sum()}
    return Objective(local, total.square().sum() / 10, figures)


def each_by_itself(module: nn.Module, images: Tensor, bounds: Bounds) -> list[Contribution]:
    """All trips of a step: a tape for each image, and its parts clipped one by one."""
    parameters = updated_parameters(module)
    tapes = [Tape(program(module, pair), parameters) for pair in torch.split(images, 1)]
    known, found = Contribution(), []
    while not known.gradient:
        each = [tape.advance(known.sums, known.slopes) for tape in tapes]
        known = sum_updates([clipped(one, bounds) for one in each])
        found.append(known)
    return found


def clipped(one: Contribution, bounds: Bounds) -> Contribution:
    """Scaled down group by group, by the obvious loop."""
    parts = {
        kind: {name: part.clone() for name, part in vars(one)[kind].items()} for kind in vars(one)
    }
    together = [[("sums", n)] for n in one.sums] + [[("slopes", n)] for n in one.slopes]
    together += [[("gradient", n) for n in one.gradient], [("figures", n) for n in one.figures]]
    for group in together:
        norm = sum(float(parts[kind][name].square().sum()) for kind, name in group) ** 0.5
        for kind, name in group:
            bound = bounds.of(f"{kind}/{name}" if kind in ("sums", "slopes") else kind)
            parts[kind][name] *= min(1.0, bound / norm)
    return Contribution(**parts)


@pytest.mark.parametrize("clip", [1e9, 0.3])
def test_clipped_parts_are_those_of_each_image(clip: float) -> None:
    module = network()
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(6, 2, 1, 8, 8, generator=generator, dtype=torch.float64)
    bounds = Bounds(STEP, clip, {"sums": 10 * clip}, batch=2.0)
    expected = each_by_itself(module, images, bounds)
    plan, _ = rehearse_plans(
        lambda: Tape(program(module, images[:1]), updated_parameters(module)), Lags()
    )
    assert len(plan.trips) == len(expected)
    parameters = updated_parameters(module)
    batch = Batch(partial(program, module), (images,))
    sums = ImageSums(module, batch, parameters, bounds, plan.trips)
    known = Contribution()
    for other in expected:
        found = sums.advance(known.sums, known.slopes)
        for kind, parts in vars(other).items():
            assert vars(found)[kind].keys() == parts.keys()
            for name, part in parts.items():
                torch.testing.assert_close(vars(found)[kind][name], part, rtol=1e-9, atol=1e-12)
        known = other


@pytest.mark.parametrize("lagged", [False, True])
def test_without_clipping_fed_scans_step_is_that_of_one_tape_over_all_images(lagged: bool) -> None:
    """Its own network and objective, whose common part weighs the most, exact or lagged."""
    torch.manual_seed(3)
    config = ScanConfig(widths=(8,), hidden=12, latent=6, pairs="views", pairs_each=2)
    module = ScanNetwork(config, (1, 8, 8), 4).double()
    images = torch.rand(7, 4, 1, 8, 8, dtype=torch.float64)
    lags = Lags(frozenset({PREDICTIONS}), frozenset({"encoder.8"})) if lagged else Lags()
    check_steps(partial(scan_program, module, 30.0), (images,), module, lags)


def check_steps(
    make: Make, shown: ShownImages, module: nn.Module, lags: Lags | None = None
) -> None:
    """Two steps, of which the second may take something from the first."""
    parameters, bounds, before = updated_parameters(module), Bounds(STEP, 1e12, {}), Contribution()

    def tape() -> Tape:
        return Tape(make(*shown), parameters)

    for plan in rehearse_plans(tape, lags or Lags()):
        whole = tape()
        each = ImageSums(module, Batch(make, shown), parameters, bounds, plan.trips)
        totals = {pool: before.sums[pool] for pool in plan.lags.totals}
        slopes = {pool: 0.9 * before.slopes[pool] for pool in plan.lags.slopes}
        for trip in plan.trips:
            expected, found = whole.advance(totals, slopes), each.advance(totals, slopes)
            for kind, parts in vars(expected).items():
                assert vars(found)[kind].keys() == parts.keys() == vars(trip)[kind].keys()
                for part, number in parts.items():
                    torch.testing.assert_close(vars(found)[kind][part], number)
            totals, slopes = expected.sums, expected.slopes
            before.sums.update(totals)
            before.slopes.update(slopes)
        assert any(part.abs().max() > 1e-6 for part in expected.gradient.values())


def contrastive() -> ContrastiveModel:
    torch.manual_seed(4)
    backbone = ConvBackbone((1, 8, 8), (4, 6))
    return ContrastiveModel(backbone, 10, latent=5, predictor_width=4).double()


LOSS = LossConfig(eta=3.0, pretrain_eta=2.0)


@pytest.mark.parametrize("eta", [0.0, 2.0])
def test_without_clipping_a_step_of_pre_training_is_that_of_one_tape(eta: float) -> None:
    module, loss = contrastive(), LossConfig(pretrain_eta=eta)
    images = torch.rand(7, 2, 1, 8, 8, dtype=torch.float64)
    check_steps(partial(siamese_program, module, loss), (images,), module)


@pytest.mark.parametrize("eta", [0.0, 3.0])
def test_without_clipping_a_step_of_cluster_contrast_is_that_of_one_tape(eta: float) -> None:
    """With labels of each image by itself, a cluster of one image, and one of none."""
    module, loss = contrastive(), LossConfig(eta=eta)
    images = torch.rand(7, 1, 8, 8, dtype=torch.float64)
    labels = torch.tensor([0, 1, 1, 3, 3, 3, 1])
    check_steps(partial(contrast_program, module, 4, loss), (images, labels), module)


def steps_of(phase: str, module: ContrastiveModel) -> tuple[Make, ShownImages]:
    """What makes programs, and what is shown of eight images."""
    generator = torch.Generator().manual_seed(7)
    pairs = torch.rand(8, 2, 1, 8, 8, generator=generator, dtype=torch.float64)
    if phase == "siamese":
        return partial(siamese_program, module, LOSS), (pairs,)
    labels = torch.arange(8).remainder(3)
    return partial(contrast_program, module, 3, LOSS), (pairs[:, 0], labels)


@pytest.mark.parametrize("phase", ["siamese", "contrast"])
def test_one_image_changes_the_sums_of_a_phase_by_its_bound_at_most(phase: str) -> None:
    """In each trip, given the same totals: with it and without it; some images reach the bound."""
    module = contrastive()
    make, shown = steps_of(phase, module)
    parameters = updated_parameters(module)
    bounds = Bounds(STEP, 0.05, {"sums": 2.0, "slopes": 1e-3}, batch=8.0)
    plan, _ = rehearse_plans(lambda: Tape(make(*(of[:1] for of in shown)), parameters), Lags())
    without = tuple(of[:-1] for of in shown)
    both = [
        ImageSums(module, Batch(make, of), parameters, bounds, plan.trips)
        for of in (shown, without)
    ]
    known, reached = Contribution(), set[str]()
    for _ in plan.trips:
        one, other = (each.advance(known.sums, known.slopes) for each in both)
        added = {
            f"{kind}/{name}": part - vars(other)[kind][name]
            for kind, parts in vars(one).items()
            for name, part in parts.items()
        }
        for group, names in group_names(PARTS, added).items():
            norm = float(sum(added[name].square().sum() for name in names)) ** 0.5
            assert norm <= bounds.of(group) * (1 + 1e-9)
            if norm > bounds.of(group) * (1 - 1e-9):
                reached.add(group.partition("/")[0])
        known = one
    assert reached >= {"sums", "gradient"}


@pytest.mark.parametrize("phase", ["siamese", "contrast"])
def test_pools_have_the_largest_parts_that_are_said(phase: str) -> None:
    largest = LARGEST_OF_SIAMESE if phase == "siamese" else LARGEST_OF_CONTRAST
    ((group, most),) = largest.items()
    module = contrastive()
    make, shown = steps_of(phase, module)
    for number in range(8):
        tape, known = Tape(make(*(of[number : number + 1] for of in shown)), {}), Contribution()
        seen: dict[str, Tensor] = {}
        while group not in seen:
            known = tape.advance(known.sums, {})
            seen |= {f"sums/{name}": part for name, part in known.sums.items()}
        assert 0.5 * most < float(seen[group].norm()) <= most * (1 + 1e-9)
