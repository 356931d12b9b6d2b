"""Foundations of all other parts: errors, configuration, randomness, metrics, files."""
