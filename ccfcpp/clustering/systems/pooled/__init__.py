"""Classical clusterings by sums over all clients, as exact as with all samples in one place."""
