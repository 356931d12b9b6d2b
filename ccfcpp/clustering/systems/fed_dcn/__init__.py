"""FedDCN: deep clustering networks at the clients, then at the server, then in rounds."""
