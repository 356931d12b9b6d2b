"""The methods of federated classification, a module each."""
