"""Features of images that need no training: the sparse manifold transform, by pooled sums."""
