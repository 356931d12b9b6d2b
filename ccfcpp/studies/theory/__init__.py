"""The papers' mathematics beside simulated networks: ``ccfcpp verify-theory``."""
