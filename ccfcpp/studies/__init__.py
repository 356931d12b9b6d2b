"""Many runs beside each other: comparisons, and the papers' tables, figures and theorems."""
