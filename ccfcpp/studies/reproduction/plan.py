"""Runs that a table or figure of a paper (item) needs, and their folders."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config import RunConfig, Tree
from ccfcpp.core.config_layers import C, read_yaml, values_of
from ccfcpp.core.errors import UsageError
from ccfcpp.core.presets import preset_file
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.open import load
from ccfcpp.data.registry import root_folder
from ccfcpp.studies.grids import Axes, PlannedRun, config_hash, study_spec
from ccfcpp.studies.reproduction.paper_items import Item
from ccfcpp.studies.results import dataset_name
from supervised.config import ClassifyConfig

DIGIT_DOMAINS = "digit-domains"
"""Name of the folder of generated images."""

_DOMAINS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "plain": lambda image: image,
    "inverted": lambda image: image.point(lambda value: 255 - value),
    "turned": lambda image: image.transpose(Image.Transpose.ROTATE_90),
    "blurred": lambda image: image.filter(ImageFilter.GaussianBlur(1)),
}


def write_digit_domains(folder: Path) -> Path:
    """Write scikit-learn's digits as images of four domains (plain, inverted, turned, blurred).

    Each digit is in one domain. Files are ``digit-domains/DOMAIN/CLASS/NUMBER.png`` in ``folder``;
    the folder ``digit-domains`` is returned. Nothing is done if it is complete already.
    """
    path = folder / DIGIT_DOMAINS
    done = path.with_suffix(".done")
    if done.is_file():
        return path
    data = load("digits")
    assert data.labels is not None
    order = torch.randperm(len(data), generator=Randomness(0).generator("digit domains"))
    for (name, show), part in zip(_DOMAINS.items(), order.chunk(len(_DOMAINS)), strict=True):
        for index in part.tolist():
            place = path / name / data.classes[int(data.labels[index])] / f"{index:04}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            show(Image.fromarray(np.asarray(data.images[index, 0]))).save(place)
    done.touch()
    return path


def plan_run(axes: Axes, config: C) -> PlannedRun[C]:
    """Plan a run in a folder named by its configuration's hash: tables share equal runs."""
    # The name, not the path, of a folder of images: the folder may be moved.
    name, method = dataset_name(config), values_of(config)["method"]
    return PlannedRun(
        axes, config, Path(f"{method}-{name}-{config_hash(config, dataset=name)[:12]}")
    )


def plan_item(
    item: Item,
    quick: bool,
    values: Tree,
    folder: Path,
    data_root: Path | None,
    dataset: str | None = None,
) -> list[PlannedRun[RunConfig]]:
    """Plan the runs that reproduce a table or figure (item) of a paper, without duplicates.

    If ``quick``, they are its short runs on little data; if ``dataset`` is given, only those on it.
    ``values`` override all other settings. Generated images go into ``folder``; ``data_root`` is
    the folder of the data sets, ``$CCFCPP_DATA`` if it is None.

    Raises:
        UsageError: A value is not allowed, images are missing, or no run is on ``dataset``.
    """
    kind: type[RunConfig] = ClusterConfig if item.command == "cluster" else ClassifyConfig
    runs: list[PlannedRun[RunConfig]] = []
    names: list[str] = []
    for block in item.quick if quick else item.full:
        layers = [item.base, *(read_yaml(preset_file(file)) for file in block.files)]
        if block.images is not None:
            names.append(block.images)
            if dataset not in (None, block.images):
                continue
            path = images_folder(block.images, folder, data_root)
            layers.append({"dataset": str(path.resolve())})
        layers.append(block.settings | ({"grid": list(block.grid)} if block.grid else {}))
        planned = study_spec(kind, [*layers, values], block.seeds).plan_runs(kind, item.command)
        runs += [plan_run(run.axes, run.config) for run in planned]
    names += [dataset_name(run.config) for run in runs]
    if dataset is not None and dataset not in names:
        known = " or ".join(dict.fromkeys(names))
        raise UsageError(f"--dataset {dataset} is none of this item's: take {known}")
    wanted = [run for run in runs if dataset in (None, dataset_name(run.config))]
    return list({run.folder: run for run in wanted}.values())


def images_folder(name: str, made: Path, data_root: Path | None) -> Path:
    """Return the folder of the images called ``name``, which are no named data set.

    ``digit-domains`` is generated, inside the folder ``made``. Other images may not be
    redistributed; the user puts them beside the data sets (see ``plan_item``).

    Raises:
        UsageError: The folder is missing.
    """
    if name == DIGIT_DOMAINS:
        return write_digit_domains(made)
    path = root_folder(data_root) / name
    if not path.is_dir():
        raise UsageError(
            f"{path} is missing, which this table needs: put the folder of the domains there, "
            "or give another --data-root"
        )
    return path
