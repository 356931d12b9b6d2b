"""Rules with which the owner of a client's images limits what the client sends.

This module does not import PyTorch, so that ``ccfcpp join --help`` is fast.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator, model_validator

from ccfcpp.core.config import Count, Positive, PositiveNumber, Section, require
from ccfcpp.core.config_layers import flatten, parse_yaml, validated
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.files import with_last_name
from ccfcpp.core.permissions import ALWAYS, KINDS, OPTIONAL, Kind

if TYPE_CHECKING:
    from ccfcpp.deployment.link.run_spec import RunSpec

SUFFIX = ".rules"
"""Suffix of the file with the rules, which lies beside the client's key."""
NO_ROSTER = (
    "secure sums need a roster that the authority has signed, and there is none: let the server's "
    "operator get one by ccfcpp keys roster, and begin a new run"
)
"""Message of a client that refuses secure sums, since it does not know the other clients' keys."""


class ForbiddenError(Exception):
    """The owner's rules do not allow what a run asks for; the message says what."""


class Rules(Section):
    """Rules of a client's owner, which the client checks before it sends anything.

    The text below each rule (field) is also the help text of its option of ``ccfcpp join``.
    """

    allow: tuple[Kind, ...] = ()
    """Also send this kind of data. Models, centroids of latents and sums are allowed."""
    smallest_count: Count = 5
    """Send no centroid, mean or sum over fewer images, and take part in no run with fewer."""
    only_secure_sums: bool = False
    """Refuse a run in which the server sees what this client sends."""
    honest: Annotated[int, Field(ge=2)] = 2
    """Refuse a secure sum in which the server could learn the sum of fewer honest clients, this one
    among them."""
    colluders: Count = 0
    """Number of other clients that help the server, for --honest."""
    only_private: PositiveNumber | None = None
    """Refuse a run without differential privacy, or with a larger ε; with --only-secure-sums also
    one in which the server adds the noise."""
    budget: PositiveNumber | None = None
    """Refuse what would cost more ε in all runs together, by the client's own reckoning."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """Largest δ accepted with --only-private or --budget."""
    most_exchanges: Positive = 5000
    """Refuse further exchanges of a run; each reveals a sum or a model."""
    restarts: Count = 10
    """Let a server that was started again repeat what was lost so many times in a run."""
    accept: tuple[str, ...] = ()
    """Also accept this setting of a run, which no installed preset has; all: any."""
    reproducible: bool = False
    """Draw from the run's seed, as a run in one process does, and answer what was
    answered before, for tests only. The server then knows which images are in a sum."""

    @field_validator("allow", mode="before")
    @classmethod
    def _kinds_are_known(cls, value: Iterable[object]) -> object:
        for kind in value:
            if kind not in KINDS:
                raise UsageError(
                    KeyValue("allow", kind), f" is refused: it should be {' or '.join(OPTIONAL)}"
                )
        return value

    @model_validator(mode="after")
    def _delta_belongs_to_epsilon(self) -> "Rules":
        if "delta" in self.model_fields_set and not self.wants_noise:
            raise UsageError(
                KeyValue("delta", self.delta),
                " has no effect: it needs ",
                require("only_private", ...),
                " or ",
                require("budget", ...),
                "; give one of them, or leave it out",
            )
        return self

    @property
    def wants_noise(self) -> bool:
        """Whether the owner requires differential privacy."""
        return self.only_private is not None or self.budget is not None

    @property
    def allowed(self) -> frozenset[Kind]:
        """All kinds of data, such as models, that the client may send."""
        return ALWAYS | frozenset(self.allow)

    def check(self, spec: "RunSpec") -> None:
        """Check a run's description against the rules.

        Raises:
            ForbiddenError: The owner does not allow this run.
        """
        from ccfcpp.deployment.client.setting_bounds import refused_setting

        if wanted := [kind for kind in spec.kinds if kind not in self.allowed]:
            raise ForbiddenError(f"its owner does not allow {wanted[0]} (--allow {wanted[0]})")
        if setting := refused_setting(spec.command, spec.config, self.accept):
            raise ForbiddenError(
                f"the run sets {setting}, which no installed preset has (--accept {setting})"
            )
        least = self.fewest_images(spec)
        for key, size in flatten(spec.config):
            if key.endswith(".batch_size") and isinstance(size, int) and size < least:
                raise ForbiddenError(
                    f"the run sets {key}={size}, and its owner wants {least} images in each sum "
                    "(--smallest-count)"
                )
        privacy = spec.privacy
        if self.only_secure_sums and not privacy.secure_sums:
            raise ForbiddenError("its owner allows secure sums alone (--only-secure-sums)")
        if self.wants_noise and (why := self._too_little_noise(spec)):
            raise ForbiddenError(f"{why} (--only-private, --budget, --delta)")
        if self.smallest_count and privacy.level == "image" and not privacy.secure_sums:
            raise ForbiddenError(
                "with privacy.level = image the server sees sums over single images, and its owner "
                f"wants {self.smallest_count} in each: give --secure-sums (--smallest-count)"
            )

    def sends_class_names(self, spec: "RunSpec") -> bool:
        """Return whether the client sends class names: if counts are allowed, or to classify."""
        return "counts" in self.allow or spec.command == "classify"

    def check_data(self, spec: "RunSpec", samples: int, held: int, classes: int) -> None:
        """Check the size of a client's data against the rules.

        Args:
            spec: Description of the run.
            samples: Number of samples for training.
            held: Number of all samples, for training and for testing.
            classes: Number of classes in the client's labels.

        Raises:
            ForbiddenError: There are fewer samples than ``smallest_count``, or so many classes
                that their names could identify samples, as patient numbers would.
        """
        if samples < self.smallest_count:
            raise ForbiddenError(
                f"it holds {samples} images, and its owner wants {self.smallest_count} in each sum "
                "(--smallest-count)"
            )
        if self.smallest_count and self.sends_class_names(spec) and 2 * classes > held:
            raise ForbiddenError(
                f"it has {classes} classes for {held} samples, which their names would tell "
                "apart: its owner takes other classes, or does not allow counts or classes"
            )

    def fewest_images(self, spec: "RunSpec") -> int:
        """Return the fewest images in any sum that is sent; 0 if ``privacy.level`` is ``image``."""
        # With privacy.level = image sums are secure (see ``check``). A minimum would leak: a single
        # image could decide whether a sum is sent.
        if spec.privacy.level == "image":
            return 0
        wanted, floor = spec.privacy.smallest_count, self.smallest_count
        # A multiple of the owner's number: each group in a training step consists of whole groups
        # of the owner's size.
        return -(-max(wanted, floor) // floor) * floor if floor else wanted

    def _too_little_noise(self, spec: "RunSpec") -> str | None:
        privacy, most = spec.privacy, self.only_private
        if privacy.level == "none":
            return "the run has no differential privacy"
        if privacy.reproducible_noise:
            return "privacy.reproducible_noise protects nothing"
        if most is not None and privacy.epsilon > most:
            return f"privacy.epsilon = {privacy.epsilon:g} is more than {most:g}"
        if self.only_secure_sums and not privacy.own_noise:
            return "privacy.noise_at = server lets the server see sums without noise"
        if privacy.delta > self.delta:
            return f"privacy.delta = {privacy.delta:g} is more than {self.delta:g}"
        return None


def beside(key: Path, suffix: str) -> Path:
    """Return the path of a file or folder beside a key; it stays when the key is renewed.

    Example:
        >>> beside(Path("keys/a.key.old"), ".rules")
        PosixPath('keys/a.rules')
    """
    key = with_last_name(key)
    return key.with_name(key.name.removesuffix(".old")).with_suffix(suffix)


def read_rules(path: Path, given: Mapping[str, Any]) -> Rules:
    """Read an owner's rules from a file; rules from the command line override them.

    Args:
        path: YAML file with the fields of ``Rules``; it may be missing.
        given: Fields from the command line. The lists ``allow`` and ``accept`` are appended to
            those of the file.

    Raises:
        UsageError: The file cannot be read, or a value is not valid.
    """
    try:
        written = parse_yaml(path.read_bytes()) or {}
    except FileNotFoundError:
        written = {}
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read as YAML ({error}): mend it, or move it away"
        ) from error
    if not isinstance(written, dict):
        raise UsageError(f"{path} holds no settings: write lines such as smallest_count: 5")
    for name in ("allow", "accept"):
        if not isinstance(written.get(name) or [], list):
            raise UsageError(f"{name} in {path} is no list: write {name}: [{written[name]}]")
    values = {**written, **given}
    for name in ("allow", "accept"):
        values[name] = [*(written.get(name) or ()), *given.get(name, ())]
    try:
        return validated(Rules, values)
    except UsageError as error:
        if any(isinstance(part, KeyValue) and part.key in given for part in error.parts):
            raise
        raise UsageError(*error.parts, f" (in {path})") from None
