"""Methods of federated classification."""
