"""Federated clustering: systems, settings, runs and evaluation."""
