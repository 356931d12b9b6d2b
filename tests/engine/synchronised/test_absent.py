"""What clients that are away add to pooled sums."""

import torch

from ccfcpp.engine.synchronised.contract import ClientContribution
from ccfcpp.engine.synchronised.server import _store_parts, add_absent_parts


def test_an_absent_client_counts_by_how_often_it_shows_an_image() -> None:
    """A large client shows some in every step, a small one in one of four."""
    large, small = torch.tensor([5.0, 2.0]), torch.tensor([1.0, 0.5])
    parts: dict[str, torch.Tensor] = {}
    for step in range(8):
        there: set[int] = set()
        shown = small * (step % 4 == 1)
        updates = [
            ClientContribution({"p": (1 + step) * large}, client=0),
            ClientContribution({"p": shown}, client=3),
        ]
        added = torch.stack([each.sums["p"] for each in _store_parts(updates, parts, there)]).sum(
            dim=0
        )
        assert there == {0, 3}
        # Who is there counts with what it shows.
        assert torch.equal(add_absent_parts({"p": added}, parts, there)["p"], added)
    assert torch.equal(add_absent_parts({"p": large}, parts, {0})["p"], large + small / 4)
    assert torch.equal(add_absent_parts({"p": small}, parts, {3})["p"], small + 8 * large)
    assert torch.equal(
        add_absent_parts({"p": small}, parts, {7})["p"], small + 8 * large + small / 4
    )


def test_a_part_of_all_images_of_a_client_counts_whole() -> None:
    found = add_absent_parts({"t": torch.ones(2)}, {"4/t": torch.full((2,), 3.0)}, {1})
    assert found["t"].tolist() == [4.0, 4.0]
