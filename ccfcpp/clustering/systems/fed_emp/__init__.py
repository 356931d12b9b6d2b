"""Fed-EMP: an encoder that learns from small crops of all clients' images, then k-means."""
