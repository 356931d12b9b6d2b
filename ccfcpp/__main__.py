"""``python -m ccfcpp``."""

from ccfcpp.cli import main

main()
