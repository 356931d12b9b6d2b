"""Systems whose clients send images, their own or synthetic ones, which the server clusters."""
