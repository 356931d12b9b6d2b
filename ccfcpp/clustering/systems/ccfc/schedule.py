"""The order of phases in a run of CCFC and CCFC++."""

import math
from dataclasses import dataclass

from ccfcpp.clustering.systems.ccfc.config import TrainingConfig
from ccfcpp.clustering.systems.fed_scan.config import ScanConfig
from ccfcpp.core.config import RunConfig


@dataclass(frozen=True)
class Schedule:
    """Order of the phases of a run: what server and clients do in each round.

    Attributes:
        training: Settings of rounds and learning rates.
        from_global: Whether clients cluster representations by the *global* model; if not, by
            the models that they have just trained.
        first_from_global: The same for the first centroids, after pre-training.
    """

    training: TrainingConfig
    from_global: bool
    first_from_global: bool = False

    @property
    def rounds(self) -> int:
        """Number of rounds: pre-training plus cluster-contrastive ones."""
        return self.training.pretrain_rounds + self.training.rounds

    def is_pretraining(self, number: int) -> bool:
        """Return whether round ``number`` belongs to pre-training."""
        return number < self.training.pretrain_rounds

    def ends_with_centroids(self, number: int) -> bool:
        """Return whether a round ends with new centroids, from the last of pre-training on."""
        return number >= self.training.pretrain_rounds - 1

    def local_models_give_centroids(self, number: int) -> bool:
        """Return whether each client clusters latents of its own trained model in a round."""
        return self.ends_with_centroids(number) and not self.global_model_gives_centroids(number)

    def global_model_gives_centroids(self, number: int) -> bool:
        """Return whether clients cluster latents of the averaged model in a round."""
        return self.from_global or (self.first_from_global and self.is_pretraining(number))


def training_settings(config: RunConfig) -> TrainingConfig:
    """Return the section ``training``; pre-training by neighbours gets Fed-SCAN's rounds."""
    training = config.section(TrainingConfig)
    if training.pretraining == "siamese":
        return training
    return training.model_copy(update={"pretrain_rounds": config.section(ScanConfig).rounds})


def contrast_learning_rate(training: TrainingConfig, number: int) -> float:
    """Return the learning rate of a cluster-contrastive round; ``number`` counts all rounds.

    With the cosine schedule (Loshchilov and Hutter 2017, without restarts) it starts at the
    configured rate in the first cluster-contrastive round and would reach 0 after the last.
    """
    if training.schedule == "constant":
        return training.learning_rate
    done = (number - training.pretrain_rounds) / training.rounds
    return training.learning_rate * (1 + math.cos(math.pi * done)) / 2
