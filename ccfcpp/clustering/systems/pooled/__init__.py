"""Classical clustering from sums over all clients: results as with all samples in one place."""
