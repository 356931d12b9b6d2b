"""Preprocessing fitted over all clients before clustering begins."""
