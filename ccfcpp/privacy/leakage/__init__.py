"""Attacks on a finished run: what it tells of the images that it was made of."""
