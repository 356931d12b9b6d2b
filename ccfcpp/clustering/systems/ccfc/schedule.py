"""The order of phases in a run of CCFC and CCFC++."""

import math
from dataclasses import dataclass

from ccfcpp.clustering.systems.ccfc.config import TrainingConfig
from ccfcpp.clustering.systems.fed_scan.config import ScanConfig
from ccfcpp.core.config import RunConfig


@dataclass(frozen=True)
class Schedule:
    """The phases of a run, from which server and clients read what a round does.

    Attributes:
        training: Settings of rounds and learning rates.
        from_global: Whether clients cluster the *global* model's representations.
        first_from_global: Whether they do so for the first centroids, after pre-training.
    """

    training: TrainingConfig
    from_global: bool
    first_from_global: bool = False

    @property
    def rounds(self) -> int:
        """Number of pre-training and cluster-contrastive rounds together."""
        return self.training.pretrain_rounds + self.training.rounds

    def pretrains(self, number: int) -> bool:
        """Return whether round ``number`` belongs to pre-training."""
        return number < self.training.pretrain_rounds

    def ends_with_centroids(self, number: int) -> bool:
        """Return whether a round ends with centroids; the first ones end pre-training."""
        return number >= self.training.pretrain_rounds - 1

    def trained_give_centroids(self, number: int) -> bool:
        """Return whether clients cluster their own trained models' representations."""
        return self.ends_with_centroids(number) and not self.global_gives_centroids(number)

    def global_gives_centroids(self, number: int) -> bool:
        """Return whether the centroids of round ``number`` come from the averaged model."""
        return self.from_global or (self.first_from_global and self.pretrains(number))


def training_of(config: RunConfig) -> TrainingConfig:
    """Return the section ``training``, with the rounds that pre-training by neighbours takes."""
    training = config.section(TrainingConfig)
    if training.pretraining == "siamese":
        return training
    return training.model_copy(update={"pretrain_rounds": config.section(ScanConfig).rounds})


def contrast_learning_rate(training: TrainingConfig, number: int) -> float:
    """Return the learning rate of round ``number``, counted from the start of the run.

    With the cosine schedule (Loshchilov and Hutter 2017, without restarts) it starts at the
    configured rate in the first cluster-contrastive round and would reach 0 after the last.
    """
    if training.schedule == "constant":
        return training.learning_rate
    done = (number - training.pretrain_rounds) / training.rounds
    return training.learning_rate * (1 + math.cos(math.pi * done)) / 2
