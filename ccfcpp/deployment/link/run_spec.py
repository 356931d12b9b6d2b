"""The description of a run that a client needs in order to work for it."""

from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator

from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import Section, Tree
from ccfcpp.core.errors import UsageError
from ccfcpp.core.permissions import Kind
from ccfcpp.data.image_size import Sizes
from ccfcpp.privacy.config import PrivacyConfig

Size = Annotated[int, Field(ge=0, le=10**9)]
Text = Annotated[str, Field(max_length=200)]
ClassNames = Annotated[tuple[Text, ...], Field(max_length=10**5)]


OWN_IMAGES = "the clients' own images"
"""Replacement of a path on the server."""
_OF_THE_SERVER = ("dataset", "partition", "device", "track", "availability")
"""Settings that mean nothing to a client."""
_PLACES = (("data", "root"), ("data", "newcomers"), ("feddp", "server"))
"""Paths on the server, in sections that a client needs."""


class RunSpec(Section):
    """Description of a run, which the server sends to its clients as JSON.

    From it and its own images a client builds its side of the algorithm. Of the other clients it
    says only how many they are and how many images they hold together. With secure sums the first
    message brings a roster, too, with the names and public keys of all clients.

    Attributes:
        command: What the clients learn: clustering or classification.
        config: The run's configuration, as settings by key.
        image_shape: Channels, height and width of an image, or the length of a vector; empty until
            clients have been asked.
        columns: Names of a vector's columns, in the order of the run; empty if they have none.
        clusters: Number of clusters k, or its largest candidate; 0 in classification.
        classes: Names of the classes, in the order of their numbers; empty if none are known.
        samples: Number of images of all participating clients.
        clients: Number of participating clients.
        roster: Digest of the signed roster, by which clients identify each other in secure sums;
            empty without these.
    """

    command: Literal["cluster", "classify"]
    config: Tree
    image_shape: tuple[Size, ...] = ()
    columns: ClassNames = ()
    clusters: Size = 0
    classes: ClassNames = ()
    samples: Size = 0
    clients: Size = 0
    roster: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""

    @field_validator("config")
    @classmethod
    def _names_no_place(cls, config: Tree) -> Tree:
        """Remove settings without meaning for a client, such as paths, which it must not read."""
        told = {key: value for key, value in config.items() if key not in _OF_THE_SERVER}
        for section, place in _PLACES:
            if isinstance(found := told.get(section), dict):
                told[section] = {key: value for key, value in found.items() if key != place}
                if place == "newcomers" and found.get(place):
                    # Clients have to know that there are some, and not from where.
                    told[section][place] = [OWN_IMAGES]
        return told

    @property
    def method(self) -> str:
        """Name of the clustering system or of the method of classification."""
        return str(self.config.get("method"))

    @property
    def unit(self) -> str:
        """The word for a sample: ``image`` or ``vector``."""
        return "vector" if len(self.image_shape) == 1 else "image"

    @property
    def table_shape(self) -> tuple[int, int]:
        """Number of classes, and number of clusters or of predicted classes."""
        return len(self.classes), self.clusters or len(self.classes)

    @property
    def privacy(self) -> PrivacyConfig:
        """The run's settings for privacy."""
        try:
            return PrivacyConfig.model_validate(self.config.get("privacy", {}))
        except ValidationError as error:
            raise UsageError("what the run does for privacy cannot be read") from error

    def with_noise(self, noise: float) -> "RunSpec":
        """Return a copy that states the standard deviation of the noise."""
        settings = self.config.get("privacy")
        privacy = {**(settings if isinstance(settings, dict) else {}), "noise": noise}
        return self.model_copy(update={"config": {**self.config, "privacy": privacy}})

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of data that leave a client, which its owner must allow."""
        found: tuple[Kind, ...] = ("models", "classes")
        if self.command == "cluster":
            if self.method not in METHODS:
                raise UsageError(f"there is no system {self.method!r} here: install what brings it")
            system = METHODS[self.method]
            found = (*system.kinds, *system.more_kinds(self.config))
        networks = [
            net for name in ("scan", "model") if isinstance(net := self.config.get(name), dict)
        ]
        flat = any("widths" in net and not (net["widths"] or net.get("stem")) for net in networks)
        # The gradient of a first layer over all numbers of a sample is made of averages of samples.
        more = (flat or self.unit == "vector") and not {"pixels", "images"} & set(found)
        return (*found, "pixels") if more else found


class Facts(Section):
    """A client's facts on its images before a run.

    Attributes:
        samples: Number of images that take part in training.
        sizes: The original sizes of all its images, and whether some are in colour; None
            if it holds vectors.
        length: The length of its vectors; 0 if it holds images.
        columns: Names of a vector's columns, if they have any.
        encoder: Content hash of the encoder that made its vectors; empty if it names none.
        skipped: Number of files that it leaves out, since they cannot be read or are no images.
        classes: Names of its classes, if it has labels and may name them.
        counts: Whether it will send its numbers of images by class and cluster.
    """

    samples: Size
    sizes: Sizes | None = None
    length: Size = 0
    columns: ClassNames = ()
    encoder: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    skipped: Size = 0
    classes: ClassNames = ()
    counts: bool = False

    @property
    def unit(self) -> str:
        """The word for a sample: ``image`` or ``vector``."""
        return "vector" if self.length else "image"
