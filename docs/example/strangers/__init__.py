"""What a package adds to ccfcpp: systems, a network, a method and a data set."""
