"""What the clients of CCFC and CCFC++ do in synchronised steps, those of one process together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.ccfc.centroids import CentroidRule
from ccfcpp.clustering.ccfc.config import LossConfig
from ccfcpp.clustering.ccfc.messages import LABELS, CCFCState, ClusterSizes
from ccfcpp.clustering.ccfc.network import ContrastiveModel
from ccfcpp.clustering.ccfc.pooled_losses import contrast_program, siamese_program
from ccfcpp.clustering.ccfc.representations import GlobalModel
from ccfcpp.clustering.kmeans.centroids import required_centroids
from ccfcpp.clustering.kmeans.sums import cluster_counts
from ccfcpp.core.config import ViewsConfig
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.augmentation import draw_views, render_views
from ccfcpp.data.images import to_float
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import SummedWork, Task
from ccfcpp.engine.synchronised.contract import Batch, Bounding, Known
from ccfcpp.engine.synchronised.descent import Turn
from ccfcpp.models.initialisation import build

_LABELS = "pseudo-labels"
"""The name under which a client remembers the pseudo-labels of its images."""

_ROUND = "round"
"""The name under which it remembers of which round they are."""


class TrainedModel:
    """The network of a process that goes through synchronised steps.

    Args:
        make_model: Builds the network; its weights come with the steps.
        device: Where it lives.
    """

    def __init__(self, make_model: Callable[[], ContrastiveModel], device: torch.device) -> None:
        # Batch statistics are the steps' affair.
        self.network = build(make_model, torch.Generator()).to(device).eval()
        self._loaded: int | None = None

    def load(self, known: Known) -> ContrastiveModel:
        """The network with the parameters of a step, which are copied into its own."""
        if self._loaded != known.version:
            self.network.load_state_dict(known.model)
            self._loaded = known.version
        return self.network


@dataclass(frozen=True)
class SiameseBatches:
    """Two random views of each image, for pre-training.

    Attributes:
        model: What is trained.
        loss: Weights of the loss terms.
        views: How far views are from their images.
    """

    model: TrainedModel
    loss: LossConfig
    views: ViewsConfig

    def batch(
        self, task: Task, known: Known, turns: Sequence[Turn], randomness: Randomness
    ) -> Batch | None:
        """Two views of the images whose turn it is."""
        model = self.model.load(known)
        with section("views"):
            pairs = [self._pair(known.version, each, randomness) for each in turns]
            shown = torch.stack([torch.cat(side) for side in zip(*pairs, strict=True)])
        if shown.shape[1] == 0:
            return None
        return Batch(partial(siamese_program, model, self.loss), (shown.transpose(0, 1),))

    def _pair(self, step: int, turn: Turn, randomness: Randomness) -> tuple[Tensor, Tensor]:
        client = turn.client
        shown = to_float(client.images[torch.cat([turn.chosen, turn.chosen])])
        if len(shown) == 0:
            return shown, shown
        generator = randomness.of_client(client.id).generator(f"views {step}")
        shape = (client.images.shape[2], client.images.shape[3])
        drawn = draw_views(len(shown), self.views, shape, generator).to(shown.device)
        first, second = render_views(shown, drawn).chunk(2)
        return first, second


@dataclass(frozen=True)
class LabelledBatches:
    """Images with their pseudo-labels, for cluster-contrastive training.

    Attributes:
        model: What is trained.
        loss: Weights of the loss terms.
        clusters: Number of clusters k.
    """

    model: TrainedModel
    loss: LossConfig
    clusters: int

    def batch(
        self, task: Task, known: Known, turns: Sequence[Turn], randomness: Randomness
    ) -> Batch | None:
        """Images whose turn it is; clients without labels of this round show none."""
        model = self.model.load(known)
        images, labels = [], []
        for turn in turns:
            memory = turn.client.memory
            if int(memory.get(_ROUND, torch.tensor(-1))) == task.round:
                images.append(to_float(turn.client.images[turn.chosen]))
                labels.append(memory[_LABELS][turn.chosen])
        if sum(map(len, labels)) == 0:
            return None
        make = partial(contrast_program, model, self.clusters, self.loss)
        return Batch(make, (torch.cat(images), torch.cat(labels)))


class Labelling(SummedWork[CCFCState, ClusterSizes]):
    """Pseudo-labels for a round, Eq. (1) of the paper: clients keep them, and send their numbers.

    Args:
        model: The global model.
        rule: How representations are assigned.
        bounding: Bounds what each image adds; None: nothing is bounded.
    """

    exchange = LABELS

    def __init__(self, model: GlobalModel, rule: CentroidRule, bounding: Bounding | None) -> None:
        self.model = model
        self.rule = rule
        self.bounding = bounding

    def local_sum(
        self, task: Task, message: CCFCState, clients: Sequence[Client], randomness: Randomness
    ) -> ClusterSizes:
        """Label each client's images by the global centroids."""
        centroids = required_centroids(message.centroids)
        counts = []
        for client in clients:
            seen = self.model.representations(message.model, message.version, client)
            labels = self.rule.assign(seen.latents, centroids)
            client.memory = {_LABELS: labels, _ROUND: torch.tensor(task.round)}
            members = F.one_hot(labels, self.rule.clusters)
            counts.append(cluster_counts(members, LABELS, self.bounding))
        return ClusterSizes(torch.stack(counts).sum(dim=0))
