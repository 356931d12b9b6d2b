"""What a run says of itself while it goes on."""

import io
import itertools
from collections.abc import Callable

import pytest
import torch
from rich.console import Console

from ccfcpp.cli.progress import RunProgress, shortening_hint
from ccfcpp.clustering.run import clustering_run
from ccfcpp.core.config_layers import validate
from ccfcpp.core.progress import (
    RoundProgress,
    report_exchanges,
    report_images,
    report_progress_to,
    report_round,
)
from ccfcpp.data.images import ImageData
from ccfcpp.deployment.link.server_status import MOST_SECONDS, ServerStatus
from ccfcpp.engine.federation import RoundReport
from supervised.classification import classification_run
from supervised.config import ClassifyConfig
from tests.support.clustering import tiny

SAMPLES = 100


def lines(monkeypatch: pytest.MonkeyPatch, first: int, rounds: int, seconds: float) -> list[str]:
    """What is printed where each round takes so long."""
    clock = iter(range(10**6))
    monkeypatch.setattr("ccfcpp.cli.progress.time.monotonic", lambda: next(clock) * seconds / 3)
    output = io.StringIO()
    console, headline = Console(file=output, width=100), ("nmi", "NMI")
    with RunProgress(console, rounds, headline, SAMPLES, hint="shorter: less") as progress:
        for number in range(first, rounds):
            progress(RoundReport(number, [0]), {"nmi": 0.5})
    return output.getvalue().splitlines()


def test_after_the_first_round_it_says_how_long_all_will_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = lines(monkeypatch, 0, 12, 60)
    assert said[0].startswith("about ")
    assert said[0].endswith(" min for 12 rounds, by the first one's time")
    assert sum("about" in line for line in said) == 1


def test_a_resumed_run_counts_the_rounds_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "for 3 rounds" in lines(monkeypatch, 9, 12, 60)[0]


def test_a_round_of_many_exchanges_says_little_of_those_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("ccfcpp.cli.progress.time.monotonic", lambda: now[0])
    output, exchanges = io.StringIO(), [20, *[1] * 100]
    console, headline = Console(file=output, width=100), ("nmi", "NMI")
    progress = RunProgress(console, 101, headline, SAMPLES, exchanges=lambda: exchanges)
    with progress, report_progress_to(progress.pace):
        for number in range(3):
            report_round(number)
            now[0] += 6 * exchanges[number]
            progress(RoundReport(number, [0]), {})
    said = output.getvalue().splitlines()
    assert said[0] == "about 12:00 min for 101 rounds, by the first one's time"
    assert said[1].endswith("10:00 left")
    assert said[-1].endswith("9:48 left")


