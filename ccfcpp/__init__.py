"""Federated clustering of images: CCFC++ and the systems it is compared with, on one engine."""

__version__ = "0.1.0"
