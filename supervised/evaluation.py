"""Evaluation of classifiers on test images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ccfcpp.core.errors import UsageError
from ccfcpp.core.metrics import effective_rank, spectrum, tail_share
from ccfcpp.data.images import ImageData, forward_batch, to_float
from ccfcpp.engine.client import Client
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.payload import pack
from ccfcpp.models.network import FlatNetwork
from ccfcpp.models.state import ModelState
from ccfcpp.runs.evaluator import Arrays, Evaluator, Results, Scores
from ccfcpp.runs.local_spectra import LocalSpectra, describe_spectra, mean
from ccfcpp.runs.paths import Json
from ccfcpp.runs.report_samples import plot_arrays
from ccfcpp.runs.run import Holdings
from supervised.algorithm import FederatedClassification
from supervised.augmentation import Normalisation
from supervised.classifiers import CLASSIFIERS
from supervised.config import (
    ClassifyConfig,
    FedDecorr,
    TermConfig,
)
from supervised.messages import ServerState
from supervised.networks import Classifier
from supervised.setup import labelled_images

_FORWARD_BATCH, _USUAL_PIXELS = 500, 32 * 32


@dataclass(frozen=True)
class TestSet:
    """Test set: labelled images on which models are evaluated.

    Attributes:
        name: Name in reports, such as a domain.
        client: Number of the client whose own model is tested on it; None: the global model.
        index: Indices of the images in the data set, int64 of shape (samples,).
        images: uint8 tensor of shape (samples, channels, height, width).
        labels: int64 tensor of shape (samples,).
    """

    name: str
    client: int | None
    index: Tensor
    images: Tensor
    labels: Tensor


class Predictor:
    """Network that represents and classifies images with given weights."""

    def __init__(
        self, make_model: Callable[[], Classifier], config: ClassifyConfig, device: torch.device
    ) -> None:
        precision = config.compute.precision
        self._network = FlatNetwork(make_model, device, trained=False, precision=precision)
        self._normalise = Normalisation(config.data, device)

    @torch.no_grad()
    def __call__(self, model: ModelState, images: Tensor) -> tuple[Tensor, Tensor]:
        """Run a model on images without augmentation, uint8 (samples, channels, height, width).

        Returns:
            Representations of shape (samples, features), and predicted classes, int64 of shape
            (samples,).
        """
        self._network.load(model)
        size = forward_batch(images[0, 0].numel(), _FORWARD_BATCH, _USUAL_PIXELS)
        parts = [
            self._network(self._normalise(to_float(batch))) for batch in torch.split(images, size)
        ]
        representations, logits = (torch.cat(some) for some in zip(*parts, strict=True))
        return representations, logits.argmax(dim=1)


class ClassificationEvaluator(Evaluator[ServerState]):
    """Evaluator that tests the global model, or each client's own, on test images.

    Args:
        config: Configuration of the run.
        algorithm: The algorithm, whose networks and state are evaluated.
        held: The data set, and the indices of each client's samples.
        clients: The connected clients.
        test: Indices of the test images, int64; empty for none.

    Raises:
        UsageError: All test images are of domains whose clients are not connected.
    """

    images_key = "data.train_images"

    def __init__(
        self,
        config: ClassifyConfig,
        algorithm: FederatedClassification,
        held: Holdings[ImageData],
        clients: Sequence[Client],
        test: Tensor,
    ) -> None:
        self.config, self.algorithm, self.clients = config, algorithm, clients
        self.data, self.parts = held.data, held.parts
        self.by_domain = config.partition.kind == "domain"
        self.is_personal = CLASSIFIERS[config.method].personal
        self.predict = Predictor(algorithm.make_model, config, algorithm.device)
        self.test_sets = self._test_sets(test) if len(test) else []

    def describe(self) -> Json:
        """Return values by key on data, method and clients, with which ``summary.json`` begins."""
        config = self.config
        decorrelation, degree = config.decorrelation, config.partition.degree
        return {
            "method": config.method,
            "decorrelation": decorrelation.kind,
            "beta": decorrelation.beta if isinstance(decorrelation, TermConfig) else None,
            "scale": decorrelation.scale if isinstance(decorrelation, FedDecorr) else None,
            "dataset": config.dataset,
            "classes": len(self.data.classes),
            "training_images": sum(map(len, self.parts)),
            "skipped": self.data.skipped,
            "held": sum(map(len, self.clients)),
            "test_images": len(torch.unique(torch.cat([t.index for t in self.test_sets]))),
            "model": config.model.name,
            "partition": config.partition.kind,
            "alpha": degree.get("alpha"),
            "classes_per_client": degree.get("classes_per_client"),
            "seed": config.seed,
            "clients": len(self.parts),
            "connected": len(self.clients),
            "disconnected": len(self.parts) - len(self.clients),
            "sample_fraction": config.availability.sample_fraction,
            "rounds": config.training.rounds,
            "local_epochs": config.training.local_epochs,
            "device": str(self.algorithm.device),
        }

    def _test_sets(self, test: Tensor) -> list[TestSet]:
        """Return the test sets: one for each domain, or each client with its own model, or one.

        Raises:
            UsageError: No test set is left.
        """
        data, device = self.data, self.algorithm.device
        if not self.by_domain:
            samples = labelled_images(data, test, device)
            if not self.is_personal:
                return [TestSet("all", None, test, *samples)]
            return [TestSet(client.name, client.id, test, *samples) for client in self.clients]
        assert data.owners is not None
        owners = data.owners[test]
        connected = {client.id for client in self.clients}
        sets = []
        for number, name in enumerate(data.owner_names):
            index = test[owners == number]
            # A personal method has no model for a domain whose client is not connected.
            if len(index) > 0 and (number in connected or not self.is_personal):
                sets.append(TestSet(name, number, index, *labelled_images(data, index, device)))
        if not sets:
            raise UsageError(
                f"no connected client's domain in {data.name} has a test image: change "
                "data.test_share or data.test_images"
            )
        return sets

    def scores(self, number: int, state: ServerState, memories: ClientMemories) -> Scores:
        """Compute test accuracies after round ``number``; empty if it is not to be evaluated."""
        last = number + 1 == self.algorithm.rounds
        if not last and not self.algorithm.is_scored(number, self.config.evaluate_every):
            return {}
        correct = {}
        for tested in self.test_sets:
            _, predicted = self._predict(tested, state, memories)
            correct[tested.name] = _accuracy(tested, predicted)
        return _mean_accuracy(correct)

    def _predict(
        self, tested: TestSet, state: ServerState, memories: ClientMemories
    ) -> tuple[Tensor, Tensor]:
        """Return representations and predicted classes of a test set, as ``Predictor`` does."""
        model = state.model
        if self.is_personal:
            assert tested.client is not None
            model = self.algorithm.sharing.personal(model, memories.take(tested.client))
        return self.predict(model, tested.images)

    def results(
        self, state: ServerState, memories: ClientMemories, local: LocalSpectra, outcome: None
    ) -> Results:
        """Return the last model's accuracies, predictions and singular values of representations.

        Effective rank and tail share are means over the test sets. Local models are compared with
        the global one on all test images together.
        """
        outputs = [self._predict(tested, state, memories) for tested in self.test_sets]
        spectra = [spectrum(representations) for representations, _ in outputs]
        correct = {
            tested.name: _accuracy(tested, predicted)
            for tested, (_, predicted) in zip(self.test_sets, outputs, strict=True)
        }
        compared: dict[str, Tensor] = {}
        if not self.is_personal:
            compared = local.arrays(spectrum(self.predict(state.model, self._all_test_images)[0]))
        summary = {
            **_mean_accuracy(correct),
            **(describe_spectra(compared) if compared else {}),
            "effective_rank": mean([effective_rank(values) for values in spectra]),
            "tail_share": mean([tail_share(values) for values in spectra]),
        }
        singular_values = {"singular_values": torch.stack(spectra), **compared}
        return Results(
            summary, pack(state), arrays={**self._arrays(outputs), "spectra": singular_values}
        )

    def image_results(self, state: ServerState, memories: ClientMemories) -> Arrays:
        """Return arrays, by file and name: predictions, and representations for figures.

        Methods with personal models have no representations here.
        """
        return self._arrays([self._predict(tested, state, memories) for tested in self.test_sets])

    def _arrays(self, outputs: Sequence[tuple[Tensor, Tensor]]) -> dict[str, dict[str, Tensor]]:
        sizes = torch.tensor([len(tested.index) for tested in self.test_sets])
        predictions = {
            "index": torch.cat([tested.index for tested in self.test_sets]),
            "class": torch.cat([tested.labels for tested in self.test_sets]),
            "predicted": torch.cat([predicted.cpu() for _, predicted in outputs]),
            "test_set": torch.repeat_interleave(sizes),
        }
        if self.is_personal:  # Representations by different models are not comparable.
            return {"predictions": predictions}
        points = torch.cat([representations for representations, _ in outputs])
        shown = plot_arrays(points, torch.arange(len(points)), by_angle=False)
        return {"predictions": predictions, "shown": shown}

    @cached_property
    def _all_test_images(self) -> Tensor:
        """All test images, on which local models are compared with the global one."""
        return torch.cat([tested.images for tested in self.test_sets])

    def represent(self, client: int, model: ModelState) -> Tensor | None:
        """Return a model's representations (test images, features); None for a personal method."""
        return None if self.is_personal else self.predict(model, self._all_test_images)[0]


def _accuracy(tested: TestSet, predicted: Tensor) -> float:
    return float((predicted == tested.labels).double().mean())


def _mean_accuracy(accuracies: dict[str, float]) -> Scores:
    """Return the mean accuracy over test sets, and the accuracy of each if there are several."""
    of_all = sum(accuracies.values()) / len(accuracies)
    single = {f"accuracy {name}": value for name, value in accuracies.items()}
    return {"accuracy": of_all} | (single if len(single) > 1 else {})
