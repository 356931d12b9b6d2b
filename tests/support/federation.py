"""Federations in this process, and transports that do to them what networks do."""

from collections.abc import Sequence
from typing import Any

import torch

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Algorithm
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client
from ccfcpp.engine.federation import Federation, in_process
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.transport import InProcess

CPU = torch.device("cpu")


def federated(
    system: str,
    algorithm: Algorithm[Any],
    clients: Sequence[Client],
    seed: int = 0,
    availability: Availability | None = None,
    memories: ClientMemories | None = None,
) -> Federation[Any, InProcess]:
    """All clients in this process."""
    return in_process(
        system,
        algorithm,
        clients,
        availability or Availability(),
        Randomness(seed),
        memories or ClientMemories(CPU, budget=10**9),
    )
