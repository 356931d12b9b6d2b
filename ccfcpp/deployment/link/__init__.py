"""Parts that server and clients share: packets, messages and the HTTP calls that carry them."""
