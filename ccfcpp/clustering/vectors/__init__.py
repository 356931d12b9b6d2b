"""What clients make of vectors before a system sees them: by sums over all clients."""
