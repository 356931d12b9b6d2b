"""``python -m ccfcpp``."""

from ccfcpp.cli.app import main

main()
