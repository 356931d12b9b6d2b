"""The settings of a run that a client accepts, so that sums reveal no single images.

The gradient of a linear layer over pixels is the image itself, and a model that hardly moves makes
sums of later steps equations for the same unknowns. So networks must have the shape of an installed
preset, and rates must be of the size that presets have. An owner can accept more by name.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from ccfcpp.clustering.auto_settings import settings_over_a_network
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config_layers import flatten, read_yaml
from ccfcpp.core.presets import preset_file, preset_names
from supervised.config import ClassifyConfig

Command = Literal["cluster", "classify"]

EVERYTHING = "all"
"""Entry of ``accept`` by which an owner sets no bounds."""

_SHAPES = (
    *("scan.encoder", "scan.stem", "scan.widths", "scan.hidden", "scan.latent"),
    *("scan.normalisation", "crops.widths", "crops.hidden", "crops.latent", "crops.loss"),
    *("model.widths", "model.latent", "model.projector_width", "model.predictor_width"),
    "model.representation",
)
"""Settings of networks, and of what is pooled: those of a preset are accepted."""

_RATES = (
    *("scan.learning_rate", "scan.matrix_rate", "crops.learning_rate", "crops.matrix_rate"),
    *("training.learning_rate", "affine.rotation", "affine.scale", "affine.shear", "affine.shift"),
)
"""Settings that are accepted from a tenth of the least one in a preset: by how much steps move the
model, and by how much views differ from their image."""

_PARTS = {"cluster": ("cluster", "private"), "classify": ("classify",)}
_SIDES, _COUNTS, _LENGTHS = (8, 16, 32, 64, 128, 256, 512), (100, 10_000, 100_000), (4, 100)


def out_of_bounds(
    command: Command, config: Mapping[str, object], accepted: tuple[str, ...]
) -> str | None:
    """Return the setting that a client refuses, as KEY=VALUE; None if all are accepted.

    Args:
        command: What the run is to learn.
        config: Its settings, by section.
        accepted: Settings that the owner accepts beyond those of presets, as KEY=VALUE, or ``all``.
    """
    if EVERYTHING in accepted:
        return None
    known = _known(command)
    for key, value in flatten(config):
        asked = f"{key}={_text(value)}"
        if asked in accepted or key not in known:
            continue
        if key in _RATES:
            least = min(float(text) for text in known[key]) / 10
            if not isinstance(value, int | float) or value < least:
                return asked
        elif _text(value) not in known[key]:
            return asked
    return None


@functools.cache
def _known(command: Command) -> dict[str, set[str]]:
    """Return the values in presets and in settings for an owner's data, by key, as text."""
    found: dict[str, set[str]] = {}
    for tree in _trees(command):
        for key, value in flatten(tree):
            if key in _SHAPES or key in _RATES:
                found.setdefault(key, set()).add(_text(value))
    return found


def _trees(command: Command) -> Iterator[Mapping[str, Any]]:
    defaults = ClusterConfig() if command == "cluster" else ClassifyConfig()
    yield defaults.model_dump(mode="json")
    for name in preset_names():
        if name.partition("/")[0] in _PARTS[command]:
            yield read_yaml(preset_file(name))
    if command == "cluster":
        shapes = [(c, side, side) for c in (1, 3) for side in _SIDES] + [(d,) for d in _LENGTHS]
        yield from (settings_over_a_network(n, shape) for n in _COUNTS for shape in shapes)


def _text(value: object) -> str:
    """Format a value as an owner would write it on a command line."""
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)
