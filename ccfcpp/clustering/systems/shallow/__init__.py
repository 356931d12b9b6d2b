"""Systems without a network: they cluster pixels or vectors as they are."""
