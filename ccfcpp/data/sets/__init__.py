"""The named data sets, a module each; two that are published alike share one."""
