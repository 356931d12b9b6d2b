"""The systems of federated clustering, each in a package of its own."""
