"""Settings of Fed-SCAN."""

from typing import Annotated, Literal

from pydantic import Field

from ccfcpp.core.config import BelowOne, Positive, Section, Share, Unused, Weight, require

Rate = Annotated[float, Field(gt=0, le=1000)]
"""A learning rate; the bound keeps arithmetic from overflowing."""


class ScanConfig(Section):
    """Settings of Fed-SCAN: its network, its steps and its objective."""

    encoder: Literal["mlp", "linear"] = "mlp"
    """Encoder of vectors: ``mlp``: a hidden layer and a linear one; ``linear``: only the latter."""
    stem: Annotated[int, Field(ge=0, le=4096, multiple_of=8)] = 0
    """Output channels of a first convolution at full resolution; 0 for none."""
    widths: tuple[Annotated[int, Field(ge=8, le=4096, multiple_of=8)], ...] = (32, 64, 128)
    """Output channels of the convolutions, each of which halves the resolution."""
    hidden: Positive = 256
    """Units of the hidden layer before the latents."""
    latent: Positive = 256
    """Number of latent dimensions."""
    normalisation: Literal["batch", "layer"] = "batch"
    """Normalisation of latents: over the batches of all clients, or of each image by itself, which
    takes two exchanges a step less, and reveals nothing of other images."""
    overclustering: Positive = 1
    """Number of over-clusters that the head learns per cluster. Above 1, over-clusters are merged
    if they are often those of neighbours, or of images of the same client. If k is chosen from the
    data, there are two per cluster of the largest candidate."""
    merge: Literal["information", "both"] = "both"
    """Measure that a merge of over-clusters maximises: ``information`` weights clusters by size,
    and may join small classes; ``both`` adds a measure that weights all clusters equally."""
    merged_from: Share = 1.0
    """Share of the steps after which training uses the clusters of the last merge, with their sizes
    as targets; before, over-clusters are trained to have equal sizes. 1: never."""
    steps: Positive = 120
    """Steps of the whole run; MNIST's 70,000 images in 120 steps of 2,300 are four epochs."""
    batch: Annotated[int, Field(ge=2, le=10**6)] = 2300
    """Number of images, of all clients together, in a step, each with one of its neighbours."""
    steps_per_round: Positive = 1
    """Number of steps in a round; a client that misses a round misses all of them."""
    optimizer: Literal["muon", "adam"] = "muon"
    """``muon``: Muon for the encoder's matrices, and Adam for the rest; ``adam``: Adam for all."""
    learning_rate: Rate = 1.5e-3
    """Adam's learning rate in the first step; it falls along a cosine to 0."""
    matrix_rate: Rate = 0.007
    """Muon's learning rate in the first step; it falls in the same way."""
    lagged: bool = False
    """Whether a step uses the mean prediction, and the gradients of the latents' statistics, of the
    step before: two exchanges a step instead of four."""
    exact_steps: Positive = 1
    """Number of first steps that do not use values of the step before, which still change fast."""
    precision: Literal["full", "bfloat16"] = "bfloat16"
    """Precision in which clients send gradients: unrounded, or in 16 bits."""
    first_neighbours: Literal["pixels", "centred", "gradients"] = "pixels"
    """Features by which the first neighbours are found: pixels (of vectors: their elements), pixels
    minus the client's mean image, or histograms of oriented gradients and of colours."""
    first_weight: Weight = 0.0
    """Weight of the features of ``first_neighbours`` in later searches; 0: only latents count."""
    pairs: Literal["neighbours", "views"] = "neighbours"
    """Partner of an image in a pair: one of its neighbours, or another view of itself; then what it
    adds to a sum depends on this image alone."""
    pairs_each: Positive = 1
    """Number of pairs of an image in a step, over which its loss is averaged. More pairs make steps
    slower and gradients less noisy (Hoffer et al. 2020), which helps with differential privacy (De
    et al. 2022)."""
    neighbours: Positive = 10
    """Number of nearest images of the same client, one of which is drawn for each pair."""
    mine_every: Positive = 30
    """Number of steps after which neighbours are searched anew, by the latents."""
    balance: Weight = 3.0
    """Weight λ of the entropy of the mean prediction, which keeps all clusters in use."""
    last_balance: Weight | None = None
    """λ at the end of the run, to which it falls along a cosine; a low value lets cluster sizes
    differ. null: λ stays the same."""

    def unused(self) -> Unused:
        """Yield the settings of an optimizer, or of lagged steps, that the run does not have."""
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
    """Settings of random views of vectors; 0 turns a change off."""

    noise: Weight = 0.0
    """Standard deviation of the noise that is added to each element."""
    dropped: BelowOne = 0.0
    """Share of the elements that are set to 0, which is the mean of a scaled column."""
