"""Pre-trained encoders, which turn photos and texts into vectors at the client that holds them."""
