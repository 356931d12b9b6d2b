"""For a process whose ``PYTHONPATH`` names this folder: the clock of its machine jumps."""

from tests.support.clocks import follow_time

follow_time()
