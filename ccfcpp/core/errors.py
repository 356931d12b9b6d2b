"""Errors that a user sees as one line."""


class UsageError(ValueError):
    """The user has asked for something that cannot be done.

    The message is one line that names the value, the rule and the remedy; commands print it alone.
    """


class FederationError(RuntimeError):
    """A run cannot continue, although everything that the user asked for is valid."""


class StoppedError(Exception):
    """A run was asked to stop, and has stopped after a checkpoint."""
