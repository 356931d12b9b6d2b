"""Runs: their settings, rounds, checkpoints and evaluation, and their folders of results."""
