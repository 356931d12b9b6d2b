"""What the clients of CCFC and CCFC++ do in synchronised steps, those of one process together."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.ccfc.centroids import CentroidRule
from ccfcpp.clustering.ccfc.config import LossConfig, TrainingConfig
from ccfcpp.clustering.ccfc.messages import LABELS, CCFCState, ClusterSizes
from ccfcpp.clustering.ccfc.network import ContrastiveModel
from ccfcpp.clustering.ccfc.pooled_losses import contrast_program, siamese_program
from ccfcpp.clustering.ccfc.representations import GlobalModel
from ccfcpp.clustering.kmeans.centroids import required_centroids
from ccfcpp.core.config import ViewsConfig
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.augmentation import draw_views, render_views
from ccfcpp.data.images import to_float
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import SummedWork, Task
from ccfcpp.engine.synchronised.messages import Known
from ccfcpp.engine.synchronised.turns import Turn
from ccfcpp.models.initialisation import build
from ccfcpp.models.pooled import Program
from ccfcpp.privacy.cluster_sums import cluster_counts
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.image_steps import over_all
from ccfcpp.privacy.image_sums import Make, Shown

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


class _Batches:
    """The images of clients whose turn it is.

    Args:
        model: What is trained.
        training: The size of batches.
        loss: Weights of the loss terms.
        samples: Images of all clients of the run.
        turn: Which images of a client take part in a step.
    """

    def __init__(
        self,
        model: TrainedModel,
        training: TrainingConfig,
        loss: LossConfig,
        samples: int,
        turn: Turn,
    ) -> None:
        self.model = model
        self.batch = training.synchronised_batch
        self.loss = loss
        self.samples = samples
        self.turn = turn

    def chosen(self, step: int, client: Client, randomness: Randomness) -> Tensor:
        """int64 indices of a client's images; none where no image's turn falls into this step."""
        share = self.batch * len(client) / self.samples
        source = randomness.of_client(client.id)
        return self.turn(len(client), share, step, source).to(client.images.device)


class SiameseBatches(_Batches):
    """Two random views of each image, for pre-training.

    Args:
        views: How far views are from their images.
        model, training, loss, samples, turn: What all batches have.
    """

    def __init__(
        self,
        views: ViewsConfig,
        model: TrainedModel,
        training: TrainingConfig,
        loss: LossConfig,
        samples: int,
        turn: Turn,
    ) -> None:
        super().__init__(model, training, loss, samples, turn)
        self.views = views

    def begin(
        self, task: Task, known: Known, clients: Sequence[Client], randomness: Randomness
    ) -> Program | None:
        """The program of a step of some clients."""
        model = self.model.load(known)
        views = self._views(known.version, clients, randomness)
        return siamese_program(model, views, self.loss) if len(views) else None

    def begin_images(
        self, task: Task, known: Known, clients: Sequence[Client], randomness: Randomness
    ) -> tuple[Make, Shown] | None:
        """What makes the program of one image, and two views of each image whose turn it is."""
        make = partial(siamese_program, self.model.load(known), weights=self.loss)
        views = self._views(known.version, clients, randomness)
        return (make, (torch.stack(views.chunk(2), dim=1),)) if len(views) else None

    def _views(self, step: int, clients: Sequence[Client], randomness: Randomness) -> Tensor:
        """First views of the images whose turn it is, of all clients, then second views."""
        with section("views"):
            pairs = [self._pair(step, client, randomness) for client in clients]
            return torch.cat([view for side in zip(*pairs, strict=True) for view in side])

    def _pair(self, step: int, client: Client, randomness: Randomness) -> tuple[Tensor, Tensor]:
        chosen = self.chosen(step, client, randomness)
        shown = to_float(client.images[torch.cat([chosen, chosen])])
        if len(shown) == 0:
            return shown, shown
        generator = randomness.of_client(client.id).generator(f"views {step}")
        shape = (client.images.shape[2], client.images.shape[3])
        drawn = draw_views(len(shown), self.views, shape, generator).to(shown.device)
        first, second = render_views(shown, drawn).chunk(2)
        return first, second


class LabelledBatches(_Batches):
    """Images with their pseudo-labels, for cluster-contrastive training.

    Args:
        clusters: Number of clusters k.
        model, training, loss, samples, turn: What all batches have.
    """

    def __init__(
        self,
        clusters: int,
        model: TrainedModel,
        training: TrainingConfig,
        loss: LossConfig,
        samples: int,
        turn: Turn,
    ) -> None:
        super().__init__(model, training, loss, samples, turn)
        self.clusters = clusters

    def begin(
        self, task: Task, known: Known, clients: Sequence[Client], randomness: Randomness
    ) -> Program | None:
        """The program of a step of some clients; those without labels of this round sit it out."""
        model = self.model.load(known)
        images, labels = self._labelled(task, known.version, clients, randomness)
        if len(labels) == 0:
            return None
        return contrast_program(model, images, labels, self.clusters, self.loss)

    def begin_images(
        self, task: Task, known: Known, clients: Sequence[Client], randomness: Randomness
    ) -> tuple[Make, Shown] | None:
        """What makes the program of one image, and each image whose turn it is with its label."""
        model = self.model.load(known)
        images, labels = self._labelled(task, known.version, clients, randomness)
        if len(labels) == 0:
            return None
        make = partial(contrast_program, model, clusters=self.clusters, weights=self.loss)
        return make, (images.unsqueeze(1), labels.unsqueeze(1))

    def _labelled(
        self, task: Task, step: int, clients: Sequence[Client], randomness: Randomness
    ) -> tuple[Tensor, Tensor]:
        """Images whose turn it is, and their labels, of all clients."""
        images, labels = [], []
        for client in clients:
            if int(client.memory.get(_ROUND, torch.tensor(-1))) == task.round:
                chosen = self.chosen(step, client, randomness)
                images.append(to_float(client.images[chosen]))
                labels.append(client.memory[_LABELS][chosen])
        if not labels:
            return torch.empty(0), torch.empty(0)
        return torch.cat(images), torch.cat(labels)


class Labelling(SummedWork[CCFCState, ClusterSizes]):
    """Pseudo-labels for a round, Eq. (1) of the paper: clients keep them, and send their numbers.

    Args:
        model: The global model.
        rule: How representations are assigned.
        privacy: How large an image's part may be.
    """

    def __init__(self, model: GlobalModel, rule: CentroidRule, privacy: PrivacyConfig) -> None:
        self.model = model
        self.rule = rule
        self.exchange, self.bounds = over_all(LABELS, privacy, {"counts": 1.0})

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
            counts.append(cluster_counts(members, self.bounds))
        return ClusterSizes(torch.stack(counts).sum(dim=0))
