"""Keys, certificates and the roster of a federation."""
