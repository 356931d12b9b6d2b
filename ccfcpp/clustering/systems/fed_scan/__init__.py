"""Fed-SCAN: neighbours within each client, training steps over all clients together."""
