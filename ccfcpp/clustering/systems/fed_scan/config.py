"""The configuration of Fed-SCAN."""

from typing import Annotated, Literal

from pydantic import Field

from ccfcpp.core.config import BelowOne, Positive, Section, Share, Unused, Weight, require

Rate = Annotated[float, Field(gt=0, le=1000)]
"""A learning rate; the bound keeps arithmetic from overflowing."""


class ScanConfig(Section):
    """Fed-SCAN: its network, its steps and its objective."""

    encoder: Literal["mlp", "linear"] = "mlp"
    """Encoder of vectors: a hidden layer and the latents, or the latents alone."""
    stem: Annotated[int, Field(ge=0, le=4096, multiple_of=8)] = 0
    """Output channels of a convolution at full resolution before the others; 0 for none."""
    widths: tuple[Annotated[int, Field(ge=8, le=4096, multiple_of=8)], ...] = (32, 64, 128)
    """Output channels of the convolutions, each of which halves the resolution."""
    hidden: Positive = 256
    """Units of the hidden layer."""
    latent: Positive = 256
    """Latent dimensions."""
    normalisation: Literal["batch", "layer"] = "batch"
    """Normalisation of the latents: over the batches of all clients, or of each image by itself,
    which needs two exchanges a step less and reveals nothing of other images."""
    overclustering: Positive = 1
    """Clusters that a head learns for each one that is asked for. With more than one they are
    merged by how they go with those of neighbours and of other images of the same client. If the
    number of clusters is to be found there are two for each of the largest number."""
    merge: Literal["information", "both"] = "both"
    """By what over-clusters are merged: ``information`` counts clusters by their sizes, and joins
    small classes; with ``both`` it also counts how much each cluster stays together."""
    merged_from: Share = 1.0
    """Share of the steps after which clusters are trained as the last merge has them, and keep to
    the shares that it found; before, and with 1, all over-clusters are trained to be equal."""
    steps: Positive = 120
    """Steps of the whole run; MNIST's 70,000 images in 120 steps of 2,300 are four epochs."""
    batch: Annotated[int, Field(ge=2, le=10**6)] = 2300
    """Images of all clients that take part together in a step, each with one of its neighbours."""
    steps_per_round: Positive = 1
    """A client that misses a round misses so many steps in a row."""
    optimizer: Literal["muon", "adam"] = "muon"
    """``muon``: for the encoder's matrices, and Adam for the rest; ``adam``: for all."""
    learning_rate: Rate = 1.5e-3
    """Adam's rate in the first step; it falls along a cosine to 0."""
    matrix_rate: Rate = 0.007
    """Muon's rate in the first step; it falls in the same way."""
    lagged: bool = False
    """Whether a step takes the mean prediction and the gradient at the latents' statistics from the
    step before: two exchanges a step instead of four."""
    exact_steps: Positive = 1
    """Number of first steps that do not lag, while the model still changes fast."""
    precision: Literal["full", "bfloat16"] = "bfloat16"
    """Precision in which clients send gradients: as they are, or in 16 bits."""
    first_neighbours: Literal["pixels", "centred", "gradients"] = "pixels"
    """By what the first neighbours are alike: the pixels, the pixels without their mean over the
    client, or histograms of oriented gradients with histograms of colours beside them. Of vectors
    ``pixels`` are their numbers."""
    first_weight: Weight = 0.0
    """Weight of the features of ``first_neighbours`` beside the latents later; 0: latents alone."""
    pairs: Literal["neighbours", "views"] = "neighbours"
    """The partner of an image: one of its neighbours, or another view of itself, so that an
    image's part of a sum depends on that image alone."""
    pairs_each: Positive = 1
    """Pairs of an image in a step; its loss is their mean. More of them make steps slower, and what
    an image adds steadier (Hoffer et al. 2020), which helps if it is clipped and gets noise (De
    et al. 2022)."""
    neighbours: Positive = 10
    """Number of nearest images of the same client that an image is paired with, one at a time."""
    mine_every: Positive = 30
    """After so many steps neighbours are found anew, among the latents."""
    balance: Weight = 3.0
    """λ: weight of the entropy of the mean prediction, which keeps all clusters in use."""
    last_balance: Weight | None = None
    """λ at the end of the run, to which it falls along a cosine: a low one lets clusters find their
    sizes. None: it stays."""

    def unused(self) -> Unused:
        """Yield what belongs to another optimizer or to lagged steps."""
        if self.optimizer != "muon":
            yield "scan.matrix_rate", [require("scan.optimizer", "muon")]
        if not self.lagged:
            yield "scan.exact_steps", [require("scan.lagged")]

    @property
    def rounds(self) -> int:
        """Number of rounds that the configured steps take."""
        return -(-self.steps // self.steps_per_round)

    @property
    def period(self) -> int:
        """Number of rounds between two searches for neighbours."""
        return max(1, self.mine_every // self.steps_per_round)


class VectorViewsConfig(Section):
    """Random changes of vectors, as views of them; 0 turns a change off."""

    noise: Weight = 0.0
    """Standard deviation of the noise that is added to each number."""
    dropped: BelowOne = 0.0
    """Share of the numbers that become 0, which is the mean of a scaled column."""
