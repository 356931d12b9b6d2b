"""Keys and certificates of a federation, and its roster: the list of its clients' public keys."""
