"""Reports of runs: their numbers, figures of them, and a page."""
