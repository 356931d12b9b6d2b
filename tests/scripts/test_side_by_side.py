"""CCFC beside its authors' code: what is measured, and how losses are put together."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from scripts.side_by_side import OURS, THEIRS, Losses, app, measure, table


def test_separate_clusters_are_found_and_span_few_directions() -> None:
    truth = torch.arange(10).repeat(20)
    latents = torch.eye(16)[truth] + 0.001 * torch.randn(200, 16)
    found = measure(latents, truth)
    assert found["kmeans"] == pytest.approx(1.0)
    assert found["rank"] == pytest.approx(9, abs=0.1)  # ten points around their mean


def test_losses_are_put_together_by_step() -> None:
    def term(p: Tensor, z: Tensor) -> Tensor:
        return p + z

    losses = Losses(weight=0.5)
    one = torch.ones(())
    for value in (1.0, 2.0, 4.0, 6.0):  # two of views, two of models
        losses.sample(term, value * one, 0 * one)
    assert losses.mean() == pytest.approx(1.5 + 0.5 * 5)
    for value in (1.0, 3.0, 8.0):  # a term of each cluster
        losses.cluster(term, value * one, 0 * one)
    losses.sample(term, 2 * one, 0 * one)
    assert losses.mean() == pytest.approx(4 + 0.5 * 2)


def test_the_table_has_both_sides_and_a_test_of_means() -> None:
    rows = [[{"loss": value, "rank": 2 * value, "kmeans": value / 10}] for value in (1.0, 1.5, 2.0)]
    found = [(side, seed, rows[seed]) for side in (OURS, THEIRS) for seed in range(3)]
    shown = table(found, [1])
    assert shown.row_count == 3  # nobody had clusters yet
    assert next(iter(shown.columns[2].cells)) == "1.500 ± 0.500"
    assert next(iter(shown.columns[4].cells)) == "1.00"


def test_a_folder_without_the_code_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [str(tmp_path), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "authors' code" in result.output
