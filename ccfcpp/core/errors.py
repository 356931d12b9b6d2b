"""Errors that a user can mend."""


class UsageError(ValueError):
    """What was asked for cannot be done.

    The message is one line that names the value, the rule and the mend. The command line prints it
    without a traceback and exits with code 2.
    """


class FederationError(RuntimeError):
    """A run cannot go on, though nothing that the user asked for was wrong."""


class StoppedError(Exception):
    """A run was asked to stop, and did after a checkpoint."""
