"""Things by name: the library's own, and what installed packages add."""

import subprocess
import sys
from pathlib import Path

import pytest

from ccfcpp.core.errors import FederationError, UsageError
from ccfcpp.core.registry import Registry
from tests.support.plugin import write_metadata

GROUP = "ccfcpp.tests"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[object]:
    """Two fractions, and a module that is not there."""
    own = {
        "half": "own_things:HALF",
        "third": "own_things:THIRD",
        "lost": "no_such_module:LOST",
    }
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own_things.py").write_text(
        "from fractions import Fraction\nHALF, THIRD = Fraction(1, 2), Fraction(1, 3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "own")
    monkeypatch.delitem(sys.modules, "own_things", raising=False)
    return Registry(GROUP, "fraction", own, "fractions:Fraction")


def install(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    points: dict[str, str],
    module: str = "",
    name: str = "added-things",
) -> None:
    """A distribution as ``pip`` leaves it, with a module ``added_things`` and entry points."""
    site = folder / "site"
    site.mkdir(parents=True)
    write_metadata(site, name, {GROUP: points})
    (site / "added_things.py").write_text(module)
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "added_things", raising=False)


def one_line(raised: pytest.ExceptionInfo[UsageError]) -> str:
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_names_are_listed_in_order_without_an_import(registry: Registry[object]) -> None:
    assert list(registry) == registry.own() == ["half", "third", "lost"]
    assert len(registry) == 3
    assert "half" in registry
    assert "fifth" not in registry
    assert "own_things" not in sys.modules
    assert str(registry["third"]) == "1/3"
    assert registry["third"] is registry["third"]
    assert "own_things" in sys.modules


def test_what_is_not_there_is_a_key_error(registry: Registry[object]) -> None:
    with pytest.raises(KeyError, match="fifth"):
        registry["fifth"]
    assert registry.get("fifth") is None


def test_a_module_of_the_librarys_own_fails_as_it_is(registry: Registry[object]) -> None:
    """It is no matter of a user's packages."""
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        registry["lost"]


def test_an_installed_package_adds_things_behind_the_own_ones(
    registry: Registry[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = {"sixth": "added_things:SIXTH", "fifth": "added_things:FIFTH"}
    module = "from fractions import Fraction\nFIFTH, SIXTH = Fraction(1, 5), Fraction(1, 6)\n"
    install(tmp_path, monkeypatch, points, module)
    assert list(registry) == ["half", "third", "lost", "fifth", "sixth"]
    assert registry.own() == ["half", "third", "lost"]
    assert "added_things" not in sys.modules
    assert str(registry["fifth"]) == "1/5"
    assert str(registry["half"]) == "1/2"


def test_a_name_of_the_librarys_own_cannot_be_taken(
    registry: Registry[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, {"half": "added_things:HALF"}, "HALF = 0.5\n")
    assert str(registry["half"]) == "1/2"
    assert list(registry) == registry.own()


def test_a_name_that_two_packages_add_is_named_when_it_is_asked_for(
    registry: Registry[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        place = tmp_path / str(number)
        install(place, monkeypatch, {"fifth": f"added_things:FIFTH_{number}"}, name=f"p-{number}")
    assert str(registry["half"]) == "1/2"
    with pytest.raises(UsageError) as raised:
        registry["fifth"]
    message = one_line(raised)
    assert message.startswith("two installed packages add a fraction 'fifth' (added_things:FIFTH_")
    assert message.endswith("): uninstall one of them")


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("raise RuntimeError('no licence')", "no licence"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("", "has no attribute 'FIFTH'"),
        ("FIFTH = 1 +", "invalid syntax"),
    ],
)
def test_an_import_that_fails_is_named_and_harms_no_other(
    registry: Registry[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    reason: str,
) -> None:
    install(tmp_path, monkeypatch, {"fifth": "added_things:FIFTH"}, module)
    with pytest.raises(UsageError) as raised:
        registry["fifth"]
    message = one_line(raised)
    assert message.startswith("fraction 'fifth' cannot be imported from added_things:FIFTH (")
    assert reason in message
    assert message.endswith("): mend or uninstall its package")
    assert str(registry["half"]) == "1/2"


def test_a_thing_of_another_type_is_refused(
    registry: Registry[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, {"fifth": "added_things:FIFTH"}, "FIFTH = 0.2\n")
    with pytest.raises(UsageError) as raised:
        registry["fifth"]
    assert one_line(raised) == (
        "fraction 'fifth': added_things:FIFTH is a float, but must be a fractions:Fraction"
    )


def test_an_error_of_a_packages_code_is_told_with_its_place(
    registry: Registry[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = {"fifth": "added_things:FIFTH"}
    module = "from fractions import Fraction\nFIFTH = Fraction(1, 5)\ndef fail(): return {}[5]\n"
    install(tmp_path, monkeypatch, points, module)
    assert registry["fifth"]
    with pytest.raises(UsageError) as raised, registry.blaming("fifth", by_itself=True):
        sys.modules["added_things"].fail()
    assert one_line(raised) == (
        "fraction 'fifth' fails in added_things.py, line 3 (KeyError: 5): mend its package"
    )
    with pytest.raises(UsageError) as raised, registry.blaming("fifth"):
        raise TypeError("it is no number")
    assert one_line(raised) == (
        "fraction 'fifth' fails (TypeError: it is no number): mend its package"
    )


@pytest.mark.parametrize(
    ("name", "by_itself", "error"),
    [
        ("half", False, TypeError),  # it is the library's own
        ("fifth", False, KeyError),  # so is the code that raises it
        ("fifth", True, TypeError),
        ("fifth", False, FederationError),
        ("fifth", False, FileNotFoundError),
    ],
)
def test_other_errors_stay_as_they_are(
    registry: Registry[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    by_itself: bool,
    error: type[Exception],
) -> None:
    install(tmp_path, monkeypatch, {"fifth": "added_things:FIFTH"}, "FIFTH = 0.2\n")
    with pytest.raises(error), registry.blaming(name, by_itself):
        raise error("no matter of a package")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("ccfcpp.clustering.methods", "METHODS"),
        ("supervised.classifiers", "CLASSIFIERS"),
    ],
)
def test_the_librarys_registries_list_their_names_without_torch(module: str, name: str) -> None:
    program = (
        f"import sys; from {module} import {name} as r; list(r); print('torch' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout == "False\n"
