"""Models of one shape that are trained side by side as one network."""
