"""Fed-SCAN: neighbours inside each client, steps over all of them together."""
