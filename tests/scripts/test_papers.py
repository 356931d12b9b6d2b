"""The page of the papers' claims, from what ``ccfcpp reproduce --json`` prints."""

import json
from pathlib import Path

from typer.testing import CliRunner

from scripts.papers import MARKER, app

TITLE = "CCFC++, Table I: NMI"


def entry(scale: str, *claims: tuple[str, int, int, list[int] | None, bool]) -> dict[str, object]:
    names = ("text", "held", "of", "paper", "stated")
    told = [dict(zip(names, claim, strict=True)) for claim in claims]
    command = f"ccfcpp reproduce ccfcpp-table1 # {scale}"
    return {
        "item": "ccfcpp-table1", "title": TITLE, "command": command, "scale": scale, "claims": told
    }  # fmt: skip


def test_each_claim_has_a_row_and_each_size_a_column(tmp_path: Path) -> None:
    quick = entry(
        "2 runs.",
        ("It is higher", 4, 5, [19, 20], True),
        ("It is best", 1, 1, None, True),
        ("It grows", 0, 3, None, False),
        ("It shrinks", 0, 0, [1, 4], True),
    )
    other = quick | {"item": "ccfcpp-figure2", "title": "CCFC++, Figure 2: covariance by p"}
    full = entry("9 runs.", ("It is higher", 1, 2, [19, 20], True))
    page = tmp_path / "papers.md"
    page.write_text(f"# By hand\n\n{MARKER}\nwhat was there\n")
    for name, items in {"a": [other, quick], "b": [full]}.items():
        (tmp_path / name).write_text(json.dumps({"items": items}))
    result = CliRunner().invoke(
        app, [str(tmp_path / "a"), str(tmp_path / "b"), "--page", str(page)]
    )
    assert result.exit_code == 0, result.output
    above, _, below = page.read_text().partition(MARKER)
    assert above == "# By hand\n\n"
    assert below.startswith(
        "\n| table or figure | ours | statements | hold | in most places | in half or fewer |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        f"| {TITLE} | 2 runs. | 2 | 1 | 1 | 0 |\n"
        f"| {TITLE} | 9 runs. | 1 | 0 | 0 | 1 |\n"
        "| CCFC++, Figure 2: covariance by p | 2 runs. | 2 | 1 | 1 | 0 |\n"
    )
    section = below[below.index(f"### {TITLE}\n") : below.index("### CCFC++, Figure 2")]
    assert section == (
        f"### {TITLE}\n\n"
        "| claim | the paper | 2 runs. | 9 runs. |\n"
        "| --- | --- | --- | --- |\n"
        "| It is higher | 19 of 20 | 4 of 5 | 1 of 2 |\n"
        "| It is best |  | 1 of 1 |  |\n"
        "| *It grows* |  | 0 of 3 |  |\n"
        "| It shrinks | 1 of 4 |  |  |\n"
        "\n```sh\nccfcpp reproduce ccfcpp-table1 # 2 runs.\n"
        "ccfcpp reproduce ccfcpp-table1 # 9 runs.\n```\n\n"
    )
