"""Every key of every section either changes what a run does, or is refused in one line."""

import pytest

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import merge
from supervised.classifiers import CLASSIFIERS
from supervised.config import ClassifyConfig
from tests.support.every_key import Findings, Variant, examine, write_images, write_vectors

_COMMON: Tree = {
    "device": "cpu",
    "evaluate_every": 3,
    "compute": {"cohort": 5},
    "partition": {"clients": 5, "min_samples": 2},
    "defence": {"hostile": 0.2},
}
_CLUSTERING: Tree = {
    "clusters": 5,
    "partition": {"p": 0.5},
    "model": {
        "backbone": "conv", "widths": [4, 6], "projector_width": 12, "latent": 8,
        "predictor_width": 4,
    },
    "training": {
        "rounds": 2, "pretrain_rounds": 1, "schedule": "cosine", "batch_size": 8,
        "synchronised_batch": 20,
    },
    "loss": {"lam": 0.5, "eta": 0.3, "pretrain_eta": 0.2},
    "centroids": {"restarts": 1, "iterations": 1, "refine_steps": 1},
    "pixels": {"normalise": False},
    "fuzzy": {"restarts": 1, "m": 1.3, "iterations": 5},
    "ffcm": {"rounds": 3},
    "feddp": {"rounds": 2, "points": 20},
    "means": {"rounds": 3},
    "mixture": {"rounds": 3},
    "gan": {
        "noise": 60, "generator_width": 8, "generator_channels": [4, 4], "batch_size": 16,
        "discriminator_channels": [4, 6], "discriminator_width": 8, "epochs": 2,
    },
    "dcn": {"widths": [8], "latent": 4, "pretrain_epochs": 1, "epochs": 1},
    "scan": {
        "stem": 0, "widths": [8], "hidden": 8, "latent": 6, "steps": 4, "steps_per_round": 2,
        "batch": 20, "neighbours": 3, "mine_every": 2, "learning_rate": 0.01,
    },
    "crops": {
        "widths": [8, 8], "hidden": 8, "latent": 6, "steps": 4, "steps_per_round": 2, "batch": 20,
        "each": 2,
    },
}  # fmt: skip
_CLASSIFICATION: Tree = {
    "model": {"widths": [4, 6], "representation": 8},
    "training": {"rounds": 2, "local_epochs": 1, "batch_size": 4, "weight_decay": 1e-2},
}


RELATIVES = {
    "ffcm-km": {"pixels", "fuzzy", "ffcm", "defence", "privacy"},
    "feddp-kmeans": {"pixels", "feddp", "defence", "privacy"},
    "sda-fc-fcm": {"pixels", "fuzzy"},
    "ppfc-gan": {"gan", "dcn", "centroids", "compute"},
    "fed-fcm": {"means", "fuzzy"},
    "fed-em": {"mixture", "pixels"},
    "fed-emp": {"crops", "intensity", "compute"},
}
"""Systems that differ from another one, which is tried on all keys, in some sections alone."""


OF_VECTORS = {
    "fed-km": {"vectors", "means", "pixels"},
    "ffcm-avg": {"ffcm", "fuzzy"},
    "fed-scan": {"vectors", "vector_views", "scan", "affine", "intensity"},
}
"""Sections that are tried on vectors."""


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_vectors(tmp_path_factory.mktemp("vectors") / "digits.npz")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_images(tmp_path_factory.mktemp("images") / "digits.npz")


def cluster(images: str, method: str, tree: Tree | None = None) -> Variant:
    common = merge(_COMMON, {"dataset": images, "method": method})
    return Variant(ClusterConfig, merge(merge(common, _CLUSTERING), tree or {}))


def classify(images: str, method: str) -> Variant:
    common = merge(_COMMON, {"dataset": images, "method": method})
    return Variant(ClassifyConfig, merge(common, _CLASSIFICATION))


def test_every_key_of_clustering(images: str, vectors: str) -> None:
    findings = of_vectors(vectors)
    for name in METHODS.own():
        if name != "ccfc":
            base, sections = cluster(images, name), RELATIVES.get(name)
            found = [key for key in base.fields if key.partition(".")[0] in (sections or ())]
            findings[name] = examine(base, found if sections else None)
    check(findings, set())


def of_vectors(vectors: str) -> dict[str, Findings]:
    """What comes of keys of systems on vectors."""
    findings = {}
    for name, sections in OF_VECTORS.items():
        base = cluster(vectors, name, {"partition": {"clients": 2}})
        found = [key for key in base.fields if key.partition(".")[0] in sections]
        findings[f"{name} on vectors"] = examine(base, found)
    return findings


def test_ccfc_differs_from_its_successor_in_two_weights(images: str) -> None:
    ccfc, successor = METHODS["ccfc"], METHODS["ccfc++"]
    for attribute in ("make", "sections", "needs"):
        assert getattr(ccfc, attribute) is getattr(successor, attribute)
    assert ccfc.ignores == (*successor.ignores, "loss.scale")
    weights = ("loss.eta", "loss.pretrain_eta")
    base = cluster(images, "ccfc", {"loss": {"eta": 0.0, "pretrain_eta": 0.0}})
    found = examine(base, [*weights, "loss.lam", "seed"])
    assert found.refused.keys() == set(weights)
    assert found.faults == []


def test_every_key_of_classification(images: str) -> None:
    findings = {"fedavg": examine(classify(images, "fedavg"))}
    for name in CLASSIFIERS.own():
        if sections := CLASSIFIERS[name].sections:
            base, trained = classify(images, name), {*sections, "training", "compute"}
            own = [key for key in base.fields if key.partition(".")[0] in trained]
            findings[name] = examine(base, own)
    check(findings, set())


def check(findings: dict[str, Findings], nowhere: set[str]) -> None:
    faults = [f"{name}: {fault}" for name, own in findings.items() for fault in own.faults]
    assert faults == []
    effective = {key for own in findings.values() for key in own.effective}
    refused = {key for own in findings.values() for key in own.refused}
    # A key that each method refuses would be of no use.
    assert refused - effective == nowhere
