"""Captured steps against the same steps as they are, by a stand-in for CUDA graphs."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ccfcpp.core.randomness import Randomness
from ccfcpp.data.augmentation import ViewParameters
from ccfcpp.models.network import FlatNetwork
from ccfcpp.models.optimizers import FlatAdam, FlatSGD
from ccfcpp.models.state import ModelState, build
from ccfcpp.models.steps import (
    Batches,
    CudaGraphs,
    Inputs,
    MeanLoss,
    Record,
    Step,
    Training,
    make_recorder,
    train_side_by_side,
)
from tests.support.recording import Recorder

CPU = torch.device("cpu")
BATCH = 4


def make() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2)
    )


class Trainer:
    """The parts of a trainer, on random images."""

    def __init__(
        self, record: Record | None, optimizer: str = "adam", device: torch.device = CPU
    ) -> None:
        self.network = FlatNetwork(make, device)
        self.inputs = Inputs(device, record)
        self.batches = Batches(self.inputs, BATCH)
        self.mean = MeanLoss(device)
        self.adam = FlatAdam(self.network) if optimizer == "adam" else None
        self.sgd = None if self.adam else FlatSGD(self.network, 0.1, 0.9, 0.01)
        self.step = Step(self._step, BATCH, self.inputs)

    def train(self, samples: int, seed: int, epochs: int = 4) -> Training[tuple[ModelState, float]]:
        source = Randomness(seed)
        self.network.load(build(make, source.generator("model")).state_dict())
        if self.adam:
            # On a processor a recording holds the rate, which a CUDA graph reads anew.
            self.adam.begin(0.01 * (1 + seed) if self.inputs.device.type == "cuda" else 0.01)
        if self.sgd:
            self.sgd.begin()
        self.mean.begin()
        self.inputs.put("images", torch.rand(samples, 1, 6, 6, generator=source.generator("x")))
        steps = 0
        for epoch in range(epochs):
            for length in self.batches.shuffle(samples, source.generator(f"order {epoch}")):
                self.step(length)
                steps += 1
                yield
        mean = self.mean.mean(steps)
        assert mean is not None
        return self.network.state(), mean

    def _step(self, length: int) -> None:
        shown = self.inputs["images"][self.batches.next(length)]
        loss = self.network(shown)[0].square().sum(dim=1).mean()
        self.network.backward(loss)
        if self.adam:
            self.adam.step()
        if self.sgd:
            self.sgd.step()
        self.mean.add(loss)


def assert_equal(found: tuple[ModelState, float], expected: tuple[ModelState, float]) -> None:
    assert found[1] == expected[1]
    assert found[0].keys() == expected[0].keys()
    for name, entry in expected[0].items():
        assert torch.equal(found[0][name], entry), name


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_captured_steps_give_the_same_bits(optimizer: str) -> None:
    """For one client after another: smaller ones, a larger one, and one that was there before."""
    recorder = Recorder()
    captured = Trainer(recorder, optimizer)
    for samples, seed in ((12, 0), (9, 1), (19, 2), (12, 0)):
        (found,) = train_side_by_side([captured.train(samples, seed)], CPU)
        (expected,) = train_side_by_side([Trainer(None, optimizer).train(samples, seed)], CPU)
        assert_equal(found, expected)
    # Once for the first client, and once more where the larger one's images took another place.
    assert recorder.records == 2
    # 4 epochs of 3, 2, 4 and 3 whole batches, without the three before the first capture.
    assert recorder.replays == 4 * (3 + 2 + 4 + 3) - 3


def test_steps_are_captured_after_a_warm_up_and_for_whole_batches_alone() -> None:
    recorder, calls = Recorder(), list[tuple[int, str]]()
    inputs = Inputs(CPU, recorder)

    def run(samples: int, kind: str) -> None:
        calls.append((samples, kind))

    step = Step(run, BATCH, inputs)
    for _ in range(6):
        step(BATCH, "a")
        step(BATCH - 1, "a")
    step(BATCH, "b")
    # Three as they are and one that is recorded; what else a step depends on has its own.
    assert calls.count((BATCH, "a")) == 4
    assert calls.count((BATCH - 1, "a")) == 6
    assert calls.count((BATCH, "b")) == 1
    assert (recorder.records, recorder.replays) == (1, 3)


def test_what_cannot_be_captured_runs_as_it_is_and_says_so() -> None:
    def refuses(step: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    def run_all(step: Step) -> None:
        for _ in range(6):
            step(BATCH)

    calls = list[int]()
    step = Step(calls.append, BATCH, Inputs(CPU, refuses))
    with pytest.warns(UserWarning, match="slower: operation not permitted when stream is captur"):
        run_all(step)
    assert calls == [BATCH] * 6


def test_inputs_stay_where_they_are_unless_they_have_no_room() -> None:
    inputs = Inputs(CPU, Recorder())
    inputs.put("x", torch.arange(5))
    first = inputs["x"]
    inputs.put("x", torch.arange(3) + 10)
    assert inputs["x"] is first
    assert first.tolist() == [10, 11, 12, 3, 4]
    inputs.put("views", ViewParameters(torch.rand(2, 2, 3), torch.rand(2)))
    inputs.put("none", None)
    assert inputs["none"] is None
    before = inputs.moved
    held = inputs["views"].sigmas
    inputs.put("views", ViewParameters(torch.zeros(2, 2, 3), torch.zeros(2)))
    assert inputs["views"].sigmas is held
    assert held.tolist() == [0, 0]
    assert inputs.moved == before
    for other in (torch.arange(6), torch.arange(3).float(), torch.arange(4).view(2, 2)):
        inputs.put("x", other)
        assert torch.equal(inputs["x"], other)
    assert inputs.moved == before + 3


def test_an_epoch_visits_each_sample_once_save_a_last_single_one() -> None:
    inputs = Inputs(CPU, None)
    batches = Batches(inputs, BATCH)
    for samples in range(1, 14):
        lengths = batches.shuffle(samples, Randomness(samples).generator("order"))
        seen = torch.cat([torch.empty(0), *[batches.next(length) for length in lengths]]).tolist()
        order = torch.randperm(samples, generator=Randomness(samples).generator("order")).tolist()
        left_out = samples % BATCH == 1
        assert seen == order[: samples - left_out]
        assert all(length == BATCH for length in lengths[:-1])


@pytest.mark.parametrize("least", [2, 3, 4])
def test_with_a_floor_no_sample_is_left_out_and_no_batch_is_smaller(least: int) -> None:
    inputs = Inputs(CPU, None)
    batches = Batches(inputs, BATCH, least)
    for samples in range(least, 14):
        lengths = batches.shuffle(samples, Randomness(samples).generator("order"))
        seen = torch.cat([batches.next(length) for length in lengths]).tolist()
        order = torch.randperm(samples, generator=Randomness(samples).generator("order")).tolist()
        assert seen == order
        assert all(least <= length < BATCH + least for length in lengths)


def test_results_come_in_the_order_of_the_clients() -> None:
    def training(steps: int) -> Training[int]:
        for _ in range(steps):
            yield
        return steps

    trainings = [training(steps) for steps in (3, 0, 5)]
    assert train_side_by_side(trainings, CPU) == [3, 0, 5]


def test_the_mean_loss_is_none_without_a_step() -> None:
    mean = MeanLoss(CPU)
    assert mean.mean(0) is None
    for loss in (Tensor([1.0]), Tensor([4.0])):
        mean.add(loss[0])
    assert mean.mean(2) == 2.5


@pytest.mark.cuda
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_on_a_gpu_clients_side_by_side_give_the_bits_of_each_alone(
    optimizer: str, captures: list[CudaGraphs]
) -> None:
    """Captured and side by side, in two rounds; uncaptured and one after the other."""
    device = torch.device("cuda")
    clients = [(19, 0), (12, 1), (9, 2), (4, 3)]
    captured = [Trainer(make_recorder(device), optimizer, device) for _ in clients]
    for turn in range(2):
        chosen = [(samples, seed + 10 * turn) for samples, seed in clients]
        together = train_side_by_side(
            [own.train(*client) for own, client in zip(captured, chosen, strict=True)], device
        )
        for found, client in zip(together, chosen, strict=True):
            (alone,) = train_side_by_side([Trainer(None, optimizer, device).train(*client)], device)
            assert_equal(found, alone)
    assert len(captures) >= len(clients) - 1  # The smallest has no whole batch to capture.


FAILING = """
import torch
from ccfcpp.models.steps import CudaGraphs
here, place = torch.cuda.current_stream(), torch.ones(2, device="cuda")
try:
    CudaGraphs()(lambda: print(float(place.sum())))
except RuntimeError:
    assert torch.cuda.current_stream() == here
else:
    raise AssertionError("a look at a value was captured")
"""


@pytest.mark.cuda
def test_on_a_gpu_a_capture_that_fails_leaves_the_stream_as_it_was() -> None:
    """In a process of its own, in which nothing can be captured any more."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device is here")
    subprocess.run([sys.executable, "-c", FAILING], check=True)
