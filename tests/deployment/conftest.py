"""Only where the extra ``flower`` is installed is there something to test."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority, a server's key for this machine and a client's key."""
    pytest.importorskip("cryptography")
    from ccfcpp.deployment.keys.creation import make_authority, make_client, make_server

    folder = tmp_path_factory.mktemp("federation") / "keys"
    make_authority(folder, 2)
    make_server(folder, "server.example.org", 2)
    make_client(folder, "clinic-1")
    return folder
