"""Construction of a run of federated classification from its configuration."""

import torch

from ccfcpp.data.images import ImageData
from ccfcpp.engine.client import Client
from ccfcpp.runs.run import Holdings, LocalRun
from ccfcpp.runs.setting import Setting
from supervised.algorithm import FederatedClassification
from supervised.config import ClassifyConfig
from supervised.evaluation import ClassificationEvaluator
from supervised.setup import (
    check_images,
    classifier_maker,
    labelled_images,
    load_images,
    partition_samples,
    train_test_indices,
)

ClassificationRun = LocalRun[FederatedClassification, ClassificationEvaluator]


def classification_run(
    config: ClassifyConfig,
    data: ImageData | None = None,
    *,
    tested: bool = True,
    number: int | None = None,
) -> ClassificationRun:
    """Construct a run of federated classification; nothing is trained or written yet.

    All that can be checked before training is checked.

    Args:
        config: The configuration.
        data: The images; None: load those that the configuration names.
        tested: Whether some images are held out for testing; if not, all are for training.
        number: The round that determines which clients are connected; None: the last one.

    Raises:
        UsageError: The configuration does not fit the data or the machine.
    """
    setting = Setting.of(config)
    data = load_images(config) if data is None else data
    check_images(config, data)
    everything = torch.arange(len(data))
    train, test = train_test_indices(config, data) if tested else (everything, everything[:0])
    parts = partition_samples(config, data, train, setting.randomness)
    numbers, by_domain = range(len(parts)), config.partition.kind == "domain"
    names = list(data.owner_names) if by_domain else [f"client {each}" for each in numbers]
    connected = setting.availability.connected(numbers, setting.randomness, number)
    shape, classes = tuple(data.images.shape[1:]), len(data.classes)
    make_model = classifier_maker(config, shape, classes)
    clients = [
        Client(each, names[each], *labelled_images(data, parts[each], setting.device))
        for each in connected
    ]
    algorithm = FederatedClassification(
        config, make_model, shape, classes, len(clients), setting.device
    )
    held = Holdings(data, parts, names)

    def remake(number: int) -> ClassificationRun:
        return classification_run(config, data, tested=tested, number=number)

    evaluator = ClassificationEvaluator(config, algorithm, held, clients, test)
    return LocalRun(setting, algorithm, held, clients, evaluator, None, connected, remake, number)
