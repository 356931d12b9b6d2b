"""Studies of many runs: comparisons, and the papers' tables, figures and theorems."""
