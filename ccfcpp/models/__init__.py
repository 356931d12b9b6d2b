"""Networks: encoders, heads, and their initialisation from a given source of random numbers."""
