"""What ``scripts/secure_sums.py`` prints."""

import pytest

pytest.importorskip("cryptography")

from scripts.secure_sums import cost, main


def test_costs_are_those_of_one_client() -> None:
    """Vectors go up and not down, and all that a client receives grows with the others."""
    small, large = cost(4, 500, 0), cost(8, 500, 2)
    assert 500 * 8 < small.up < 500 * 8 + 4000
    assert small.down < large.down < 2.5 * small.down
    assert max(small.error, large.error) < 1e-8
    assert min(small.client, small.others, small.server) > 0


def test_a_row_for_each_cost(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--clients", "3", "10", "--numbers", "20"])
    rows = capsys.readouterr().out.splitlines()
    assert [row.split("|")[1:4] for row in rows[2:]] == [
        [f" {count} ", " 20 ", f" {lost} "] for count, lost in ((3, 0), (3, 0), (10, 0), (10, 1))
    ]
