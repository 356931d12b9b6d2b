"""The federated clustering methods (systems); each package holds related ones."""
