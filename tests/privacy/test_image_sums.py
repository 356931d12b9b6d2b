"""Per-image parts of a synchronised step, beside a tape for each image by itself."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from ccfcpp.engine.payload import added_up
from ccfcpp.engine.synchronised.messages import Contribution
from ccfcpp.engine.synchronised.plan import Lags, rehearsed
from ccfcpp.engine.synchronised.tape import Tape
from ccfcpp.models.pooled import Objective, Pool, Program, moved_parameters, through
from ccfcpp.privacy.dp_mechanism import Bounds
from ccfcpp.privacy.image_sums import ImageSums


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
        nn.Linear(4 * 36, 5), nn.BatchNorm1d(5), nn.Tanh(),
    ).double()  # fmt: skip


def program(module: nn.Module, views: Tensor) -> Program:
    """Two batch normalisations, a pool that only a common part depends on, and a local part."""
    z = yield from through(module, views)
    z, total = yield Pool("mean", z, lambda x: x.sum(dim=0).double(), common=True)
    local = (z**3).sum() / total.square().sum().detach() + (z[0] * z[1]).sum()
    figures = {"cubes": (z**3).sum()}
    return Objective(local, total.square().sum() / 10, figures)


def each_by_itself(module: nn.Module, images: Tensor, bounds: Bounds) -> list[Contribution]:
    """All trips of a step: a tape for each image, and its parts clipped one by one."""
    parameters = moved_parameters(module)
    tapes = [Tape(program(module, views), parameters) for views in images]
    known, found = Contribution(), []
    while not known.gradient:
        each = [tape.advance(known.sums, known.slopes) for tape in tapes]
        known = added_up([clipped(one, bounds) for one in each])
        found.append(known)
    return found


def clipped(one: Contribution, bounds: Bounds) -> Contribution:
    """Scaled down group by group, by the obvious loop."""
    parts = {
        kind: {name: part.clone() for name, part in vars(one)[kind].items()} for kind in vars(one)
    }
    groups = [[("sums", n)] for n in one.sums] + [[("slopes", n)] for n in one.slopes]
    groups += [[("gradient", n) for n in one.gradient], [("figures", n) for n in one.figures]]
    for group in groups:
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
    bounds = Bounds(clip, {"sums": 10 * clip}, batch=2.0)
    expected = each_by_itself(module, images, bounds)
    plan, _ = rehearsed(lambda: Tape(program(module, images[0]), moved_parameters(module)), Lags())
    assert len(plan.trips) == len(expected)
    parameters = moved_parameters(module)
    make = partial(program, module)
    sums = ImageSums(module, make, images, parameters, bounds, plan.trips)
    known = Contribution()
    for other in expected:
        found = sums.advance(known.sums, known.slopes)
        for kind, parts in vars(other).items():
            assert vars(found)[kind].keys() == parts.keys()
            for name, part in parts.items():
                torch.testing.assert_close(vars(found)[kind][name], part, rtol=1e-9, atol=1e-12)
        known = other
