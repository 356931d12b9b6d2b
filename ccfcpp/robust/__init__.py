"""Attacks of hostile clients, and the server's defences against them."""
