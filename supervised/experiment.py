"""One classification run, from its configuration to its results."""

import math
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from ccfcpp.core.errors import UsageError
from ccfcpp.core.metrics import effective_rank, spectrum, tail_share
from ccfcpp.data import ImageData
from ccfcpp.engine.client import Client
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.models.state import ModelState
from ccfcpp.runs.experiment import Experiment, Scores
from ccfcpp.runs.folder import Arrays
from ccfcpp.runs.local_spectra import LocalSpectra, describe_spectra, mean
from ccfcpp.runs.paths import Json, Summary
from ccfcpp.runs.shown import shown_points
from supervised.algorithm import FederatedClassification
from supervised.classifiers import CLASSIFIERS
from supervised.config import ClassifyConfig
from supervised.evaluation import Evaluator, TestSet
from supervised.messages import ServerState
from supervised.setup import (
    check_images,
    classifier_maker,
    load_images,
    partition_samples,
    split,
)


class ClassificationExperiment(Experiment[ServerState]):
    """Data, clients, algorithm and federation that a configuration asks for.

    Making one checks everything that can be checked before a file is written.

    Args:
        data: The images; those that the configuration names where it is None.
        tested: Whether some images are held out for testing; else all are for training.
        number: The clients are those that are there in this round; None: in the last one.

    Raises:
        UsageError: The configuration does not fit the data or the machine.
    """

    images_key = "data.train_images"
    data: ImageData
    algorithm: FederatedClassification

    def __init__(
        self,
        config: ClassifyConfig,
        data: ImageData | None = None,
        *,
        tested: bool = True,
        number: int | None = None,
    ) -> None:
        super().__init__(config)
        self.config = config
        self.data = load_images(config) if data is None else data
        check_images(config, self.data)
        everything = torch.arange(len(self.data))
        train, test = split(config, self.data) if tested else (everything, everything[:0])
        self.parts = partition_samples(config, self.data, train, self.randomness)
        numbers = range(len(self.parts))
        self.connected = self.availability.connected(numbers, self.randomness, number)
        image_shape = tuple(self.data.images.shape[1:])
        make_model = classifier_maker(config, image_shape, len(self.data.classes))
        absent = sorted(set(numbers) - set(self.connected))
        self.absent_names = [self.client_name(number) for number in absent]
        self.clients = [self._client(number) for number in self.connected]
        self.test_sets = self._test_sets(test) if tested else []
        self.algorithm = FederatedClassification(
            config,
            make_model,
            image_shape,
            len(self.data.classes),
            len(self.clients),
            self.device,
        )
        self.evaluator = Evaluator(make_model, config, self.device)
        self.check()

    def as_of(self, number: int) -> "ClassificationExperiment | None":
        """The run with the clients that are there from a round on; None where these are its own."""
        there = self.availability.connected(range(len(self.parts)), self.randomness, number)
        if there == self.connected:
            return None
        tested = bool(self.test_sets)
        return ClassificationExperiment(self.config, self.data, tested=tested, number=number)

    def _client(self, number: int) -> Client:
        return Client(number, self.client_name(number), *self._samples(self.parts[number]))

    def client_name(self, number: int) -> str:
        """What a client is called: its domain's name, or its number."""
        return self.data.owner_names[number] if self._by_domain else f"client {number}"

    def _samples(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Images and labels on the device."""
        assert self.data.labels is not None
        images, labels = self.data.images[index], self.data.labels[index]
        return images.to(self.device), labels.to(self.device)

    @property
    def _by_domain(self) -> bool:
        return self.config.partition.kind == "domain"

    @property
    def _is_personal(self) -> bool:
        return CLASSIFIERS[self.config.method].personal

    def _test_sets(self, test: Tensor) -> list[TestSet]:
        """One for each domain, or for each client with a model of its own, or one of all.

        Raises:
            UsageError: None is left.
        """
        if not self._by_domain:
            samples = self._samples(test)
            if not self._is_personal:
                return [TestSet("all", None, test, *samples)]
            return [TestSet(client.name, client.id, test, *samples) for client in self.clients]
        assert self.data.owners is not None
        owners = self.data.owners[test]
        connected = {client.id for client in self.clients}
        sets = []
        for number, name in enumerate(self.data.owner_names):
            index = test[owners == number]
            # Without its client a domain has no model of its own.
            if len(index) > 0 and (number in connected or not self._is_personal):
                sets.append(TestSet(name, number, index, *self._samples(index)))
        if not sets:
            raise UsageError(
                f"no connected client's domain in {self.data.name} has a test image: change "
                "data.test_share or data.test_images"
            )
        return sets

    def scores(self, number: int, state: ServerState, memories: ClientMemories) -> Scores:
        """Accuracies, where they are due."""
        last = number + 1 == self.algorithm.rounds
        if not last and not self.algorithm.is_scored(number, self.config.evaluate_every):
            return {}
        correct = {}
        for tested in self.test_sets:
            _, predicted = self._tested(tested, state, memories)
            correct[tested.name] = _accuracy(tested, predicted)
        return _averaged(correct)

    def _tested(
        self, tested: TestSet, state: ServerState, memories: ClientMemories
    ) -> tuple[Tensor, Tensor]:
        """Representations and predicted classes of a test set."""
        model = state.model
        if self._is_personal:
            assert tested.client is not None
            model = self.algorithm.sharing.personal(model, memories.take(tested.client))
        return self.evaluator(model, tested.images)

    def results(
        self, state: ServerState, memories: ClientMemories, local: LocalSpectra, told: None
    ) -> tuple[Summary, Arrays]:
        """Accuracies, predictions, and spectra of the representations of test images.

        The global model's effective rank and tail are means over the test sets. Local models are
        compared with it on all test images together.
        """
        seen = [self._tested(tested, state, memories) for tested in self.test_sets]
        spectra = [spectrum(representations) for representations, _ in seen]
        correct = {
            tested.name: _accuracy(tested, predicted)
            for tested, (_, predicted) in zip(self.test_sets, seen, strict=True)
        }
        compared: dict[str, Tensor] = {}
        if not self._is_personal:
            compared = local.arrays(spectrum(self.evaluator(state.model, self._compared)[0]))
        summary = {
            **_averaged(correct),
            **(describe_spectra(compared) if compared else {}),
            "effective_rank": mean([effective_rank(values) for values in spectra]),
            "tail_share": mean([tail_share(values) for values in spectra]),
        }
        return summary, {
            **self._arrays(seen),
            "spectra": {"singular_values": torch.stack(spectra), **compared},
        }

    def image_results(self, state: ServerState, memories: ClientMemories) -> Arrays:
        """Predictions, and what figures show of test images."""
        return self._arrays([self._tested(tested, state, memories) for tested in self.test_sets])

    def _arrays(self, seen: Sequence[tuple[Tensor, Tensor]]) -> dict[str, dict[str, Tensor]]:
        sizes = torch.tensor([len(tested.index) for tested in self.test_sets])
        predictions = {
            "index": torch.cat([tested.index for tested in self.test_sets]),
            "class": torch.cat([tested.labels for tested in self.test_sets]),
            "predicted": torch.cat([predicted.cpu() for _, predicted in seen]),
            "test_set": torch.repeat_interleave(sizes),
        }
        if self._is_personal:  # Where clients have models of their own there is no common space.
            return {"predictions": predictions}
        points = torch.cat([representations for representations, _ in seen])
        shown = shown_points(points, torch.arange(len(points)), by_angle=False)
        return {"predictions": predictions, "shown": shown}

    @cached_property
    def _compared(self) -> Tensor:
        """All test images: local models are compared with the global one on them."""
        return torch.cat([tested.images for tested in self.test_sets])

    def local_representations(self, client: int, model: ModelState) -> Tensor | None:
        """Of shape (test images, features); None where normalisations stay with the clients."""
        return None if self._is_personal else self.evaluator(model, self._compared)[0]

    def describe(self) -> Json:
        """The setting, for the summary."""
        config = self.config
        partition = config.partition
        decorrelation = config.decorrelation
        by_alpha, by_class = partition.kind == "dirichlet", partition.kind == "classes"
        # JSON has no infinity.
        alpha = partition.alpha if partition.alpha != math.inf else "inf"
        return {
            "method": config.method,
            "decorrelation": decorrelation.kind,
            "beta": decorrelation.beta if decorrelation.kind != "none" else None,
            "scale": decorrelation.scale if decorrelation.kind == "feddecorr" else None,
            "dataset": config.dataset,
            "classes": len(self.data.classes),
            "training_images": sum(map(len, self.parts)),
            "skipped": self.data.skipped,
            "held": sum(map(len, self.clients)),
            "test_images": len(torch.unique(torch.cat([t.index for t in self.test_sets]))),
            "model": config.model.name,
            "partition": partition.kind,
            "alpha": alpha if by_alpha else None,
            "classes_per_client": partition.classes_per_client if by_class else None,
            "seed": config.seed,
            "clients": len(self.parts),
            "connected": len(self.clients),
            "disconnected": len(self.parts) - len(self.clients),
            "sample_fraction": config.availability.sample_fraction,
            "rounds": config.training.rounds,
            "local_epochs": config.training.local_epochs,
            "device": str(self.device),
        }


def _accuracy(tested: TestSet, predicted: Tensor) -> float:
    return float((predicted == tested.labels).double().mean())


def _averaged(accuracies: dict[str, float]) -> Scores:
    """The mean over the test sets, and each of them where there are several."""
    of_all = sum(accuracies.values()) / len(accuracies)
    single = {f"accuracy {name}": value for name, value in accuracies.items()}
    return {"accuracy": of_all} | (single if len(single) > 1 else {})
