"""Which runs a table or a figure needs, and where they lie."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ccfcpp.core.config import RunConfig, Tree
from ccfcpp.core.config_layers import read_yaml, values_of
from ccfcpp.core.errors import UsageError
from ccfcpp.core.presets import preset_file
from ccfcpp.data.places import root_folder
from ccfcpp.runs.paths import MAY_CHANGE, C
from ccfcpp.runs.study import Planned, plan_grid

Cells = Mapping[str, Sequence[Any]]
"""Values by dotted key, all combinations of which are run."""
Grid = Sequence[Cells]
"""One after the other."""


@dataclass(frozen=True)
class ImageFolder:
    """Images that no name of a data set stands for.

    Attributes:
        name: What to call them.
        find: Where they are: from a folder into which they may be written first, and the folder of
            the data sets, which is that of ``$CCFCPP_DATA`` where it is None.
    """

    name: str
    find: Callable[[Path, Path | None], Path]


@dataclass(frozen=True)
class Block:
    """Runs over some shipped settings.

    Attributes:
        layers: Names of shipped configuration files, such as ``feddecorr/table1``.
        grid: What is run; the grid of the last file that has one where it is empty.
        seeds: How many seeds each cell has.
        images: The images, where the settings name none.
    """

    layers: tuple[str, ...] = ()
    grid: Grid = ()
    seeds: int = 1
    images: ImageFolder | None = None


@dataclass(frozen=True)
class Stored(Planned[C]):
    """A run whose folder is named by its whole configuration: items that need it share it."""

    @property
    def folder(self) -> Path:
        """Its folder inside the runs'."""
        facts = values_of(self.config)
        heeded = {key: value for key, value in facts.items() if key not in MAY_CHANGE}
        # A folder of images may be moved, as data sets' folders may.
        name = heeded["dataset"] = dataset_name(self.config)
        digest = hashlib.sha256(json.dumps(heeded, sort_keys=True).encode()).hexdigest()
        return Path(f"{heeded['method']}-{name}-{digest[:12]}")


def dataset_name(config: RunConfig) -> str:
    """The name of a data set, or of the folder of its images."""
    return Path(config.dataset).name


def plan_blocks(
    kind: type[C],
    presets: str,
    blocks: Sequence[Block],
    values: Tree,
    folder: Path,
    data_root: Path | None,
    dataset: str | None = None,
    base: Tree | None = None,
) -> list[Stored[C]]:
    """All runs of some blocks, or those on one data set.

    Args:
        kind: The kind of their configurations.
        presets: Folder of the data sets' presets.
        blocks: What is to be run.
        values: Single values over everything.
        folder: Where images that a block makes are put.
        data_root: Folder of the data sets; ``$CCFCPP_DATA`` where it is None.
        dataset: The name of the only data set.
        base: Settings of all runs, under those of a block.

    Raises:
        UsageError: A value is out of its range, images are missing, or no run is on the data set.
    """
    runs: list[Stored[C]] = []
    names: list[str] = []
    for block in blocks:
        layers = [base or {}]
        layers += [read_yaml(preset_file(layer)) for layer in block.layers]
        if block.images is not None:
            names.append(block.images.name)
            if dataset not in (None, block.images.name):
                continue
            layers.append({"dataset": str(block.images.find(folder, data_root).resolve())})
        if block.grid:
            lists = [{key: list(choices) for key, choices in grid.items()} for grid in block.grid]
            layers.append({"grid": lists})
        planned = plan_grid(kind, presets, layers, values, block.seeds)
        runs += [Stored(run.axes, run.config) for run in planned]
    names += [dataset_name(run.config) for run in runs]
    if dataset is not None and dataset not in names:
        known = " or ".join(dict.fromkeys(names))
        raise UsageError(f"--dataset {dataset} is none of this item's: take {known}")
    wanted = [run for run in runs if dataset in (None, dataset_name(run.config))]
    return list({run.folder: run for run in wanted}.values())


def data_folder(name: str) -> ImageFolder:
    """Images that nobody may hand on: a folder of that name among the data sets."""

    def find(made: Path, data_root: Path | None) -> Path:
        path = root_folder(data_root) / name
        if not path.is_dir():
            raise UsageError(
                f"{path} is missing, which this table needs: put the folder of the domains there, "
                "or give another --data-root"
            )
        return path

    return ImageFolder(name, find)
