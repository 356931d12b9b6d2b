"""The named data sets; those of one publication form share a module."""
