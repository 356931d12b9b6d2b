"""Orchestra: networks that clients train to agree on equally large clusters of all images."""
