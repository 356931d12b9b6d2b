"""What protects images beside their staying where they are: secure sums, differential privacy."""
