"""What a setting does to a run, found by running it: for the test that goes through every key."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.run import clustering_run
from ccfcpp.core.config import Affects, RunConfig, Section, Tree, kinds_of
from ccfcpp.core.config_layers import merge, nest, validate
from ccfcpp.core.errors import UsageError
from ccfcpp.core.unused_settings import needs_of
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.payload import pack
from ccfcpp.runs.run import AnyLocalRun
from supervised.classification import classification_run
from supervised.config import ClassifyConfig

Trace = tuple[object, ...]
"""What can be seen of a run, in the order in which it happens."""

_ROUNDS = 3
_IMAGES = 60

_OTHER: dict[str, object] = {
    "availability.late": [1],
    "availability.without": [1],
    "attack.attackers": 0.5,
    "clusters": 4,
    "compute.cohort": 2,
    "centroids.restarts": 20,
    "compute.precision": "bfloat16",
    "crops.weight": 20.0,
    "data.classes": ["0", "1"],
    "data.image_size": 12,
    "data.images": 50,
    "data.imbalance": 3.0,
    "data.mean": [0.5, 0.4, 0.3],
    "data.std": [0.5, 0.4, 0.3],
    "data.test_images": 9,
    "data.train_images": 40,
    "dcn.batch_size": 8,
    "decorrelation.groups": 4,
    "defence.hostile": 0.0,
    "centroids.iterations": 50,
    "defence.weight": 1.0,
    "evaluate_every": 1,
    "feddp.dimensions": 2,
    "feddp.margin": 0.5,
    "ffcm.tolerance": 10.0,
    "fuzzy.iterations": 1,
    "fuzzy.restarts": 20,
    "fuzzy.tolerance": 10.0,
    "gan.batch_size": 8,
    "gan.images": 7,
    "kfed.local_clusters": 2,
    "model.backbone": "resnet18",
    "moon.projection": [6],
    "partition.clients": 4,
    "partition.equal_share": 0.5,
    "partition.min_samples": 9,
    "privacy.fraction_bits": 12,
    "privacy.noise": 30.0,
    "privacy.smallest_count": 6,
    "privacy.threshold": 5,
    "scan.last_balance": 1.0,
    "scan.merge": "information",
    "means.starts": 3,
    "means.tolerance": 10.0,
    "mixture.tolerance": 0.0,
    "vectors.categories": ["1"],
    "vectors.client_column": "1",
    "vectors.components": 2,
    "vectors.label_column": "2",
    "views.blur": [1.0, 2.0],
    "views.blur_probability": 1.0,
}
"""Values other than the default where the type does not tell one that shows."""

_CLIPPED: dict[type[RunConfig], str] = {ClusterConfig: "gradient", ClassifyConfig: "model"}
"""Which part of an update has a bound of its own."""

_LARGE = {"auto", "resnet18", "resnet20", "resnet32", "mobilenetv2", "alexnet"}
"""Networks that are slow to train; what counts for them alone shows in their first weights."""

_TO_SHOW: dict[str, Tree] = {
    "privacy.clip": {"privacy": {"clip": 100.0, "noise": 0.001, "epsilon": 1e9}},
    "centroids.iterations": {"clusters": 12},
    "centroids.search": {"training": {"pretraining": "neighbours"}},
    "defence.weight": {"partition": {"kind": "dirichlet"}},
    "privacy.delta": {"privacy": {"noise": None}},
    "privacy.epsilon": {"privacy": {"noise": None}},
    "privacy.threshold": {"availability": {"dropout_rate": 0.4}},
    "vectors.most_categories": {"vectors": {"categories": ["1"]}},
    "vectors.rare": {"vectors": {"categories": ["1"]}},
}
"""What a key needs beside its conditions for its effect to show in two rounds."""

_DIFFERS = "differs"

_NAMES = ("method", "dataset")
"""What runs, and on what: not examined."""


def write_images(path: Path) -> str:
    """Write a data set of noisy digits in colour, of three classes, and return its path."""
    digits = load_digits(n_class=3)
    source = np.random.default_rng(0)
    noise = source.integers(0, 120, (_IMAGES, 3, 8, 8))
    images = digits.images[:_IMAGES, None] * (135 / 16) + noise
    images *= source.uniform(0.3, 1, (_IMAGES, 1, 1, 1))
    np.savez(path, images=np.rint(images).astype(np.uint8), labels=digits.target[:_IMAGES])
    return str(path)


def write_vectors(path: Path) -> str:
    """Write vectors of three classes that two clients hold, and return their path.

    Columns 1 and 2 hold whole numbers, which may be names.
    """
    digits, numbers = load_digits(n_class=3), np.arange(_IMAGES)
    vectors = digits.data[:_IMAGES, 19:25].copy()
    vectors[:, 1], vectors[:, 2] = numbers % 2, numbers % 3
    clients = numbers // (_IMAGES // 2)
    np.savez(path, vectors=vectors, labels=digits.target[:_IMAGES], clients=clients)
    return str(path)


def seen(config: RunConfig) -> Iterator[object]:
    """Run a configuration, and yield what can be seen of it from its clients to its last round.

    With a large network it ends with the first weights.
    """
    experiment: AnyLocalRun
    if isinstance(config, ClusterConfig):
        experiment = clustering_run(config)
    else:
        assert isinstance(config, ClassifyConfig)
        experiment = classification_run(config)
    experiment = experiment.for_round(0) or experiment
    yield _digest({str(n): part for n, part in enumerate(experiment.parts)})
    yield _digest({client.name: client.images for client in experiment.clients})
    yield experiment.algorithm.rounds, experiment.client_side.cohort
    memories = ClientMemories(torch.device("cpu"), 10**9)
    federation = experiment.federation(experiment.transport(memories))
    state = experiment.algorithm.initial_state(experiment.randomness)
    yield _digest(pack(state))
    if _LARGE & {config.model_dump().get("model", {}).get(key) for key in ("backbone", "name")}:
        return
    for after, report in federation.run(state):
        state = after
        yield _digest(pack(state))
        yield str({name: own for name, own in report.line().items() if name != "seconds"})
        yield str(experiment.evaluator.scores(report.round, state, memories))
        if report.round + 1 == _ROUNDS:
            break
    arrays = experiment.evaluator.image_results(state, memories)
    of_images = arrays.get("assignments") or arrays["predictions"]
    found = of_images.get("cluster", of_images.get("predicted"))
    yield None if found is None else _digest({"found": torch.as_tensor(found)})


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Variant:
    """A method with some settings.

    Attributes:
        keys: The keys of its configuration that change figures.
        unused: Those of them that have no effect.
    """

    def __init__(self, kind: type[RunConfig], tree: Tree) -> None:
        self.kind = kind
        self.tree = tree
        self.config = validate(kind, tree)
        self.fields = kind.known_fields({})
        self.now = dict(settings(self.config))
        self.keys = [
            key
            for key in self.now
            if key not in _NAMES
            and not any(isinstance(each, Affects) for each in self.fields[key].metadata)
        ]
        self.unused = [key for key in self.keys if needs_of(self.config, key) is not None]

    @cached_property
    def trace(self) -> list[object]:
        """What can be seen of its run; nothing where it is refused."""
        try:
            return list(seen(self.config))
        except UsageError:
            return []

    def but(self, tree: Tree) -> "Variant":
        """Return a variant with other settings.

        Raises:
            UsageError: They do not fit.
        """
        return Variant(self.kind, merge(self.tree, tree))

    def other(self, key: str) -> Tree:
        """Return a setting with another value of a key."""
        if key == "privacy.clips":
            values: list[object] = [{_CLIPPED[self.kind]: 0.3}]
        elif key == "feddp.server":
            values = [self.now["dataset"]]
        elif key in _OTHER:
            values = [_OTHER[key]]
        else:
            values = _candidates(self._annotation(key), self.now[key])
        values = [value for value in values if value != self.now[key]]
        # Where each of them is refused, so is the first.
        return next(
            (tree for value in values if self.fits(tree := nest(key, value))), nest(key, values[0])
        )

    def _annotation(self, key: str) -> object:
        """Return the type of a setting; a kind of section is of any of the section's."""
        name, _, rest = key.partition(".")
        field = type(self.config).model_fields[name]
        if rest and field.discriminator == rest:
            kinds = [kind.model_fields[rest].annotation for kind in kinds_of(field)]
            return Literal[tuple(value for kind in kinds for value in get_args(kind))]
        return self.fields[key].annotation

    def fits(self, tree: Tree) -> bool:
        """Return whether the configuration takes other settings."""
        try:
            return self.but(tree).now != self.now
        except UsageError:
            return False

    def differs(self, tree: Tree) -> str | None:
        """Return what other settings lead to: a refusal, or ``_DIFFERS``; None for the same run."""
        try:
            run = seen(self.but(tree).config)
            if any(now != before for now, before in zip_longest(run, self.trace)):
                return _DIFFERS
        except UsageError as error:
            return str(error)
        return None


