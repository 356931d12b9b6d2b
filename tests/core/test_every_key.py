"""Every key of every section either changes what a run does, or is refused in one line."""

import pytest

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import RunConfig, Tree
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
    "dcn": {
        "widths": [8], "latent": 4, "pretrain_epochs": 1, "epochs": 1, "embedding": "none",
        "synthetic": 30, "rounds": 5, "local_epochs": 4, "patience": 1,
    },
    "scan": {
        "stem": 0, "widths": [8], "hidden": 8, "latent": 6, "steps": 4, "steps_per_round": 2,
        "batch": 20, "neighbours": 3, "mine_every": 2, "learning_rate": 0.01,
    },
    "crops": {
        "widths": [8, 8], "hidden": 8, "latent": 6, "steps": 4, "steps_per_round": 2, "batch": 20,
        "each": 2,
    },
    "orchestra": {
        "rounds": 2, "widths": [4, 6], "latent": 8, "epochs": 2, "batch_size": 8, "memory": 20,
        "local_clusters": 4, "global_clusters": 12, "server_steps": 20,
    },
}  # fmt: skip
_CLASSIFICATION: Tree = {
    "model": {"widths": [4, 6], "representation": 8},
    "training": {"rounds": 2, "local_epochs": 1, "batch_size": 4, "weight_decay": 1e-2},
}


_NOISE: Tree = {"reproducible_noise": True, "noise": 20.0}
_SHARED: list[Tree] = [
    {"partition": {"kind": "dirichlet"}},
    {"partition": {"kind": "classes"}},
    {"attack": {"kind": "noise"}},
    {"defence": {"rule": "trimmed-mean"}},
    {"defence": {"rule": "median"}},
    {"defence": {"rule": "bound"}},
    {"privacy": {"secure_sums": True}},
    {"privacy": {"level": "client", "secure_sums": True, **_NOISE}},
    {"privacy": {"level": "client", "secure_sums": True, "noise_at": "server", **_NOISE}},
]
"""Settings beside which keys of the sections of all systems count."""
_NEIGHBOURS: Tree = {"pretraining": "neighbours"}
_SYNCHRONISED: Tree = {"steps": "synchronised"}
_LLOYD: Tree = {"centroids": {"search": "lloyd"}}
VARIANTS: dict[str, list[Tree]] = {
    "fed-km": _SHARED,
    "ccfc++": [
        {"model": {"backbone": "resnet18"}},
        {"training": _NEIGHBOURS, "model": {"backbone": "scan"}},
        {"training": _SYNCHRONISED},
        {"training": {**_SYNCHRONISED, **_NEIGHBOURS}, **_LLOYD, "scan": {"overclustering": 2}},
        {"training": {"rounds": 0}},
        {"training": {"pretrain_rounds": 0}},
        {"centroids": {"encoder": "global"}},
        *_SHARED,
    ],
    "fed-scan": [
        {"scan": {"optimizer": "adam"}},
        {"scan": {"lagged": True}},
        {"scan": {"overclustering": 2}},
        {"scan": {"pairs": "views"}},
        {"scan": {"pairs": "views"}, "privacy": {"level": "image", **_NOISE}},
    ],
    "fed-km on vectors": [{"vectors": {"components": 2}}, {"partition": {"kind": "folders"}}],
    "fed-scan on vectors": [{"scan": {"encoder": "linear"}}],
    "ffcm-avg on vectors": [{"availability": {"dropout_rate": 0.4}}],
    "fed-dcn": [{"dcn": {"embedding": "umap"}}, {"dcn": {"stop": "last"}}],
    "k-fed": [{"defence": {"rule": "bound"}}],
    "ffcm-km": [{"defence": {"rule": "bound"}}],
    "fedavg": [
        {"model": {"name": "mobilenetv2"}},
        {"decorrelation": {"kind": "none"}},
        {"decorrelation": {"kind": "structured-decov"}},
        *_SHARED,
    ],
}
"""What each system is tried beside, apart from its defaults."""
nightly = pytest.mark.nightly(
    "ccfcpp/core", "ccfcpp/clustering", "ccfcpp/privacy", "ccfcpp/robust", "supervised", "configs"
)
QUICK = ("fed-km on vectors", "fed-em", "k-fed")
SYSTEMS = [
    *(name for name in METHODS.own() if name != "ccfc"),
    *("fed-km on vectors", "fed-scan on vectors", "ffcm-avg on vectors"),
]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_vectors(tmp_path_factory.mktemp("vectors") / "digits.npz")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_images(tmp_path_factory.mktemp("images") / "digits.npz")


def variants(kind: type[RunConfig], base: Tree, given: Tree, name: str) -> list[Variant]:
    common = merge(merge(_COMMON, base), given)
    return [Variant(kind, merge(common, tree)) for tree in [{}, *VARIANTS.get(name, [])]]


def clustering(name: str, images: str, vectors: str) -> list[Variant]:
    method, _, on_vectors = name.partition(" on ")
    given: Tree = {"method": method, "dataset": vectors if on_vectors else images}
    if on_vectors:
        given["partition"] = {"clients": 2}
    return variants(ClusterConfig, _CLUSTERING, given, name)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else nightly) for name in SYSTEMS]
)
def test_every_key_of_clustering(name: str, images: str, vectors: str) -> None:
    method = METHODS[name.partition(" on ")[0]]
    sections = {*method.sections, *(key.partition(".")[0] for key in method.ignores)}
    if name in ("fed-km", "ccfc++"):  # The sections of all systems are tried on two of them.
        sections |= ClusterConfig.model_fields.keys()
    if name == "fed-emp":  # Its rounds of k-means come after those that are run here: see fed-km.
        sections -= {"means"}
    check(examine(clustering(name, images, vectors), sections | {"vectors"}))


def test_ccfc_differs_from_its_successor_in_two_weights(images: str) -> None:
    ccfc, successor = METHODS["ccfc"], METHODS["ccfc++"]
    for attribute in ("make", "sections", "unused"):
        assert getattr(ccfc, attribute) is getattr(successor, attribute)
    assert ccfc.ignores == (*successor.ignores, "loss.scale")


@pytest.mark.parametrize("name", [pytest.param(name, marks=nightly) for name in CLASSIFIERS.own()])
def test_every_key_of_classification(name: str, images: str) -> None:
    own = variants(ClassifyConfig, _CLASSIFICATION, {"dataset": images, "method": name}, name)
    sections = {*CLASSIFIERS[name].sections, "training", "compute"}
    if name == "fedavg":
        sections |= ClassifyConfig.model_fields.keys()
    check(examine(own, sections))


def check(found: Findings) -> None:
    assert found.faults == []
    assert found.effective