def test_a_server_that_waited_for_days_still_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A status that clients refuse, or that cannot be written, would end all their calls."""
    now = [0.0]
    monkeypatch.setattr("ccfcpp.cli.progress.time.monotonic", lambda: now[0])
    progress = RunProgress(Console(file=io.StringIO()), 1000, ("nmi", "NMI"))
    with progress, report_progress_to(progress.pace):
        report_round(0)
        now[0] = 3 * 86400
        progress(RoundReport(0, [0]), {})
        report_round(1)
    status = progress.server_status
    assert status.left == MOST_SECONDS
    assert ServerStatus.read(status.to_json()) == status


def test_a_run_of_one_round_estimates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any("about" in line for line in lines(monkeypatch, 0, 1, 60))


def test_where_it_takes_long_it_says_what_is_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any(line.startswith("shorter: ") for line in lines(monkeypatch, 0, 60, 300))
    assert not any(line.startswith("shorter: ") for line in lines(monkeypatch, 0, 3, 60))


@pytest.mark.parametrize(
    ("images", "side", "proposed", "not_proposed"),
    [
        (70_000, 28, ["data.images=2000", "fewer rounds"], ["image_size"]),
        (70_000, 96, ["data.images=2000", "data.image_size=32"], []),
        (1797, 64, ["data.image_size=32"], ["data.images"]),
        (1797, 8, ["fewer rounds"], ["data.images", "image_size"]),
    ],
)
def test_only_what_makes_a_run_shorter_is_proposed(
    images: int, side: int, proposed: list[str], not_proposed: list[str]
) -> None:
    experiment = clustering_run(tiny("ccfc++"))
    pixels = torch.zeros(1, 1, side, side, dtype=torch.uint8)
    experiment.data = ImageData("mine", pixels, None, ())
    experiment.parts = [torch.arange(images)]
    hint = shortening_hint(experiment)
    assert hint.startswith("shorter: ")
    assert all(way in hint for way in proposed)
    assert not any(way in hint for way in not_proposed)
    # A run that goes on has its settings.
    begun = "Ctrl-C keeps what is done, and --resume goes on"
    assert shortening_hint(experiment, begun=True) == begun
    experiment.algorithm.rounds = 1
    assert "rounds" not in shortening_hint(experiment)


def test_classification_is_shorter_with_fewer_training_images() -> None:
    few = {"data": {"test_images": 10}, "partition": {"kind": "iid"}, "device": "cpu"}
    experiment = classification_run(validate(ClassifyConfig, few))
    experiment.parts = [torch.arange(5000)]
    assert "--set data.train_images=2000" in shortening_hint(experiment)


def during_the_first_round(
    monkeypatch: pytest.MonkeyPatch, seconds: float, tell: Callable[[], None]
) -> list[str]:
    """What is printed where a second step takes so long, and then the round ends."""
    now = [0.0]
    monkeypatch.setattr("ccfcpp.cli.progress.time.monotonic", lambda: now[0])
    output = io.StringIO()
    console, headline = Console(file=output, width=100), ("nmi", "NMI")
    progress = RunProgress(console, 130, headline, SAMPLES, hint="shorter: less")
    with progress, report_progress_to(progress.pace):
        report_round(0)
        now[0] = 50
        tell()
        now[0] += seconds
        tell()
        progress(RoundReport(0, [0]), {})
    return output.getvalue().splitlines()


def test_a_first_step_tells_how_long_a_long_run_will_take(monkeypatch: pytest.MonkeyPatch) -> None:
    # 10 of 5 times 100 images in 4 s: 200 s a round.
    said = during_the_first_round(monkeypatch, 4, lambda: report_images(10, 5))
    assert said[0] == "about 433:20 min for 130 rounds, by the first steps' time"
    assert said[1].startswith("shorter: ")
    assert sum("about" in line for line in said) == 1


def test_a_process_among_several_counts_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = during_the_first_round(monkeypatch, 4, lambda: report_images(10, 5))
    assert said[0] == "about 216:40 min for 130 rounds, by the first steps' time"


def test_where_no_images_are_counted_exchanges_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    trips = itertools.count(4, 4)
    said = during_the_first_round(monkeypatch, 5, lambda: report_exchanges(next(trips), 40))
    assert said[0] == "about 108:20 min for 130 rounds, by the first steps' time"


def test_too_little_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said = during_the_first_round(monkeypatch, 1, lambda: report_images(10, 5))
    assert said[0].endswith("by the first one's time")


@pytest.mark.parametrize("method", ["ccfc++", "sda-fc-km", "fed-scan", "k-fed"])
def test_rounds_are_told_to_their_ends(method: str) -> None:
    experiment = clustering_run(tiny(method))
    told: list[tuple[int, float]] = []
    pace = RoundProgress(len(experiment.data), lambda: told.append((pace.round, pace.share)))
    state = experiment.algorithm.initial_state(experiment.randomness)
    with report_progress_to(pace):
        for _, report in experiment.federation().run(state):
            number, share = told[-1]
            assert number == report.round
            assert share == pytest.approx(1, abs=0.05)
    assert told == sorted(told)


def test_an_exchange_before_the_images_is_no_measure_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Half of the exchanges in 50 s, then 100 images, and 10 more of 5 times 100 in 4 s.
    counts = iter([100, 10])

    def tell() -> None:
        report_exchanges(1, 2)
        report_images(next(counts), 5)

    said = during_the_first_round(monkeypatch, 4, tell)
    assert said[0] == "about 433:20 min for 130 rounds, by the first steps' time"
