"""Classical clusterings by sums over all clients, as exact as if all samples lay in one place."""
