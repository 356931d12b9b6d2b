"""A run from its clients to its folder, and many runs together."""
