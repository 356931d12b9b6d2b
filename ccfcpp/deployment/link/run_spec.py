"""What a client has to know of a run to work for it."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import Section
from ccfcpp.core.errors import UsageError
from ccfcpp.core.sending import Kind
from ccfcpp.privacy.config import PrivacyConfig

Size = Annotated[int, Field(ge=0, le=10**9)]
Text = Annotated[str, Field(max_length=200)]


class RunSpec(Section):
    """What the server tells of a run; a small value that goes as JSON.

    With it and its own images a client makes its half of the algorithm. It says nothing of other
    clients but how many they are and how many images they hold together.

    Attributes:
        command: What runs: clustering, or classification.
        config: The run's configuration, as settings by key.
        image_shape: Channels, height and width of an image; empty until clients have been asked.
        clusters: Number of clusters k; 0 in classification.
        classes: Names of the classes, in the order of their numbers; empty where none are known.
        samples: Images of all clients that take part.
        clients: How many they are.
    """

    command: Literal["cluster", "classify"]
    config: dict[str, Any]
    image_shape: tuple[Size, ...] = ()
    clusters: Size = 0
    classes: Annotated[tuple[Text, ...], Field(max_length=10**5)] = ()
    samples: Size = 0
    clients: Size = 0

    @property
    def method(self) -> str:
        """The system or the method."""
        return str(self.config.get("method"))

    @property
    def privacy(self) -> PrivacyConfig:
        """What the server says that the run does for privacy.

        Raises:
            UsageError: It is of another form.
        """
        try:
            return PrivacyConfig.model_validate(self.config.get("privacy", {}))
        except ValidationError as error:
            raise UsageError("what the run does for privacy cannot be read") from error

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What leaves a client, in kinds that its owner must allow.

        Raises:
            UsageError: No such system is installed.
        """
        if self.command == "classify":
            return ("models",)
        if self.method not in METHODS:
            raise UsageError(f"there is no system {self.method!r} here: install what brings it")
        return METHODS[self.method].kinds


@dataclass(frozen=True)
class PrivacyLimit:
    """How much a run may tell of a client or of an image, at most.

    Attributes:
        epsilon: The largest ε.
        delta: The largest δ.
    """

    epsilon: float
    delta: float

    def exceeded(self, privacy: PrivacyConfig) -> str | None:
        """What a run does that its owner does not allow, in words; None where all is well."""
        if privacy.level == "none":
            return "the run has no differential privacy"
        if privacy.reproducible_noise:
            return "privacy.reproducible_noise protects nothing"
        if privacy.epsilon > self.epsilon:
            return f"privacy.epsilon = {privacy.epsilon:g} is more than {self.epsilon:g}"
        if privacy.delta > self.delta:
            return f"privacy.delta = {privacy.delta:g} is more than {self.delta:g}"
        return None


class Facts(Section):
    """What a client tells of its images before a run.

    Attributes:
        samples: How many take part in training.
        image_shape: Channels, height and width.
        classes: Names of its classes, where it has labels and may speak of them.
        counts: Whether it will say how many of its images of each class were put where.
    """

    samples: Size
    image_shape: Annotated[tuple[Size, ...], Field(min_length=3, max_length=3)]
    classes: Annotated[tuple[Text, ...], Field(max_length=10**5)] = ()
    counts: bool = False
