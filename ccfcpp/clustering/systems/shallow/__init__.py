"""Systems without a neural network, which cluster pixels or vectors."""
