"""A federation over several machines."""
