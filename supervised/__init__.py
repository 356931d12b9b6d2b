"""Federated classification on ccfcpp's engine: FedDecorr and what it is compared with."""
