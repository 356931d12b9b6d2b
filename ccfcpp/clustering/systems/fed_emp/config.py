"""The configuration of Fed-EMP's encoder. The defaults are for small colour photos."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from ccfcpp.core.config import Positive, Section, Share, Weight

_Channels = Annotated[int, Field(ge=8, le=4096, multiple_of=8)]
_Rate = Annotated[float, Field(gt=0, le=1000)]


class CropsConfig(Section):
    """An encoder that learns the features that crops of one image share."""

    steps: Positive = 1200
    """Steps of the encoder; 1200 show each of 60,000 images four times, in 8 crops each time."""
    batch: Annotated[int, Field(ge=2, le=10**6)] = 200
    """Images of all clients that take part together in a step."""
    each: Annotated[int, Field(ge=2, le=1000)] = 8
    """Crops of an image in a step, half as wide as the image."""
    grid: Annotated[int, Field(ge=2, le=32)] = 5
    """Crops a side of which the latent of an image is the mean, once the encoder has learnt. They
    are changed in colour (``intensity``). More describe an image better, and take longer."""
    steps_per_round: Positive = 20
    """Steps of a round."""
    widths: tuple[_Channels, ...] = (32, 64, 128, 256)
    """Output channels of convolutions of 3 by 3 pixels. The resolution is halved before each but
    the first two."""
    hidden: Positive = 512
    """Units of each hidden layer behind the convolutions."""
    latent: Positive = 128
    """Latent dimensions."""
    weight: Weight = 200.0
    """λ: weight of what crops have in common, beside the coding rate, which keeps latents apart."""
    flip_probability: Share = 0.5
    """Probability that a crop is mirrored."""
    learning_rate: _Rate = 2e-3
    """Adam's rate in the first step, for biases and norms; it falls along a cosine to 0."""
    matrix_rate: _Rate = 0.005
    """Muon's rate in the first step, for matrices; it falls in the same way."""
    gradients: Literal["full", "bfloat16"] = "bfloat16"
    """Gradients on their way to the server: as they are, or in 16 bits."""

    loss: Annotated[Literal["rate"], Field(exclude=True)] = "rate"
    """Runs of earlier versions could choose what keeps latents apart."""

    @field_validator("weight", mode="before")
    @classmethod
    def _none_was_the_default(cls, value: object) -> object:
        return 200.0 if value is None else value

    @property
    def rounds(self) -> int:
        """Number of rounds that the configured steps take."""
        return -(-self.steps // self.steps_per_round)
