"""k-means at the server and at the clients, and fuzzy c-means."""
