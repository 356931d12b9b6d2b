"""Clients that are trained side by side end as if each had been trained alone."""

import pytest
import torch

from tests.support.clustering import clients_of_sizes, run_small, small_config

SIZES = (40, 33, 64, 2, 1, 75, 97, 96, 65)
"""With batches of 32: whole epochs, last batches of 1, 2, 8 and 11, and one that cannot train."""


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("cohort", [2, 4, 9])
@pytest.mark.parametrize("encoder", ["local", "global"])
def test_cohorts_of_any_size_give_the_same_run(
    cohort: int, encoder: str, device: torch.device
) -> None:
    settings = (f"centroids.encoder={encoder}", "training.local_epochs=2")
    alone = small_config("compute.cohort=1", *settings)
    together = small_config(f"compute.cohort={cohort}", *settings)
    expected, expected_reports = run_small(alone, clients_of_sizes(*SIZES))
    state, reports = run_small(together, clients_of_sizes(*SIZES), device)
    for name, tensor in expected.model.items():
        torch.testing.assert_close(state.model[name].cpu(), tensor, atol=1e-7, rtol=0, msg=name)
    assert state.centroids is not None
    assert expected.centroids is not None
    found = state.centroids.cpu()
    torch.testing.assert_close(found, expected.centroids, atol=1e-5, rtol=0)
    for report, other in zip(reports, expected_reports, strict=True):
        assert report.figures == pytest.approx(other.figures)
        assert (report.bytes_up, report.bytes_down) == (other.bytes_up, other.bytes_down)
