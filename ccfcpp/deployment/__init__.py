"""Federations over several machines: server, clients, keys and messages."""
