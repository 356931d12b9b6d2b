"""The command line, ``ccfcpp``: a module for each command, and what they share."""
