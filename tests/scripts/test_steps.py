"""What the benchmark compares is the same work."""

import torch

from scripts.steps import STEPS, PlainSteps, Rounds, experiment_of, operations

SMALL = {"widths": [8], "stem": 0, "hidden": 8, "latent": 8, "batch": 50}


def test_a_measured_round_has_the_steps_of_a_measured_plain_loop() -> None:
    experiment = experiment_of("digits", 10, 300, "cpu", SMALL)
    rounds, plain = Rounds(experiment), PlainSteps(experiment)
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


def test_operations_are_counted_by_hand() -> None:
    experiment = experiment_of("digits", 10, 300, "cpu", SMALL)
    convolution = 2 * 8 * 4 * 4 * 16 * 2  # 4x4 kernels, 16 places, 8 channels; two passes
    heads = 3 * 10  # the digits' preset asks for three clusters a class
    linear = 2 * (8 * 16 * 8 + 8 * 8 + 8 * heads) * 3
    assert operations(experiment) == (convolution + linear) * 2 * 50 * STEPS
