"""Judge a clustering: scores by labels, measures without them, and how sure it is."""
