"""Which runs a table or a figure needs, and where they lie."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ccfcpp.config_layers import Tree, flatten, read_configs
from ccfcpp.data.sources import root_folder
from ccfcpp.errors import UsageError
from ccfcpp.run_folder import MAY_CHANGE, C
from ccfcpp.study import Planned, plan_grid

Cells = Mapping[str, Sequence[Any]]
"""Values by dotted key, all combinations of which are run."""
Grid = Sequence[Cells]
"""One after the other."""


@dataclass(frozen=True)
class Block:
    """Runs over some shipped settings.

    Attributes:
        layers: Names of shipped configuration files, such as ``feddecorr/table1``.
        grid: What is run; the grid of the last file that has one where it is empty.
        seeds: How many seeds each cell has.
        images: The folder of the images, where they are none that a name stands for. It may write
            them into the folder that it is given first; the second one is the data sets'.
    """

    layers: tuple[str, ...] = ()
    grid: Grid = ()
    seeds: int = 1
    images: Callable[[Path, Path | None], Path] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Stored(Planned[C]):
    """A run whose folder is named by its whole configuration: items that need it share it."""

    @property
    def folder(self) -> Path:
        """Its folder inside the runs'."""
        facts = dict(flatten(self.config.model_dump(mode="json")))
        heeded = {key: value for key, value in facts.items() if key not in MAY_CHANGE}
        digest = hashlib.sha256(json.dumps(heeded, sort_keys=True).encode()).hexdigest()
        return Path(f"{facts['method']}-{Path(self.config.dataset).name}-{digest[:12]}")


def plan_blocks(
    kind: type[C],
    presets: str,
    blocks: Sequence[Block],
    values: Tree,
    folder: Path,
    data_root: Path | None,
) -> list[Stored[C]]:
    """All runs of some blocks.

    Args:
        kind: The kind of their configurations.
        presets: Folder of the data sets' presets.
        blocks: What is to be run.
        values: Single values over everything.
        folder: Where images that a block makes are put.
        data_root: Folder of the data sets; ``$CCFCPP_DATA`` where it is None.

    Raises:
        UsageError: A value is out of its range.
    """
    runs: list[Stored[C]] = []
    for block in blocks:
        layers = read_configs(map(Path, block.layers))
        if block.images is not None:
            layers.append({"dataset": str(block.images(folder, data_root))})
        if block.grid:
            lists = [{key: list(choices) for key, choices in grid.items()} for grid in block.grid]
            layers.append({"grid": lists})
        planned = plan_grid(kind, presets, layers, values, block.seeds)
        runs += [Stored(run.axes, run.config) for run in planned]
    return list({run.folder: run for run in runs}.values())


def data_folder(name: str) -> Callable[[Path, Path | None], Path]:
    """Images that nobody may hand on: a folder of that name among the data sets."""

    def find(made: Path, data_root: Path | None) -> Path:
        path = root_folder(data_root) / name
        if not path.is_dir():
            raise UsageError(
                f"{path} is missing, which this table needs: put the folder of the domains there, "
                "or give another --data-root"
            )
        return path

    return find
