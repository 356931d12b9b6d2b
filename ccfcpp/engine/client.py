"""A client: its images and what it remembers."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass
class Client:
    """One holder of images, which never leave it.

    Attributes:
        id: The client's number; it seeds the client's random numbers.
        name: What reports call it.
        images: uint8 tensor of shape (samples, channels, height, width).
        memory: What the client keeps from round to round, such as optimizer moments. It is saved
            with the checkpoint and travels nowhere.
        scratch: What it could compute again, such as the frozen model's representations. It is
            never saved.
    """

    id: int
    name: str
    images: Tensor
    memory: dict[str, Tensor] = field(default_factory=dict)
    scratch: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.images)
