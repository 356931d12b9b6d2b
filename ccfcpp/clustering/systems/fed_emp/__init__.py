"""Fed-EMP: an encoder trained on small crops of all clients' images, then k-means."""
