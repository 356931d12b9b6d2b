"""The description of a run that a client needs in order to work for it."""

from typing import Annotated, Literal

from pydantic import Field, ValidationError

from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import Section, Tree
from ccfcpp.core.errors import UsageError
from ccfcpp.core.sending import Kind
from ccfcpp.privacy.config import PrivacyConfig

Size = Annotated[int, Field(ge=0, le=10**9)]
Text = Annotated[str, Field(max_length=200)]
ClassNames = Annotated[tuple[Text, ...], Field(max_length=10**5)]


class RunSpec(Section):
    """Description of a run, which the server sends to its clients as JSON.

    From it and its own images a client builds its side of the algorithm. Of the other clients it
    says only how many they are and how many images they hold together.

    Attributes:
        command: What the clients learn: clustering or classification.
        config: The run's configuration, as settings by key.
        image_shape: Channels, height and width of an image, or the length of a vector; empty until
            clients have been asked.
        columns: Names of a vector's columns, in the order of the run; empty if they have none.
        clusters: Number of clusters k; 0 in classification.
        classes: Names of the classes, in the order of their numbers; empty if none are known.
        samples: Number of images of all participating clients.
        clients: Number of participating clients.
    """

    command: Literal["cluster", "classify"]
    config: Tree
    image_shape: tuple[Size, ...] = ()
    columns: ClassNames = ()
    clusters: Size = 0
    classes: ClassNames = ()
    samples: Size = 0
    clients: Size = 0

    @property
    def method(self) -> str:
        """Name of the clustering system or of the method of classification."""
        return str(self.config.get("method"))

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
        """Return a copy that says how much noise there is."""
        settings = self.config.get("privacy")
        privacy = {**(settings if isinstance(settings, dict) else {}), "noise": noise}
        return self.model_copy(update={"config": {**self.config, "privacy": privacy}})

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of data that leave a client, which its owner must allow."""
        if self.command == "classify":
            return ("models",)
        if self.method not in METHODS:
            raise UsageError(f"there is no system {self.method!r} here: install what brings it")
        return METHODS[self.method].kinds


class Facts(Section):
    """What a client says about its images before a run.

    Attributes:
        samples: Number of images that take part in training.
        image_shape: Channels, height and width of an image, or the length of a vector.
        columns: Names of a vector's columns, if they have any.
        classes: Names of its classes, if it has labels and may name them.
        counts: Whether it will tell how many images of each class are in which cluster.
    """

    samples: Size
    image_shape: Annotated[tuple[Size, ...], Field(min_length=1, max_length=3)]
    columns: ClassNames = ()
    classes: ClassNames = ()
    counts: bool = False
