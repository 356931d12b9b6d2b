"""Data, train-test split, partition and network that a configuration asks for."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor

from ccfcpp.core.config import ClassesPartition, DataConfig
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.images import ImageData, sample_indices
from ccfcpp.data.open import open_images
from ccfcpp.data.partition import (
    classes_partition,
    dirichlet_partition,
    iid_partition,
    owner_partition,
)
from ccfcpp.models.encoders import ResNet18Backbone
from supervised.classifiers import CLASSIFIERS
from supervised.config import (
    ClassifierConfig,
    ClassifyConfig,
    MobileNetwork,
    PlainLabels,
    SmallNetwork,
)
from supervised.networks import (
    AlexNetBackbone,
    Backbone,
    Classifier,
    MobileNetV2Backbone,
    SmallBackbone,
    SmallResNetBackbone,
)

_DEFAULT_CLIENTS = 10
_SMALLEST_BATCH = 2
"""Smallest number of images of a step: batch normalisation needs two."""

# Draws of images do not depend on the run's seed, so that runs with several seeds are comparable.
_SPLIT = Randomness(0)


def load_images(config: ClassifyConfig) -> ImageData:
    """Load the labelled images of a run, with their owners if each folder is a client.

    The images of the last call are cached, for runs on the same data one after another.
    """
    reading = DataConfig(**config.data.model_dump(include={*DataConfig.model_fields}))
    return _load(config.dataset, config.partition.kind == "domain", config.data.classes, reading)


@lru_cache(maxsize=1)
def _load(
    dataset: str, folders_are_clients: bool, classes: tuple[str, ...] | None, reading: DataConfig
) -> ImageData:
    return open_images(
        dataset, data=reading, folders_are_clients=folders_are_clients, classes=classes
    )


def labelled_images(data: ImageData, index: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Select images and labels by ``index``, int64 of shape (samples,); move both to a device."""
    assert data.labels is not None
    return data.images[index].to(device), data.labels[index].to(device)


def check_images(config: ClassifyConfig, data: ImageData) -> None:
    """Raise an error if images lack labels, or their channels do not fit the configuration.

    Raises:
        UsageError: There are no labels, or the number of channels does not fit a setting.
    """
    if data.labels is None:
        raise UsageError(
            f"{data.name} has no labels to learn from: put the images into class folders"
        )
    channels = data.images.shape[1]
    for name, values in (("mean", config.data.mean), ("std", config.data.std)):
        if values is not None and len(values) != channels:
            raise UsageError(
                f"data.{name} has {len(values)} numbers, and the images have {channels} channels: "
                "give one for each"
            )
    if config.augmentation.autoaugment and channels != 3:
        raise UsageError(
            f"augmentation.autoaugment is for colour images, and {data.name} has {channels} "
            "channels: set it to false"
        )


def train_test_indices(config: ClassifyConfig, data: ImageData) -> tuple[Tensor, Tensor]:
    """Return the indices of training and test images, int64, ascending.

    The data set's own split is used if it has one; else the share ``data.test_share`` of each class
    (of each owner) is held out at random.

    Raises:
        UsageError: One of the two would be empty.
    """
    test = _draw_test_mask(data, config.data.test_share) if data.test is None else data.test.cpu()
    train_index = _sample((~test).nonzero().flatten(), config.data.train_images, "training images")
    test_index = _sample(test.nonzero().flatten(), config.data.test_images, "test images")
    for what, index in (("training", train_index), ("test", test_index)):
        if len(index) == 0:
            raise UsageError(
                f"{data.name} has no {what} images: give it some, or change data.test_share where "
                "it has no split of its own"
            )
    return train_index, test_index


def _draw_test_mask(data: ImageData, share: float) -> Tensor:
    assert data.labels is not None
    groups = data.labels.cpu()
    if data.owners is not None:
        groups = groups + len(data.classes) * data.owners.cpu()
    test = torch.zeros(len(data), dtype=torch.bool)
    generator = _SPLIT.generator("held out")
    for group in torch.unique(groups):
        members = (groups == group).nonzero().flatten()
        order = torch.randperm(len(members), generator=generator)
        test[members[order[: round(share * len(members))]]] = True
    return test


def _sample(index: Tensor, count: int | None, what: str) -> Tensor:
    return sample_indices(index, count, _SPLIT.generator(what))


