"""How often the frozen model looks at the images."""

from typing import Any

import pytest

from ccfcpp.clustering.ccfc import representations
from ccfcpp.clustering.ccfc.representations import represent
from tests.support.clustering import clients_of_sizes, run_small, small_config


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        ((), 2),  # labels in each of 2 rounds
        # Labels of a cluster round come from the pass that gave the round before its centroids.
        (("centroids.encoder=global", "centroids.refine_steps=3"), 3),
    ],
)
def test_the_frozen_model_sees_unchanged_images_once_a_round(
    monkeypatch: pytest.MonkeyPatch,
    settings: tuple[str, ...],
    passes: int,
) -> None:
    calls = []

    def counting(*arguments: Any) -> representations.Representations:
        calls.append(arguments)
        return represent(*arguments)

    monkeypatch.setattr(representations, "represent", counting)
    run_small(small_config(*settings), clients_of_sizes(40))
    assert len(calls) == passes
