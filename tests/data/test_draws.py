"""What holds of all that is drawn for a batch of images: views, sub-policies and crops."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Generator, Tensor

from ccfcpp.core.config import ViewsConfig
from ccfcpp.core.randomness import generator_of
from ccfcpp.data.augmentation import Drawn, draw_views, render_views
from ccfcpp.data.autoaugment import draw_policies, render_policies
from ccfcpp.data.training_augmentation import draw_crops, render_crops

BATCH = torch.randint(256, (50, 3, 16, 16), generator=generator_of(0), dtype=torch.uint8)


class Kind(NamedTuple):
    draw: Callable[[int, Generator], Drawn]
    render: Callable[[Tensor, Any], Tensor]


KINDS = {
    "views": Kind(
        lambda count, generator: draw_views(count, ViewsConfig(), (16, 16), generator),
        lambda images, views: render_views(images.float(), views),
    ),
    "policies": Kind(draw_policies, render_policies),
    "crops": Kind(lambda count, generator: draw_crops(count, 4, 0.5, generator), render_crops),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def test_a_batch_is_its_images_one_by_one_in_any_order_and_layout(kind: Kind) -> None:
    drawn, before = kind.draw(50, generator_of(1)), BATCH.clone()
    rendered = kind.render(BATCH, drawn)
    assert torch.equal(BATCH, before)
    assert not torch.equal(rendered, BATCH)
    alone = [kind.render(BATCH[i : i + 1], drawn[i : i + 1]) for i in range(50)]
    torch.testing.assert_close(rendered, torch.cat(alone))
    channels_last = BATCH.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(rendered, kind.render(channels_last, drawn))
    index = torch.tensor([3, 40, 3, 0, 49, 40])
    picked = drawn[index]
    assert (type(picked), len(picked)) == (type(drawn), 6)
    torch.testing.assert_close(kind.render(BATCH[index], picked), rendered[index])


def test_several_draws_are_joined(kind: Kind) -> None:
    parts = [kind.draw(count, generator_of(count)) for count in (30, 20)]
    joined = type(parts[0]).join(parts).to(torch.device("cpu"))
    assert len(joined) == 50
    apart = [kind.render(BATCH[:30], parts[0]), kind.render(BATCH[30:], parts[1])]
    torch.testing.assert_close(kind.render(BATCH, joined), torch.cat(apart))


def test_an_empty_batch(kind: Kind) -> None:
    drawn = kind.draw(0, generator_of(1))
    assert len(drawn) == 0
    if kind is not KINDS["views"]:  # which no batch is without
        assert kind.render(BATCH[:0], drawn).shape == (0, 3, 16, 16)


def test_the_seed_decides_and_no_global_generator(kind: Kind) -> None:
    state = torch.get_rng_state()
    first, again, other = (vars(kind.draw(50, generator_of(seed))) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    for name, drawn in first.items():
        assert torch.equal(drawn, again[name])
        assert not torch.equal(drawn, other[name])
