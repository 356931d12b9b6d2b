import pytest

from ccfcpp.core.profiling import profiling, section


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


def test_a_section_has_its_own_time_without_those_inside(clock: list[float]) -> None:
    with profiling() as profile:
        clock[0] += 1
        for _ in range(2):
            with section("outer"):
                clock[0] += 2
                with section("inner"):
                    clock[0] += 4
                clock[0] += 8
    assert profile.seconds == {"other": 1, "outer": 20, "inner": 8}
    assert profile.calls == {"other": 1, "outer": 2, "inner": 2}


def test_a_section_that_fails_is_counted_too(clock: list[float]) -> None:
    with profiling() as profile:
        try:
            with section("work"):
                clock[0] += 3
                raise ValueError
        except ValueError:
            pass
        clock[0] += 1
    assert profile.seconds == {"work": 3, "other": 1}


def test_without_profiling_nothing_is_measured(clock: list[float]) -> None:
    with section("before"):
        clock[0] += 1
    with profiling() as profile:
        pass
    assert profile.seconds == {"other": 0}
