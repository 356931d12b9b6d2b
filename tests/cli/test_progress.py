"""What a run says of itself while it goes on."""

import io

import pytest
from rich.console import Console

from ccfcpp.cli.progress import RunProgress
from ccfcpp.engine.federation import RoundReport


def lines(monkeypatch: pytest.MonkeyPatch, first: int, rounds: int, seconds: float) -> list[str]:
    """What is printed where each round takes so long."""
    clock = iter(range(10**6))
    monkeypatch.setattr("ccfcpp.cli.progress.time.monotonic", lambda: next(clock) * seconds / 3)
    output = io.StringIO()
    with RunProgress(Console(file=output, width=100), rounds, ("nmi", "NMI")) as progress:
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


def test_a_run_of_one_round_estimates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any("about" in line for line in lines(monkeypatch, 0, 1, 60))


def test_where_it_takes_long_it_says_what_is_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any(line.startswith("shorter: ") for line in lines(monkeypatch, 0, 60, 300))
    assert not any(line.startswith("shorter: ") for line in lines(monkeypatch, 0, 3, 60))
