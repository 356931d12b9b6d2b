"""All statements, and the numbers behind them as tables."""

from collections.abc import Callable

from ccfcpp.core.randomness import Randomness
from ccfcpp.studies.theory.alignment import alignment_statements
from ccfcpp.studies.theory.proposition import proposition_statements
from ccfcpp.studies.theory.statements import Row, Statement
from ccfcpp.studies.theory.theorems import theorem_1_statements, theorem_iii_4_statements

_CHECKS: dict[str, tuple[str, Callable[[Randomness], tuple[list[Statement], list[Row]]]]] = {
    "FedDecorr, Proposition 1": ("", lambda randomness: (proposition_statements(randomness), [])),
    "FedDecorr, Theorem 1": ("theorem-1-singular-values", theorem_1_statements),
    "Alignment (digits, 3 layers)": ("alignment", alignment_statements),
    "CCFC++, Theorem III.4": ("theorem-iii-4-singular-values", theorem_iii_4_statements),
}
"""By subject, in the order of the papers: the name of the table, and what checks."""


def verify(
    seed: int, note: Callable[[str], None] = lambda _: None
) -> tuple[dict[str, list[Statement]], dict[str, list[Row]]]:
    """Check all statements, in the order of the papers; ``note`` gets each subject that comes next.

    Returns:
        The statements by subject, and the rows of each CSV file by its name without the suffix.
    """
    found: dict[str, list[Statement]] = {}
    tables: dict[str, list[Row]] = {"statements": []}
    for subject, (name, check) in _CHECKS.items():
        note(subject)
        found[subject], rows = check(Randomness(seed))
        tables["statements"] += [{"subject": subject} | each.as_json() for each in found[subject]]
        tables |= {name: rows} if name else {}
    return found, tables
