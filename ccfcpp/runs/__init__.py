"""Runs: from clients to a folder of results, one run or many."""
