"""Simulations of the papers' theorems: ``ccfcpp verify-theory``."""
