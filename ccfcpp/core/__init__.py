"""What every other part may use: errors, configuration, randomness, metrics, files."""
