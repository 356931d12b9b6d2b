"""Evaluation of a clustering: scores by labels, measures without them, and confidence."""
