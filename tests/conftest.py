"""Settings of the whole suite."""

from hypothesis import settings

# The same examples on every run, and no timing: a busy machine must not fail a test.
settings.register_profile("ccfcpp", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("ccfcpp")
