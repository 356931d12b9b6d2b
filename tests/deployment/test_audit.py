"""The owner's log outlasts a full disk and a power loss."""

from pathlib import Path

from ccfcpp.deployment.client.audit import FILE, AuditLog, Entry
from ccfcpp.reports.owner import owner_page
from tests.support.command import ccfcpp


def entry(asked: str) -> Entry:
    return Entry("here:9092", "a" * 32, "fed-km", ("sums",), asked, 0, "done", bytes=100)


def test_a_line_that_was_cut_short_hides_no_other(tmp_path: Path) -> None:
    AuditLog(tmp_path).add(entry("first"))
    AuditLog(tmp_path).add(entry("second"))
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:-40])
    AuditLog(tmp_path).add(entry("third"))
    log = AuditLog(tmp_path)
    assert [each.asked for each in log.read()] == ["first", "third"]
    assert len(path.read_bytes().splitlines()) == 3
    shown = ccfcpp("audit", tmp_path)
    assert shown.code == 0
    assert f"line 2 of {path} is damaged" in shown.stderr
    assert "2, 0 of them refused" in shown.stdout
    assert "line 2 of " in owner_page(tmp_path)
