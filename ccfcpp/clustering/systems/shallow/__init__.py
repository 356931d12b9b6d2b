"""Systems without a network: they cluster the pixels."""
