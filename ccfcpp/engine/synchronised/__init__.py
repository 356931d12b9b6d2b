"""Synchronised steps: training in which every step is one over the batches of all clients."""
