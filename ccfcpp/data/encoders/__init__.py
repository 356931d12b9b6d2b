"""Pre-trained encoders, which clients use to embed photos and texts as vectors."""
