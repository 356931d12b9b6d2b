"""Classical clustering from sums over all clients: results are those of pooled data."""
