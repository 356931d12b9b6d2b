"""Readable forms of counts and sizes."""


def counted(count: int, noun: str) -> str:
    """Format a number of things."""
    return f"{count:,} {noun}" + "s" * (count != 1)


def bytes_in_words(count: int) -> str:
    """Format a number of bytes in the largest unit of which there is at least one."""
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} bytes"
