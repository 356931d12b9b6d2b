"""Quantities for people."""


def counted(count: int, noun: str) -> str:
    """A number of things."""
    return f"{count:,} {noun}" + "s" * (count != 1)


def bytes_in_words(count: int) -> str:
    """A number of bytes, in the unit that leaves it a digit before the point."""
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} bytes"