def settings(section: Section, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the settings of a configuration by dotted key, lists and mappings as they are."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from settings(value, f"{prefix}{name}.")
        else:
            yield prefix + name, list(value) if isinstance(value, tuple) else value


@dataclass
class Findings:
    """What came of going through every key of a method.

    Attributes:
        effective: Keys that count and change a run.
        refused: Keys with which there is no run; the line that says so.
        faults: What is declared and does not hold.
    """

    effective: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def examine(variants: Sequence[Variant], sections: Collection[str]) -> Findings:
    """Go through the keys of some sections of a method.

    A key must change the first variant that runs in which it counts, and none in which it does not.
    """
    found = Findings()
    runs = [variant for variant in variants if variant.trace]
    for key in dict.fromkeys(key for variant in variants for key in variant.keys):
        if key.partition(".")[0] not in sections:
            continue
        using = [run for run in runs if key in run.keys and key not in run.unused]
        if not using:
            if any(key not in variant.unused for variant in variants if key in variant.keys):
                found.refused[key] = "no variant in which it counts runs"
            continue
        shown = using[0].but(_TO_SHOW.get(key, {}))
        result = shown.differs(using[0].other(key))
        if result is None:
            found.faults.append(f"{key} counts, but changes nothing: {using[0].tree}")
        elif result == _DIFFERS:
            found.effective.add(key)
        else:
            assert "\n" not in result
            found.refused[key] = result
    for run in runs:
        idle = [key for key in run.unused if key.partition(".")[0] in sections]
        idle = [key for key in idle if key not in found.refused]
        if run.now.get("privacy.level", "none") != "none":  # With it they are refused for any data.
            idle = [key for key in idle if key != "vectors.categories"]
        found.faults += [
            f"{key} is refused, but changes a run: {run.tree}" for key in _changing(run, idle)
        ]
    return found


def _changing(variant: Variant, keys: Sequence[str]) -> Sequence[str]:
    """Return which of some keys change a run; all are changed at once as long as none does."""
    trees = [variant.other(key) for key in keys]
    if not keys or variant.differs(merge(*trees)) is None:
        return []
    if len(keys) == 1:
        return keys
    half = len(keys) // 2
    return [*_changing(variant, keys[:half]), *_changing(variant, keys[half:])]


def _candidates(kind: object, now: object) -> list[object]:
    """Return values that a field may take, other than the one it has."""
    if now is None:
        return [2]
    if get_origin(kind) is Annotated:
        return _candidates(get_args(kind)[0], now)
    if get_origin(kind) is Literal:
        return [value for value in get_args(kind) if value != now] or ["another"]
    if isinstance(now, bool):
        return [not now]
    if isinstance(now, int):
        return [now + 1, now + 8, now - 1, 1]
    if isinstance(now, float):
        return [now / 2, now * 2, 0.5, 0.25, 1.0]
    if isinstance(now, list | tuple):
        return [[each * 2 for each in now], [each / 2 for each in now]]
    if isinstance(now, str):
        return []
    raise LookupError(f"no value is known beside {now!r} of {kind}")
