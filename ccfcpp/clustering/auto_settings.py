"""Settings of Fed-SCAN and Fed-EMP for a user's own images, by their size, colour and number.

The values are those of the presets, or between them: the digits' for few images of few pixels,
MNIST's for many grey ones, CIFAR-10's for many in colour.
"""

import math
from collections.abc import Sequence

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.systems.fed_emp.config import CropsConfig
from ccfcpp.clustering.systems.fed_scan.config import ScanConfig
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import merge

_FEW, _MANY = 2000, 20_000
_STEPS_OVER_A_NETWORK, _STEPS_OF_MANY = 60, 120
"""Each costs seconds there, and large batches cost nothing but time of the clients. Many images
take more of them: of MNIST's, 60 steps leave a cluster mixed in some runs."""
_LONG, _COMPONENTS = 32, 20
"""Length above which a mixture gets principal components of vectors, and their number: the data
could not determine a full covariance of each cluster."""
_SMALLEST_FOR_GRADIENTS = 16
"""Pixels a side: histograms of gradients need cells of some pixels."""
_SMALLEST_FOR_CROPS, _FEWEST_FOR_CROPS = 24, 1000
"""Pixels a side and images in colour, from which on Fed-EMP is the system."""
_WIDTHS = (8, 8, 8, 16, 32, 64, 128)
_CROP_WIDTHS = (8, 8, 16, 32, 64, 128, 256)
"""Channels of the last convolutions: the smaller the resolution, the more. Fed-EMP halves once
less, since a crop is half as wide as the image, and only after two convolutions."""


def settings_for(count: int, shape: Sequence[int], method: str = "fed-scan") -> Tree:
    """Return the system for images, and the settings of Fed-SCAN and Fed-EMP; of vectors, Fed-EM's.

    Args:
        count: Number of images or vectors.
        shape: Shape of an image (channels, height, width) or of a vector (d,).
        method: The system to take for images if their number and colour do not decide.
    """
    settings = _fitted(count, shape, method)
    colour = len(shape) == 3 and shape[0] > 1
    if colour and count >= _FEWEST_FOR_CROPS and min(shape[1:]) >= _SMALLEST_FOR_CROPS:
        settings |= {"method": "fed-emp", "compute": {"precision": "auto"}}
    return settings


def _fitted(count: int, shape: Sequence[int], method: str) -> Tree:
    if len(shape) == 1:
        settings = _settings_for_vectors(count)
        long = shape[0] > _LONG and method == "fed-em"
        return settings | ({"vectors": {"components": _COMPONENTS}} if long else {})
    channels, height, width = shape
    side, colour = min(height, width), channels > 1
    few = count < _FEW
    # Down to four pixels or fewer.
    halvings = min(max(1, math.ceil(math.log2(max(side, 1) / 4))), len(_WIDTHS))
    batch = min(max(count, 2), _FEW)
    scan: Tree = {
        "widths": list(_WIDTHS[-halvings:]),
        "stem": 64 if side <= 8 else 0,
        "hidden": 128 if few else 256,
        "latent": 128 if few else 256,
        "batch": batch,
        # Four epochs and more.
        "steps": min(max(120, 4 * count // batch), 300),
        "overclustering": 1 if count < _FEW // 4 else 5 if colour and count >= _MANY else 3,
        "neighbours": 5 if few else 50 if colour and count >= _MANY else 10,
    }
    if not colour and scan["overclustering"] > 1:
        scan["merged_from"] = 0.5
    if colour and side >= _SMALLEST_FOR_GRADIENTS:
        scan |= {"first_neighbours": "gradients", "first_weight": 1.0}
    colours: Tree = {"saturation": 0.4, "tint": 0.2, "grey_probability": 0.2} if colour else {}
    # Four passes and more, 8 crops of each image in each.
    crops = {
        "widths": list(_CROP_WIDTHS[-max(4, halvings + 1) :]),
        "steps": min(max(150, count // 50), 1200),
        "batch": min(max(count, 2), 200),
    }
    intensity = {"brightness": 0.4, "contrast": 0.4} | colours
    return {"scan": scan, "crops": crops, "intensity": intensity}


def _settings_for_vectors(count: int) -> Tree:
    """Return the settings for vectors, with many steps, since networks are small."""
    few = count < _FEW
    batch = min(max(count, 2), _FEW)
    return {
        "scan": {
            "hidden": 64 if few else 256,
            "latent": 32 if few else 128,
            "batch": batch,
            "steps": min(max(120, 4 * count // batch), 300),
            "neighbours": 5 if few else 10,
            "overclustering": 1 if count < _FEW // 4 else 3,
        }
    }


def settings_over_a_network(count: int, shape: Sequence[int]) -> Tree:
    """Return settings for fewer and larger steps, with two exchanges for each but the first ones.

    The system stays Fed-SCAN, since Fed-EMP has hundreds of exchanges.
    """
    settings = _fitted(count, shape, "fed-scan")
    shown = settings["scan"]["steps"] * settings["scan"]["batch"]
    steps = _STEPS_OVER_A_NETWORK if count < _MANY else _STEPS_OF_MANY
    fewer = {
        "steps": steps,
        "batch": max(2, min(count, -(-shown // steps))),
        "mine_every": steps // 4,
        "lagged": True,
        "exact_steps": steps // 6,
    }
    return merge(settings, {"scan": fewer})


def describe_settings(config: ClusterConfig) -> str:
    """Describe the settings that were chosen by the samples."""
    scan = config.section(ScanConfig)
    if config.data_kind == "vectors":
        if config.method == "fed-em":
            components = config.vectors.components
            return f"principal components: {components}" if components else ""
        return f"by the vectors' number: {scan.steps} steps of {scan.batch} vectors"
    if config.method == "fed-emp":
        crops = config.section(CropsConfig)
        return f"by the images' number: {crops.steps} steps of {crops.batch} images"
    return (
        f"by the images' size, colour and number: widths {list(scan.widths)}, {scan.steps} steps "
        f"of {scan.batch} images, first neighbours by {scan.first_neighbours}"
    )
