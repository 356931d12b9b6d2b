"""What both ends share: packets, messages and the calls that carry them."""