def partition_samples(
    config: ClassifyConfig, data: ImageData, train: Tensor, randomness: Randomness
) -> list[Tensor]:
    """Divide the training images ``train`` among clients; return the indices of each client.

    Raises:
        UsageError: The partition needs domains that the data set does not have, the number of
            clients is not allowed, a client would hold no image, or none would hold a batch.
    """
    parts = [train[part] for part in _partition(config, data, train, randomness)]
    share = config.partition.equal_share
    parts = parts if share is None else _equalize(parts, share)
    if max(map(len, parts)) < _SMALLEST_BATCH:
        raise UsageError(
            f"clients = {len(parts)} leave no client {_SMALLEST_BATCH} of the {len(train)} "
            "training images, which a step needs: give fewer clients or more images"
            + (", or a larger partition.equal_share" if share is not None else "")
        )
    return parts


def _equalize(parts: Sequence[Tensor], share: float) -> list[Tensor]:
    """Draw equally many of each client's indices: ``share`` · the smallest client's number."""
    smallest = min(map(len, parts))
    size = int(share * smallest + 1e-9)  # 0.29 · 100 is 28.999…
    if size == 0:
        raise UsageError(
            KeyValue("partition.equal_share", share),
            f" leaves nothing of the smallest client's {smallest} images: give a larger share",
        )
    return [
        sample_indices(part, size, _SPLIT.of_client(number).generator("equal clients"))
        for number, part in enumerate(parts)
    ]


def _partition(
    config: ClassifyConfig, data: ImageData, train: Tensor, randomness: Randomness
) -> list[Tensor]:
    """Return each client's positions in ``train``."""
    choice = config.partition
    assert data.labels is not None
    labels, classes = data.labels.cpu()[train], len(data.classes)
    clients = choice.clients or _DEFAULT_CLIENTS
    if choice.kind == "domain":
        return _partition_by_domain(config, data, train)
    if isinstance(choice, PlainLabels):
        return iid_partition(len(train), clients, randomness)
    if isinstance(choice, ClassesPartition):
        return classes_partition(labels, classes, clients, choice.classes_per_client, randomness)
    return dirichlet_partition(
        labels, classes, clients, choice.alpha, randomness, choice.min_samples
    )


def _partition_by_domain(config: ClassifyConfig, data: ImageData, train: Tensor) -> list[Tensor]:
    if data.owners is None:
        raise UsageError(
            KeyValue("partition.kind", "domain"),
            f" needs a folder of domains, and {data.name} is none: take --alpha or --partition iid",
        )
    if config.partition.clients not in (None, len(data.owner_names)):
        raise UsageError(
            f"clients = {config.partition.clients} does not fit the {len(data.owner_names)} "
            f"domains of {data.name}: leave it out"
        )
    parts = owner_partition(data.owners.cpu()[train], len(data.owner_names))
    for name, part in zip(data.owner_names, parts, strict=True):
        if len(part) == 0:
            raise UsageError(f"domain {name!r} would be a client without training images: add some")
    return parts


def classifier_maker(
    config: ClassifyConfig, image_shape: tuple[int, ...], classes: int
) -> Callable[[], Classifier]:
    """Return a function that builds the network for images of shape (channels, height, width).

    Raises:
        UsageError: The images do not fit the network.
    """
    projection = CLASSIFIERS[config.method].projection(config)
    make = partial(_make_classifier, config.model, image_shape, classes, projection)
    with torch.device("meta"):
        make()
    return make


def _make_classifier(
    config: ClassifierConfig,
    image_shape: tuple[int, ...],
    classes: int,
    projection: Sequence[int],
) -> Classifier:
    if isinstance(config, SmallNetwork):
        small = SmallBackbone(image_shape, config.widths, config.representation, config.batch_norm)
        return Classifier(small, classes, projection)
    if isinstance(config, MobileNetwork):
        mobile = MobileNetV2Backbone(image_shape, config.variant)
        return Classifier(mobile, classes, projection)
    backbones: dict[str, Callable[[], Backbone]] = {
        "resnet18": lambda: ResNet18Backbone(image_shape),
        "resnet20": lambda: SmallResNetBackbone(image_shape, blocks=3),
        "resnet32": lambda: SmallResNetBackbone(image_shape, blocks=5),
        "alexnet": lambda: AlexNetBackbone(image_shape),
    }
    return Classifier(backbones[config.name](), classes, projection)
