"""The named data sets; those published in the same file format share a module."""
