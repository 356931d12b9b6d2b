"""All statements, and the numbers behind them as tables."""

from collections.abc import Callable

from ccfcpp.core.randomness import Randomness
from ccfcpp.papers.theory.alignment import alignment_statements
from ccfcpp.papers.theory.proposition import proposition_statements
from ccfcpp.papers.theory.statements import Row, Statement
from ccfcpp.papers.theory.theorem_1 import theorem_1_statements
from ccfcpp.papers.theory.theorem_iii_4 import theorem_iii_4_statements


def verify(
    seed: int, note: Callable[[str], None] = lambda _: None
) -> tuple[list[Statement], dict[str, list[Row]]]:
    """Check all statements, in the order of the papers; ``note`` gets each subject that comes next.

    Returns:
        The statements, and the rows of each CSV file by its name without the suffix.
    """
    randomness = Randomness(seed)
    note("Proposition 1")
    proposition = proposition_statements(randomness)
    note("Theorem 1 of FedDecorr")
    first, of_classification = theorem_1_statements(randomness)
    note("alignment on the digits")
    alignment, maps = alignment_statements(randomness)
    note("Theorem III.4 of CCFC++")
    second, of_contrast = theorem_iii_4_statements(randomness)
    statements = [*proposition, *first, *alignment, *second]
    tables = {
        "statements": [each.as_json() for each in statements],
        "alignment": [row for each in maps for row in each.rows],
        "theorem-1-singular-values": of_classification,
        "theorem-iii-4-singular-values": of_contrast,
    }
    return statements, tables
