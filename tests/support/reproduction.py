"""Plans of all items, and finished runs that never ran: their numbers depend on their settings."""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
from matplotlib.figure import Figure

from ccfcpp.core.config_layers import preset
from ccfcpp.runs.folder import RunFolder
from ccfcpp.studies import paper_figures
from ccfcpp.studies.grids import PlannedRun
from ccfcpp.studies.reproduction.claims import CHECKS, Count, Values, count
from ccfcpp.studies.reproduction.paper_items import ITEMS, Block, Item
from ccfcpp.studies.reproduction.plan import plan_item
from ccfcpp.studies.results import Result

Plan = Sequence[PlannedRun[Any]]
Domains = Mapping[str, Sequence[str]]
ROUNDS = 5
DIMENSIONS = 12
SESSION = {"revision": "abc", "processor": "Abacus", "threads": 2, "device": "cpu"}
SCORES = (
    "nmi", "kappa", "accuracy", "effective_rank", "local_effective_rank", "tail_share", "gap",
    "nmi_geometric",
)  # fmt: skip


class Plans:
    """The runs of all items; what items share is planned once.

    Args:
        folder: Where images are put that are made.
        data_root: The data sets' folder.
    """

    def __init__(self, folder: Path, data_root: Path) -> None:
        self._folder, self._data_root = folder, data_root
        self._known: list[tuple[Sequence[Block], Plan]] = []

    def of(self, name: str, quick: bool) -> Plan:
        """The runs of an item."""
        item = ITEMS[name]
        blocks = item.quick if quick else item.full
        known = next((plan for own, plan in self._known if own == blocks), None)
        if known is None:
            known = self.planned(item, blocks, {})
            self._known.append((blocks, known))
        return known

    def planned(self, item: Item, blocks: Sequence[Block], values: dict[str, Any]) -> Plan:
        """Some blocks' runs, planned now."""
        asked = item.model_copy(update={"quick": tuple(blocks)})
        # A preset is read once a cell.
        with patch("ccfcpp.core.config_layers.preset", _read_once):
            return plan_item(asked, True, values, self._folder, self._data_root)


_read_once = cache(preset)


@cache
def _arrays(seed: int) -> tuple[dict[str, float], bytes, list[float]]:
    """Scores, the content of ``spectra.npz``, and an accuracy for each round."""
    random = np.random.default_rng(seed)
    scores = dict(zip(SCORES, random.uniform(0.05, 0.95, len(SCORES)).tolist(), strict=True))
    scores["gap"] -= 0.5
    values = np.sort(np.exp(random.normal(-2, 3, (4, DIMENSIONS))))[:, ::-1]
    buffer = io.BytesIO()
    np.savez(buffer, **{"global": values[0], "client": np.arange(3), "local": values[1:]})
    return scores, buffer.getvalue(), random.uniform(0.1, 0.9, ROUNDS).tolist()


def _line(number: int, accuracy: float, seconds: float) -> str:
    """A round of the log; after each second one nothing was scored, as with evaluate_every."""
    scores = {} if number % 2 else {"accuracy": accuracy}
    return json.dumps({"round": number, "seconds": seconds, "scores": scores}) + "\n"


def finish(root: Path, run: PlannedRun[Any], domains: Domains) -> Result:
    """A run's folder as if it had ended, with numbers by its folder's name."""
    folder = RunFolder(root / run.folder)
    result = Result(run.config, folder)
    if folder.summary.exists():
        return result
    folder.path.mkdir(parents=True)
    seed = int(run.folder.name.rpartition("-")[2], 16)
    scores, spectra, accuracies = _arrays(seed)
    random = np.random.default_rng(seed + 1)
    names = domains.get(Path(run.config.dataset).name, ())
    single = {f"accuracy {name}": float(random.uniform(0.1, 0.9)) for name in names}
    seconds = random.uniform(1, 9, ROUNDS).tolist()
    summary = scores | single | {"seconds": sum(seconds), "rounds": ROUNDS, "dataset": "?"}
    (folder.path / "spectra.npz").write_bytes(spectra)
    folder.environment.write_text(json.dumps({"sessions": [SESSION]}))
    folder.metrics.write_text("".join(map(_line, range(ROUNDS), accuracies, seconds)))
    folder.summary.write_text(json.dumps(summary))
    return result


DOMAINS: Domains = {
    "digit-domains": ("plain", "inverted", "turned", "blurred"),
    "office-caltech10": ("amazon", "caltech", "dslr", "webcam"),
    "domainnet": ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
}


class Fakes:
    """Finished runs of all items.

    Args:
        root: Where their folders are.
        plans: The plans.
    """

    def __init__(self, root: Path, plans: Plans) -> None:
        self._root, self._plans = root, plans

    def of(self, name: str, quick: bool = True) -> list[Result]:
        """The finished runs of an item."""
        return [finish(self._root, run, DOMAINS) for run in self._plans.of(name, quick)]


@contextmanager
def undrawn() -> Iterator[None]:
    """Figures have their rows, and nothing is drawn, which takes most of the time."""

    @contextmanager
    def paper() -> Iterator[tuple[Figure, MagicMock]]:
        yield Figure(), MagicMock()

    with (
        patch.object(paper_figures, "new_figure", paper),
        patch.object(paper_figures, "legend_above"),
    ):
        yield


Measure = Callable[[Result], float]


def score(key: str, factor: float = 1.0) -> Measure:
    """A summary's number."""

    def measure(result: Result) -> float:
        value: float = json.loads(result.folder.summary.read_text())[key]
        return factor * value

    return measure


def spectrum(result: Result, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Singular values of the global model, or those of the first local one."""
    with np.load(result.folder.path / "spectra.npz") as arrays:
        values: np.ndarray[Any, np.dtype[np.float64]] = arrays[name]
    return values if name == "global" else values[0]


Counting = Callable[[Values], Count]


def _way(check: str) -> Callable[[Any], Counting]:
    """A check by name, as a function of what a claim has under that name."""
    return lambda argument: lambda values: count(check, argument, values)


higher, highest, rises, falls, ends_lower, ends_higher, everywhere, somewhere, best_differs = map(
    _way, CHECKS
)


def chosen(results: Sequence[Result], settings: Mapping[str, Any]) -> list[Result]:
    """Runs that have those values; a data set goes by its last name."""
    return [
        result
        for result in results
        if all(_setting(result, key) == value for key, value in settings.items())
    ]


def _setting(result: Result, key: str) -> object:
    value: Any = result.config
    for part in key.split("."):
        value = getattr(value, part)
    return Path(value).name if key == "dataset" else value
