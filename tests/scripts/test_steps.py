"""What the benchmark compares is the same work."""

import pytest
import torch

from ccfcpp.clustering.systems.fed_emp.steps import crops_program
from ccfcpp.core.config import Tree
from scripts.steps import STEPS, PlainEmp, PlainScan, Rounds, experiment_of, operations

DIGITS: Tree = {"dataset": "digits", "device": "cpu", "data": {"images": 300}}
SCAN: Tree = {
    **DIGITS,
    "scan": {"widths": [8], "stem": 0, "hidden": 8, "latent": 8, "batch": 50},
}
EMP: Tree = {
    **DIGITS,
    "method": "fed-emp",
    "crops": {"widths": [8, 16], "hidden": 8, "latent": 4, "batch": 5, "each": 3},
}


def test_a_measured_round_has_the_steps_of_a_measured_plain_loop() -> None:
    experiment = experiment_of(10, SCAN)
    rounds, plain = Rounds(experiment), PlainScan(experiment)
    assert rounds.state.version == STEPS
    rounds.run()
    assert rounds.state.version == 2 * STEPS
    before = {name: value.clone() for name, value in plain.network.state_dict().items()}
    plain.run()
    after = plain.network.state_dict()
    assert before.keys() == rounds.state.model.keys()
    counter = next(name for name in after if name.endswith("num_batches_tracked"))
    assert int(after[counter] - before[counter]) == STEPS
    assert not torch.equal(after["head.weight"], before["head.weight"])


def test_the_plain_loop_of_fed_emp_moves_the_same_network_by_the_same_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = experiment_of(10, EMP)
    rounds, plain = Rounds(experiment), PlainEmp(experiment)
    rounds.run()
    encoder = rounds.state.preparation
    assert encoder.version == 2 * STEPS
    before = {name: value.clone() for name, value in plain.network.state_dict().items()}
    plain.run()
    assert before.keys() == encoder.model.keys()
    assert all(not torch.equal(plain.network.state_dict()[name], before[name]) for name in before)
    shown = torch.rand(5 * 3, 1, 4, 4)
    monkeypatch.setattr(plain.crops.__class__, "render", lambda *_: shown)
    running = crops_program(plain.network, plain.config.weight, shown.view(5, 3, 1, 4, 4))
    pool = next(running)
    with pytest.raises(StopIteration) as ended:
        running.send((pool.of, pool.sums(pool.of)))
    expected = ended.value.value
    torch.testing.assert_close(plain.loss(), expected.local + expected.common)


def test_operations_are_counted_by_hand() -> None:
    experiment = experiment_of(10, SCAN)
    convolution = 2 * 8 * 4 * 4 * 16 * 2  # 4x4 kernels, 16 places, 8 channels; two passes
    heads = 3 * 10  # the digits' preset asks for three clusters a class
    linear = 2 * (8 * 16 * 8 + 8 * 8 + 8 * heads) * 3
    assert operations(experiment) == (convolution + linear) * 2 * 50 * STEPS


def test_operations_on_crops_are_counted_by_hand() -> None:
    places = 4 * 4  # of a crop of the digits' 8x8 pixels, in both convolutions
    convolutions = 2 * 9 * places * (1 * 8 * 2 + 8 * 16 * 3)
    linear = 2 * (16 * 8 + 8 * 8 + 8 * 4) * 3
    assert operations(experiment_of(10, EMP)) == (convolutions + linear) * 5 * 3 * STEPS
