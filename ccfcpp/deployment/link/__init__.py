"""What both ends share: packets, messages, sockets and processes."""
