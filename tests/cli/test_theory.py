"""The command: one JSON object, tables, CSV files, and one line where something does not fit."""

import csv
import json
from pathlib import Path

import pytest

from ccfcpp.studies.theory import theorems
from ccfcpp.studies.theory.claim_checks import equal
from tests.support.command import Result, ccfcpp, refused, succeeded

nightly = pytest.mark.nightly("ccfcpp/studies/theory", "ccfcpp/cli/theory.py")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    out = tmp_path_factory.mktemp("theory") / "numbers"
    return ccfcpp("verify-theory", "--seed", "1", "--json", "--out", out), out


@nightly
def test_json_is_one_object_with_every_statement(result: tuple[Result, Path]) -> None:
    found = json.loads(result[0].stdout)
    assert result[0].code == 0
    assert found["seed"] == 1
    assert found["out"] == str(result[1])
    subjects = {each["subject"].split(",")[0] for each in found["statements"]}
    assert subjects == {"FedDecorr", "Alignment (digits", "CCFC++"}
    verdicts = {each["text"]: each["verdict"] for each in found["statements"]}

    def verdict(start: str) -> str:
        (only,) = (value for text, value in verdicts.items() if text.startswith(start))
        return str(only)

    # What must come out so for any seed: the derivations that are right, and the slips.
    assert verdict("Eq. (32) as printed, all samples") == "holds"
    assert verdict("Eq. (32) as printed, with N G") == "fails"
    assert verdict("Eq. (44), with (y - softmax)") == "holds"
    assert verdict("Eq. (7) as printed (diagonal") == "fails"
    assert verdict("Eq. (7) with the full Jacobian") == "holds"
    assert verdict("the same with 1/n_c") == "fails"
    assert verdict("Eq. (7), full Jacobian, predictor of 2 layers, with power L2/2") == "holds"
    assert verdict("Eq. (7), full Jacobian, predictor of 2 layers, as printed") != "holds"


@nightly
def test_csv_files_hold_the_numbers(result: tuple[Result, Path]) -> None:
    names = {path.name for path in result[1].iterdir()}
    assert names == {
        "alignment.csv", "statements.csv",
        "theorem-1-singular-values.csv", "theorem-iii-4-singular-values.csv",
    }  # fmt: skip
    with (result[1] / "alignment.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["time"] for row in rows} == {"0", "28", "47", "66", "84"}
    with (result[1] / "statements.csv").open(newline="") as file:
        statements = list(csv.DictReader(file))
    assert len(statements) == len(json.loads(result[0].stdout)["statements"])


def test_a_table_has_every_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [equal("a = b", 1.0, 1.0), equal("b = c", 1.0, 2.0)]
    monkeypatch.setattr(theorems, "verify_statements", lambda seed, say: ({"Lemma 1": made}, {}))
    shown = succeeded("verify-theory", "--seed", 7).stdout
    for words in ("Lemma 1", "a = b", "holds", "b = c", "fails", "seed 7"):
        assert words in shown


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--seed", "x"), "--seed"),
        (("--steps", "3"), "--steps"),
        (("--out", "full"), "not empty"),
        (("--out", "full/file"), "give another --out"),
    ],
)
def test_bad_input_gives_one_line(
    arguments: tuple[str, str], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert part in refused("verify-theory", *arguments)
