"""The server of a federation over several machines."""
