"""The error of a figure that is left out."""


class CannotDrawError(Exception):
    """A figure cannot be drawn; the message gives the reason for the reader of a report.

    What a figure is drawn from, in ``Run`` and in the modules of figures, raises it where a run has
    no such numbers.
    """
