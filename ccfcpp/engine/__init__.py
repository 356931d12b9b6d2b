"""The engine: one loop that runs every federated system of the library."""
