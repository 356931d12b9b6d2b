"""Secure sums: the server learns sums over clients, and no part of a client."""
