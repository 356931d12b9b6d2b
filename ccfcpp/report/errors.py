"""Why a figure is left out."""


class CannotDrawError(Exception):
    """A figure cannot be drawn; the message says why, for the reader of a report."""
