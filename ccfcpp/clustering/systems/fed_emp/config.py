"""Settings of Fed-EMP's encoder. The defaults are for small colour photos."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from ccfcpp.core.config import Positive, Section, Share, Weight

_Channels = Annotated[int, Field(ge=8, le=4096, multiple_of=8)]
_Units = Annotated[int, Field(ge=1, le=4096)]
_Rate = Annotated[float, Field(gt=0, le=1000)]


class CropsConfig(Section):
    """Settings of Fed-EMP's encoder, which learns the features that crops of an image share."""

    steps: Positive = 1200
    """Training steps; 1200 show each of 60,000 images four times, in 8 crops each time."""
    batch: Annotated[int, Field(ge=2, le=10**6)] = 200
    """Number of images, of all clients together, in a step."""
    each: Annotated[int, Field(ge=2, le=1000)] = 8
    """Number of crops of an image in a step; each is half as wide as the image."""
    described_grid: Annotated[int, Field(ge=2, le=32)] = 3
    """After training, an image's latent is the mean over this many crops a side, squared; they are
    changed in colour (``intensity``)."""
    described_side: Annotated[float, Field(ge=0.5, le=1)] = 0.75
    """Side of these crops, as a share of the image's shorter side. Clusters are better by larger
    crops than those of the steps, which are half as wide as the image."""
    steps_per_round: Positive = 20
    """Number of steps in a round."""
    widths: tuple[_Channels, ...] = (32, 64, 128, 256)
    """Output channels of the 3 by 3 convolutions. The resolution is halved before each, except the
    first two."""
    hidden: _Units = 512
    """Units of each of the two hidden layers after the convolutions."""
    latent: _Units = 128
    """Number of latent dimensions."""
    weight: Weight = 200.0
    """Weight λ of the agreement between crops of an image; the coding rate, which keeps latents
    apart, has the weight 1."""
    flip_probability: Share = 0.5
    """Probability that a crop is mirrored."""
    learning_rate: _Rate = 2e-3
    """Adam's first learning rate, for biases and norms; it falls to 0 along a cosine."""
    matrix_rate: _Rate = 0.005
    """Muon's first learning rate, for matrices; it falls in the same way."""
    gradients: Literal["full", "bfloat16"] = "bfloat16"
    """Precision in which clients send gradients: unrounded, or in 16 bits."""

    loss: Annotated[Literal["rate"], Field(exclude=True)] = "rate"
    """The loss term that keeps latents apart; only runs of earlier versions could choose it."""
    grid: Annotated[int | None, Field(exclude=True)] = None
    """``described_grid`` in runs of earlier versions, whose crops had half of the image's side."""

    @field_validator("weight", mode="before")
    @classmethod
    def _none_was_the_default(cls, value: object) -> object:
        return 200.0 if value is None else value

    @model_validator(mode="before")
    @classmethod
    def _read_grid(cls, values: object) -> object:
        if isinstance(values, dict) and "grid" in values:
            values = values | {"described_grid": values["grid"], "described_side": 0.5}
            del values["grid"]
        return values

    @property
    def rounds(self) -> int:
        """Number of rounds that the configured steps take."""
        return -(-self.steps // self.steps_per_round)
