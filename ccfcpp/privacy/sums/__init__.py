"""Secure sums: the server learns only the sum over clients, and no client's part."""
