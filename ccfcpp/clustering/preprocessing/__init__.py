"""Phases in which clients prepare their data together, before any system begins."""
