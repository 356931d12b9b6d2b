"""Methods of federated classification, with a module for each."""
