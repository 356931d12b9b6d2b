"""The examples in the packages' docstrings run, and give what they say."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]
_WITH_EXAMPLES = [
    ".".join(file.relative_to(_ROOT).with_suffix("").parts)
    for package in ("ccfcpp", "supervised")
    for file in sorted((_ROOT / package).rglob("*.py"))
    if ">>> " in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", _WITH_EXAMPLES)
def test_examples_run(module: str) -> None:
    found = doctest.testmod(import_module(module))
    assert found.attempted > 0
    assert found.failed == 0
