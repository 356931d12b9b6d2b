"""What a clustering is worth: scores by labels, measures without them, and how sure it is."""
