"""Protection of images beyond keeping them at clients: secure sums, differential privacy."""
