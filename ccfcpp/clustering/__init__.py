"""Federated clustering systems, each as an algorithm of the engine."""
