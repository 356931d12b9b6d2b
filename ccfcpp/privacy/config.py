"""What a run does for privacy. Importing this module imports no network library."""

from ccfcpp.core.config import Section


class PrivacyConfig(Section):
    """Protection beyond images staying with their clients."""
