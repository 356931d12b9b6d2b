"""Shared parts of server and clients: packets, messages and the calls that carry them."""
