"""Hostile clients, and what the server does against them."""
