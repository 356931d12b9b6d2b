"""What the clients of CCFC and CCFC++ do in synchronised steps, those of one process together."""

from collections.abc import Callable, Sequence

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
from ccfcpp.engine.synchronised.turns import turn
from ccfcpp.models.initialisation import build
from ccfcpp.models.pooled import Program

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


class Batches:
    """The images of clients whose turn it is.

    Args:
        model: What is trained.
        training: The size of batches.
        loss: Weights of the loss terms.
        samples: Images of all clients of the run.
    """

    def __init__(
        self, model: TrainedModel, training: TrainingConfig, loss: LossConfig, samples: int
    ) -> None:
        self.model = model
        self.batch = training.synchronised_batch
        self.loss = loss
        self.samples = samples

    def turn(self, step: int, client: Client, randomness: Randomness) -> Tensor:
        """int64 indices of a client's images; none where no image's turn falls into this step."""
        share = self.batch * len(client) / self.samples
        source = randomness.of_client(client.id)
        return turn(len(client), share, step, source).to(client.images.device)


class SiameseBatches(Batches):
    """Two random views of each image, for pre-training.

    Args:
        views: How far views are from their images.
        model, training, loss, samples: As of ``Batches``.
    """

    def __init__(
        self,
        views: ViewsConfig,
        model: TrainedModel,
        training: TrainingConfig,
        loss: LossConfig,
        samples: int,
    ) -> None:
        super().__init__(model, training, loss, samples)
        self.views = views

    def begin(
        self, task: Task, known: Known, clients: Sequence[Client], randomness: Randomness
    ) -> Program | None:
        """The program of a step of some clients."""
        model = self.model.load(known)
        with section("views"):
            pairs = [self._views(known.version, client, randomness) for client in clients]
            views = torch.cat([view for side in zip(*pairs, strict=True) for view in side])
        return siamese_program(model, views, self.loss) if len(views) else None

    def _views(self, step: int, client: Client, randomness: Randomness) -> tuple[Tensor, Tensor]:
        chosen = self.turn(step, client, randomness)
        shown = to_float(client.images[torch.cat([chosen, chosen])])
        if len(shown) == 0:
            return shown, shown
        generator = randomness.of_client(client.id).generator(f"views {step}")
        shape = (client.images.shape[2], client.images.shape[3])
        drawn = draw_views(len(shown), self.views, shape, generator).to(shown.device)
        first, second = render_views(shown, drawn).chunk(2)
        return first, second


class LabelledBatches(Batches):
    """Images with their pseudo-labels, for cluster-contrastive training.

    Args:
        clusters: Number of clusters k.
        model, training, loss, samples: As of ``Batches``.
    """

    def __init__(
        self,
        clusters: int,
        model: TrainedModel,
        training: TrainingConfig,
        loss: LossConfig,
        samples: int,
    ) -> None:
        super().__init__(model, training, loss, samples)
        self.clusters = clusters

    def begin(
        self, task: Task, known: Known, clients: Sequence[Client], randomness: Randomness
    ) -> Program | None:
        """The program of a step of some clients; those without labels of this round sit it out."""
        model = self.model.load(known)
        images, labels = [], []
        for client in clients:
            if int(client.memory.get(_ROUND, torch.tensor(-1))) == task.round:
                chosen = self.turn(known.version, client, randomness)
                images.append(to_float(client.images[chosen]))
                labels.append(client.memory[_LABELS][chosen])
        if not any(map(len, labels)):
            return None
        shown = torch.cat(images)
        return contrast_program(model, shown, torch.cat(labels), self.clusters, self.loss)


class Labelling(SummedWork[CCFCState, ClusterSizes]):
    """Pseudo-labels for a round, Eq. (1) of the paper: clients keep them, and send their numbers.

    Args:
        model: The global model.
        rule: How representations are assigned.
    """

    exchange = LABELS

    def __init__(self, model: GlobalModel, rule: CentroidRule) -> None:
        self.model = model
        self.rule = rule

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
            counts.append(F.one_hot(labels, self.rule.clusters).sum(dim=0))
        return ClusterSizes(torch.stack(counts).sum(dim=0).double())
