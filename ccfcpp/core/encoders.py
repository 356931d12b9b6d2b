"""Names of pre-trained encoders, as a user types them; this module loads none."""

import difflib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from ccfcpp.core.errors import UsageError

Family = Literal["torchvision", "timm", "sentence-transformers", "onnx", "torchscript"]
FORMS = (
    "torchvision:NAME[:WEIGHTS], timm:NAME, either with @FILE.safetensors for weights that you "
    "have, sentence-transformers:NAME or the folder of such a model, FILE.onnx, or FILE.pt (a "
    "TorchScript program)"
)
_BY_NAME: tuple[Family, ...] = ("torchvision", "timm", "sentence-transformers")
_BY_SUFFIX: dict[str, Family] = {".onnx": "onnx", ".pt": "torchscript", ".ts": "torchscript"}


@dataclass(frozen=True)
class EncoderName:
    """The name of a pre-trained encoder, as a user gives it, split into its parts.

    Attributes:
        family: The library, or the kind of file.
        name: In a library the architecture or model; otherwise the file or folder.
        weights: Name of the published weights; empty for the library's default.
        file: A file of weights in place of published ones; empty without one.
    """

    family: Family
    name: str
    weights: str = ""
    file: str = ""

    @staticmethod
    def parse(text: str) -> "EncoderName":
        """Split a name, such as ``timm:resnet18``, into its parts.

        Raises:
            UsageError: The text is not written as the name of an encoder.
        """
        family, colon, rest = text.partition(":")
        if colon and family in _BY_NAME and rest:
            known: Family = next(name for name in _BY_NAME if name == family)
            if known == "sentence-transformers":
                return EncoderName(known, rest)
            named, _, file = rest.partition("@")
            name, _, weights = named.partition(":") if known == "torchvision" else (named, "", "")
            if name and (file or not rest.endswith("@")):
                return EncoderName(known, name, weights, file)
        elif by_suffix := _BY_SUFFIX.get(PurePath(text).suffix.lower()):
            return EncoderName(by_suffix, text)
        elif "/" in text or text == ".":
            return EncoderName("sentence-transformers", text)
        misspelt = colon and family not in _BY_NAME
        near = difflib.get_close_matches(family, _BY_NAME, n=1) if misspelt else []
        hint = f"did you mean {near[0]}:{rest}? It" if near else "it"
        raise UsageError(f"encoder {text!r} is refused: {hint} should be {FORMS}")

    @property
    def by_path(self) -> bool:
        """Whether it names a file or folder, which must exist."""
        is_file = bool(self.file) or self.family in ("onnx", "torchscript")
        return is_file or self.name.startswith((".", "/", "~"))

    @property
    def takes(self) -> Literal["images", "texts"]:
        """The kind of samples that it embeds."""
        return "texts" if self.family == "sentence-transformers" else "images"

    @property
    def called(self) -> str:
        """The name to show, without folders, so that it means the same on other machines."""
        if self.family in ("torchvision", "timm"):
            return ":".join(filter(None, (self.family, self.name, self.weights)))
        last = PurePath(self.name).name
        return f"{self.family}:{last}" if self.family == "sentence-transformers" else last

    @property
    def is_program(self) -> bool:
        """Whether it is a program (TorchScript), which could do anything when it is loaded."""
        return self.family == "torchscript"

    def may_be(self, other: "EncoderName") -> bool:
        """Return whether two names may mean the same encoder; only a hash can prove it."""
        both = (self.family, self.name), (other.family, other.name)
        named = all(family in ("torchvision", "timm") for family, _ in both)
        return both[0] == both[1] if named else self.takes == other.takes


def refuse_program(saved: object, named: Collection[object]) -> None:
    """Refuse a saved run's encoder if it is a program that the user has not named.

    Args:
        saved: Name of the encoder in the run's folder; None without one.
        named: Names of encoders that the user has given.

    Raises:
        UsageError: It is a program, which could do anything when it is loaded.
    """
    if isinstance(saved, str) and saved not in named and EncoderName.parse(saved).is_program:
        raise UsageError(
            f"the run's encoder is the program {saved}: give it by --encoder (encoder= in "
            "Python), if you trust it"
        )
