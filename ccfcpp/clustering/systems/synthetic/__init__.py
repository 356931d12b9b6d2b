"""Systems in which the server clusters images, real or synthetic ones, that clients send."""
