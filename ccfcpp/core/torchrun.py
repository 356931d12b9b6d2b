"""Facts that ``torchrun`` leaves in the environment of the processes that it starts."""

import os


def process_count() -> int:
    """Return how many processes ``torchrun`` has started, on all machines; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Return this process's number among those that ``torchrun`` started, from 0; 0 without it."""
    return int(os.environ.get("RANK", "0"))
