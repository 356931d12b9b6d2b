"""What runs are called in tables and figures: in the papers' words, to be compared with them."""

from pathlib import Path

from ccfcpp.clustering.methods import METHODS
from ccfcpp.papers.reproduction.published import with_term
from ccfcpp.papers.reproduction.results import Label, Result, plain
from supervised.classifiers import CLASSIFIERS

_CLUSTERED = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
_CLASSIFIED = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "tiny-imagenet": "TinyImageNet"}
_OTHERS = {"stl10": "STL-10", "office-caltech10": "Office-Caltech10", "domainnet": "DomainNet"}
_NETWORKS = {"mobilenetv2": "MobileNetV2", "resnet18": "ResNet18", "resnet32": "ResNet32"}
_TERMS = {
    "none": "FedAvg",
    "decov": "DeCov",
    "structured-decov": "Structured-DeCov",
    "feddecorr": "FedDecorr",
}


def images(result: Result) -> str:
    """The images of a run."""
    name = Path(result.config.dataset).name
    clustered = result.settings["method"] in METHODS
    title = ((_CLUSTERED if clustered else _CLASSIFIED) | _OTHERS).get(name, name)
    parts = []
    if count := result.settings.get("data.images"):
        parts.append(f"{count:,} images")
    if size := result.settings["data.image_size"]:
        parts.append(f"{size} pixels a side")
    # The networks of the domain papers take 256 pixels.
    return f"{title} ({', '.join(parts)})" if parts and name not in _OTHERS else title


def clustering_system(result: Result) -> str:
    """A system of clustering."""
    return METHODS[result.settings["method"]].title


def classification_system(result: Result) -> str:
    """A method of classification, with FedDecorr or without."""
    title = CLASSIFIERS[result.settings["method"]].title
    return with_term(title, result.settings["decorrelation.kind"] == "feddecorr")


def decorrelation_term(result: Result) -> str:
    """A decorrelation term; FedAvg for none."""
    return _TERMS[result.settings["decorrelation.kind"]]


def network(result: Result) -> str:
    """A network."""
    name: str = result.settings["model.name"]
    return _NETWORKS.get(name, name)


def images_and_method(result: Result) -> str:
    """Images, and a method of classification beside them."""
    return f"{images(result)}, {CLASSIFIERS[result.settings['method']].title}"


def images_and_network(result: Result) -> str:
    """Images, and a network beside them."""
    return f"{images(result)}, {network(result)}"


def images_and(key: str, name: str) -> Label:
    """Images, and a setting beside them."""

    def label(result: Result) -> str:
        return f"{images(result)}, {name} = {plain(result.settings[key])}"

    return label


def partition(result: Result) -> str:
    """Images, and how they are divided among clients for classification."""
    if result.settings["partition.kind"] == "pathological":
        held = result.settings["partition.classes_per_client"]
        return f"{images(result)}, {held} classes a client"
    return images_and("partition.alpha", "alpha")(result)


def constant(text: str) -> Label:
    """The same for all runs."""
    return lambda result: text
