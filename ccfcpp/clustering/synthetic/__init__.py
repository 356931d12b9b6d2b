"""Systems in which images go up, clients' own or synthetic ones, and the server clusters them."""
