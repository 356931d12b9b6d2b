"""Reports of runs: figures, tables and an HTML page."""
