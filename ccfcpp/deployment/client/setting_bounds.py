"""Checks of a run's settings by a client, so that a server cannot choose revealing ones.

The gradient of a linear layer over pixels is a multiple of the image itself. And with a tiny
learning rate the model hardly changes, so that the sums of many steps can be solved for single
images. So networks must have the architecture of an installed preset, and rates must not be far
below those of presets. Nor does a server choose which images are trained on. An owner can accept
more settings by name.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from ccfcpp.clustering.auto_settings import settings_over_a_network
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config_layers import flatten, read_yaml
from ccfcpp.core.presets import preset_file, preset_names
from supervised.config import ClassifyConfig

Command = Literal["cluster", "classify"]

EVERYTHING = "all"
"""Value of ``accept`` with which an owner accepts all settings."""

_SHAPES = (
    *("scan.encoder", "scan.stem", "scan.widths", "scan.hidden", "scan.latent"),
    *("scan.normalisation", "crops.widths", "crops.hidden", "crops.latent"),
    *("model.widths", "model.latent", "model.projector_width", "model.predictor_width"),
    *("model.representation", "orchestra.widths", "orchestra.latent"),
    *("dcn.widths", "dcn.latent", "gan.noise", "gan.generator_width", "gan.discriminator_width"),
    *("views.area", "views.ratio", "views.blur"),
    # A smaller one would tell rarer values of the columns with categories.
    "vectors.rare",
    # Two runs with other splits would train on images that differ by one.
    *("data.train_images", "data.test_images", "data.test_share"),
)
"""Settings of networks, pooled representations, ranges of views and splits: only values of presets
are accepted."""

_RATES = (
    *("scan.learning_rate", "scan.matrix_rate", "crops.learning_rate", "crops.matrix_rate"),
    *("training.learning_rate", "affine.rotation", "affine.scale", "affine.shear", "affine.shift"),
    *("spp.noise", "orchestra.learning_rate", "dcn.learning_rate", "gan.generator_rate"),
    *("gan.discriminator_rate", "views.rotation", "views.blur_probability"),
)
"""Learning rates and strengths of augmentations: accepted from a tenth of the smallest value in a
preset."""

_PARTS = {"cluster": ("cluster", "private"), "classify": ("classify",)}
_SIDES, _COUNTS, _LENGTHS = (8, 16, 32, 64, 128, 256, 512), (100, 10_000, 100_000), (4, 100)


def refused_setting(
    command: Command, config: Mapping[str, object], accepted: tuple[str, ...]
) -> str | None:
    """Return the first setting of networks or rates that is refused, as KEY=VALUE; else None.

    Args:
        command: ``cluster`` or ``classify``.
        config: The run's nested settings.
        accepted: Further settings that the owner accepts, as KEY=VALUE, or ``all``.
    """
    if EVERYTHING in accepted:
        return None
    method = str(config.get("method"))
    known = _accepted_values(command, method if method in METHODS else "")
    for key, value in flatten(config):
        setting = f"{key}={_text(value)}"
        if setting in accepted or key not in known:
            continue
        if key in _RATES:
            least = min(float(text) for text in known[key]) / 10
            if not isinstance(value, int | float) or value < least:
                return setting
        elif _text(value) not in known[key]:
            return setting
    return None


@functools.cache
def _accepted_values(command: Command, method: str) -> dict[str, set[str]]:
    """Return accepted values as text, by setting: of defaults, presets and automatic settings.

    ``method``: the system whose sections have defaults, too; empty for none.
    """
    values: dict[str, set[str]] = {}
    for tree in _known_configs(command, method):
        for key, value in flatten(tree):
            if key in _SHAPES or key in _RATES:
                values.setdefault(key, set()).add(_text(value))
    return values


def _known_configs(command: Command, method: str) -> Iterator[Mapping[str, Any]]:
    defaults = ClusterConfig() if command == "cluster" else ClassifyConfig()
    yield defaults.model_dump(mode="json")
    if method:
        sections = METHODS[method].sections.items()
        yield {name: kind().model_dump(mode="json") for name, kind in sections}
        yield METHODS[method].fixed
    for name in preset_names():
        if name.partition("/")[0] in _PARTS[command]:
            yield read_yaml(preset_file(name))
    if command == "cluster":
        shapes = [(c, side, side) for c in (1, 3) for side in _SIDES] + [(d,) for d in _LENGTHS]
        yield from (settings_over_a_network(n, shape) for n in _COUNTS for shape in shapes)


def _text(value: object) -> str:
    """Return a setting's value as text, as on a command line."""
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)
