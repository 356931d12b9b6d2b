"""A client of a federation over several machines."""
