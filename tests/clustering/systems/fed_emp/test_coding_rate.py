"""What keeps latents apart, against loops over crops, and by gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.systems.fed_emp.config import CropsConfig
from ccfcpp.clustering.systems.fed_emp.network import CropEncoder
from ccfcpp.clustering.systems.fed_emp.steps import as_matrix, crops_program, sum_outer_products
from ccfcpp.core.config_layers import merge, validate
from ccfcpp.core.errors import UsageError
from ccfcpp.models.pooled import Pool
from tests.clustering.systems.fed_emp.test_algorithm import SMALL, config_of, objective


def encoder() -> CropEncoder:
    return CropEncoder(config_of().section(CropsConfig), (1, 8, 8)).double()


def begun(network: CropEncoder, weight: float, crops: Tensor) -> Pool:
    return next(crops_program(network, weight, crops))


@settings(max_examples=10, deadline=None)
@given(st.integers(2, 5), st.integers(2, 4), st.floats(0, 200), st.integers(0, 10**6))
def test_a_step_and_its_gradient_are_those_of_a_loop(
    images: int, each: int, weight: float, seed: int
) -> None:
    torch.manual_seed(seed)
    network = encoder()
    crops = torch.rand(images, each, 1, 4, 4, dtype=torch.float64)
    running = crops_program(network, weight, crops)
    pool = next(running)
    with pytest.raises(StopIteration) as ended:
        running.send((pool.of, pool.sums(pool.of)))
    found = ended.value.value
    assert found.common is not None
    total = found.local + found.common
    expected = objective(network(crops.flatten(0, 1)), each, weight)
    torch.testing.assert_close(total, expected, rtol=1e-7, atol=1e-9)
    parameters = list(network.parameters())
    gradients = torch.autograd.grad(total, parameters)
    for one, other in zip(gradients, torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


def test_sums_of_crops_can_be_and_others_cannot() -> None:
    torch.manual_seed(0)
    pool = begun(encoder(), 1.0, torch.rand(3, 2, 1, 4, 4, dtype=torch.float64))
    sums = pool.sums(pool.of).detach()
    assert pool.valid(sums)
    longer = as_matrix(sums).clone()
    longer[1, 1] += 1
    assert not pool.valid(longer.flatten())
    assert not pool.valid(-sums)
    assert not pool.valid(torch.cat([2 * sums[:1], sums[1:]]))
    noisy = sums + torch.randn(len(sums), generator=torch.Generator().manual_seed(0)).double()
    projected = as_matrix(pool.nearest(noisy))
    assert float(torch.linalg.eigvalsh(projected).min()) > -1e-9
    torch.testing.assert_close(pool.nearest(sums), sums)


def test_outer_is_a_sum_over_crops() -> None:
    u = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    expected = torch.zeros(4, 4, dtype=torch.float64)
    for row in u.double():
        one = torch.cat([torch.ones(1).double(), row])
        expected += torch.outer(one, one)
    torch.testing.assert_close(as_matrix(sum_outer_products(u)), expected)


def test_settings_of_runs_that_chose_what_keeps_latents_apart_are_read() -> None:
    before = merge(SMALL, {"crops": {"loss": "rate", "weight": None}})
    assert validate(ClusterConfig, before).section(CropsConfig).weight == 200
    with pytest.raises(UsageError, match=r"crops\.loss = vicreg is refused: it should be 'rate'"):
        validate(ClusterConfig, merge(before, {"crops": {"loss": "vicreg"}}))
