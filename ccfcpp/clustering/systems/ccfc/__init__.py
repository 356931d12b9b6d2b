"""CCFC and CCFC++: cluster-contrastive federated clustering."""
