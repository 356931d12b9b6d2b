"""The description of a run, from which each client builds its side of the run."""

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
"""Text that replaces a path on the server in settings for clients."""
_OF_THE_SERVER = ("dataset", "partition", "device", "track", "availability")
"""Settings that only the server uses."""
_PLACES = (("data", "root"), ("data", "newcomers"), ("feddp", "server"))
"""Section and key of settings that are paths on the server."""


class RunSpec(Section):
    """Description of a run, which the server sends to its clients as JSON.

    About the other clients it says only how many there are and how many images they have together.
    With secure sums clients also receive the signed roster, with all names and public keys.

    Attributes:
        command: ``cluster`` or ``classify``.
        config: The run's configuration, as nested settings.
        image_shape: Channels, height and width of an image, or the length of a vector; empty until
            clients have sent facts on their images.
        columns: Names of the vectors' columns, in the order of the run; empty if they have none.
        clusters: Number of clusters k, or its largest candidate; 0 for classification.
        classes: Names of the classes, in the order of their numbers; empty if none are known.
        samples: Number of images of all participating clients.
        clients: Number of participating clients.
        roster: Digest of the signed roster of clients, for secure sums; empty without secure sums.
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

    @field_validator("image_shape")
    @classmethod
    def _sides_are_bounded(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Refuse sides beyond ``data.image_size``: clients resize their images to them."""
        if len(shape) not in (0, 1, 3) or any(side > 4096 for side in shape[1:]):
            raise ValueError("images have three axes, and sides of at most 4096")
        return shape

    @field_validator("config")
    @classmethod
    def _remove_server_settings(cls, config: Tree) -> Tree:
        """Remove the settings that only the server uses, such as paths of its files."""
        kept = {key: value for key, value in config.items() if key not in _OF_THE_SERVER}
        for section, place in _PLACES:
            if isinstance(settings := kept.get(section), dict):
                kept[section] = {key: value for key, value in settings.items() if key != place}
                if place == "newcomers" and settings.get(place):
                    # Clients need to know that there are newcomers, but not the path.
                    kept[section][place] = [OWN_IMAGES]
        return kept

    @property
    def method(self) -> str:
        """Name of the clustering system or of the classification method."""
        return str(self.config.get("method"))

    @property
    def unit(self) -> str:
        """Type of the samples: ``image`` or ``vector``."""
        return "vector" if len(self.image_shape) == 1 else "image"

    @property
    def table_shape(self) -> tuple[int, int]:
        """Shape of a contingency table: (classes, clusters), or (classes, predicted classes)."""
        return len(self.classes), self.clusters or len(self.classes)

    @property
    def privacy(self) -> PrivacyConfig:
        """The run's privacy settings."""
        try:
            return PrivacyConfig.model_validate(self.config.get("privacy", {}))
        except ValidationError as error:
            raise UsageError("what the run does for privacy cannot be read") from error

    def with_noise(self, noise: float) -> "RunSpec":
        """Return a copy with ``privacy.noise`` = ``noise``: standard deviation / sensitivity."""
        settings = self.config.get("privacy")
        privacy = {**(settings if isinstance(settings, dict) else {}), "noise": noise}
        return self.model_copy(update={"config": {**self.config, "privacy": privacy}})

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of data, such as models, that clients send in this run if owners allow it."""
        kinds: tuple[Kind, ...] = ("models", "classes")
        if self.command == "cluster":
            if self.method not in METHODS:
                raise UsageError(f"there is no system {self.method!r} here: install what brings it")
            system = METHODS[self.method]
            kinds = (*system.kinds, *system.more_kinds(self.config))
        sections = map(self.config.get, ("scan", "model", "crops", "orchestra"))
        networks = [net for net in sections if isinstance(net, dict)]
        flat = any("widths" in net and not (net["widths"] or net.get("stem")) for net in networks)
        # Gradients of a fully connected first layer are weighted averages of the samples.
        more = (flat or self.unit == "vector") and not {"pixels", "images"} & set(kinds)
        return (*kinds, "pixels") if more else kinds


class Facts(Section):
    """Facts on a client's images or vectors, which it sends to the server before a run.

    Attributes:
        samples: Number of images for training.
        sizes: The original sizes of all its images, and whether some are in colour; None
            if it has vectors.
        length: The length of its vectors; 0 if it has images.
        columns: Names of the vectors' columns, if they have any.
        encoder: Content hash of the encoder that made its vectors; empty if unknown.
        skipped: Number of files that are left out because they cannot be read or are no images.
        classes: Names of its classes, if it has labels and its owner allows to send their names.
        counts: Whether it will send tables that count its images by class and cluster.
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
        """Type of the samples: ``image`` or ``vector``."""
        return "vector" if self.length else "image"
