"""Differential privacy: bounds, noise and the budget."""
