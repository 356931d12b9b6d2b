"""Stripes in four directions, which three farms hold."""

from pathlib import Path

import torch

from ccfcpp.plugin import DataSet, ImageData


class Stripes(DataSet):
    """Made when it is asked for: there is nothing to download."""

    def place(self, root: Path) -> str:
        """Return in words where the data set lies."""
        return "made on the spot"

    def load(self, root: Path) -> ImageData:
        """Make the images."""
        generator = torch.Generator().manual_seed(0)
        labels = torch.arange(self.images) % self.classes
        down, across = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
        waves = torch.stack([down, across, down + across, down - across])[labels] % 4 < 2
        noise = torch.randint(0, 56, waves.shape, generator=generator)
        return ImageData(
            self.name,
            (200 * waves + noise).to(torch.uint8).unsqueeze(1),
            labels,
            ("across", "down", "falling", "rising"),
            owners=torch.arange(self.images) * 3 // self.images,
            owner_names=("north", "south", "west"),
        )


STRIPES = Stripes(name="stripes", images=200, classes=4, shape=(1, 8, 8))
