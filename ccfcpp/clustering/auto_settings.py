"""Settings of Fed-SCAN and Fed-EMP for a user's own images, by their size, colour and number.

The values are those of presets, or lie between them: of the digits' preset for few small images, of
MNIST's for many grey images, and of CIFAR-10's for many images in colour.
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
"""Steps of training with clients on other machines, for fewer and for more than ``_MANY`` images.
Each step takes seconds, so that they are few, with large batches; with 60 steps on MNIST, some runs
mix the classes of a cluster."""
_LONG, _COMPONENTS = 32, 20
"""Vectors longer than this are reduced to so many principal components for Fed-EM, since the data
may not determine a full covariance for each cluster."""
_SMALLEST_FOR_GRADIENTS = 16
"""Smallest side in pixels for histograms of gradients, which need cells of several pixels."""
_SMALLEST_FOR_CROPS, _FEWEST_FOR_CROPS = 24, 1000
"""Smallest side in pixels, and fewest images in colour, for which Fed-EMP is chosen."""
_WIDTHS = (8, 8, 8, 16, 32, 64, 128)
_CROP_WIDTHS = (8, 8, 16, 32, 64, 128, 256)
"""Channels of the convolutions; a network for small images uses only the last of them. Fed-EMP
halves the resolution once less, since a crop is half as wide as the image."""


def settings_for(count: int, shape: Sequence[int], method: str = "fed-scan") -> Tree:
    """Choose settings of Fed-SCAN and Fed-EMP for images, or of Fed-SCAN and Fed-EM for vectors.

    For 1,000 or more images in colour of 24 × 24 pixels or more, they also select Fed-EMP, and
    products in 16 bits where the device has instructions for them, whatever the method.

    Args:
        count: Number of images or vectors.
        shape: Shape of an image (channels, height, width) or of a vector (d,).
        method: Name of the system otherwise; Fed-EM gets principal components of long vectors.
    """
    settings = _settings_without_method(count, shape, method)
    colour = len(shape) == 3 and shape[0] > 1
    if colour and count >= _FEWEST_FOR_CROPS and min(shape[1:]) >= _SMALLEST_FOR_CROPS:
        settings |= {"method": "fed-emp", "compute": {"precision": "auto"}}
    return settings


def _settings_without_method(count: int, shape: Sequence[int], method: str) -> Tree:
    few, batch = count < _FEW, min(max(count, 2), _FEW)
    # Four epochs, but no fewer steps than 120 and no more than 300.
    steps = min(max(120, 4 * count // batch), 300)
    if len(shape) == 1:
        of_vectors: Tree = {
            "hidden": 64 if few else 256,
            "latent": 32 if few else 128,
            "batch": batch,
            "steps": steps,
            "neighbours": 5 if few else 10,
            "overclustering": 1 if count < _FEW // 4 else 3,
        }
        long = shape[0] > _LONG and method == "fed-em"
        return {"scan": of_vectors} | ({"vectors": {"components": _COMPONENTS}} if long else {})
    channels, height, width = shape
    side, colour = min(height, width), channels > 1
    # The last convolution has a resolution of four pixels or fewer.
    halvings = min(max(1, math.ceil(math.log2(max(side, 1) / 4))), len(_WIDTHS))
    scan: Tree = {
        "widths": list(_WIDTHS[-halvings:]),
        "stem": 64 if side <= 8 else 0,
        "hidden": 128 if few else 256,
        "latent": 128 if few else 256,
        "batch": batch,
        "steps": steps,
        "overclustering": 1 if count < _FEW // 4 else 5 if colour and count >= _MANY else 3,
        "neighbours": 5 if few else 50 if colour and count >= _MANY else 10,
    }
    if not colour and scan["overclustering"] > 1:
        scan["merged_from"] = 0.5
    if colour and side >= _SMALLEST_FOR_GRADIENTS:
        scan |= {"first_neighbours": "gradients", "first_weight": 1.0}
    colours: Tree = {"saturation": 0.4, "tint": 0.2, "grey_probability": 0.2} if colour else {}
    # At least four epochs, with 8 crops of each image in each.
    crops = {
        "widths": list(_CROP_WIDTHS[-max(4, halvings + 1) :]),
        "steps": min(max(150, count // 50), 1200),
        "batch": min(max(count, 2), 200),
    }
    intensity = {"brightness": 0.4, "contrast": 0.4} | colours
    return {"scan": scan, "crops": crops, "intensity": intensity}


def settings_over_a_network(count: int, shape: Sequence[int]) -> Tree:
    """Return settings of Fed-SCAN for clients on other machines: fewer steps with larger batches.

    The arguments are those of ``settings_for``. Fed-EMP is never selected, since it needs hundreds
    of exchanges.
    """
    settings = _settings_without_method(count, shape, "fed-scan")
    images_in_all_steps = settings["scan"]["steps"] * settings["scan"]["batch"]
    steps = _STEPS_OVER_A_NETWORK if count < _MANY else _STEPS_OF_MANY
    fewer = {
        "steps": steps,
        "batch": max(2, min(count, -(-images_in_all_steps // steps))),
        "mine_every": steps // 4,
        "lagged": True,
        "exact_steps": steps // 6,
    }
    return merge(settings, {"scan": fewer})


def describe_settings(config: ClusterConfig) -> str:
    """Return a phrase that tells users the settings chosen by their data; "" if there are none."""
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
