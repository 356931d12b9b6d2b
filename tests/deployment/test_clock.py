"""The clock by which a server's clients are silent or not."""

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("flwr")

from flwr.supercore import date
from flwr.supercore.date import now

from ccfcpp.deployment.server.clock import steady_clock


def test_it_counts_the_time_in_which_the_process_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    lived = [100.0]
    monkeypatch.setattr("ccfcpp.deployment.server.clock.time.monotonic", lambda: lived[0])
    before = vars(date)["datetime"]
    with steady_clock():
        began = now()
        assert abs(began - datetime.now(UTC)) < timedelta(minutes=1)
        for seconds, counted in ((3, 3), (0.5, 3.5), (3600, 13.5), (1, 14.5)):
            lived[0] += seconds
            assert now() - began == timedelta(seconds=counted)
    assert vars(date)["datetime"] is before
