"""Tables and figures of the papers, described by the files ``configs/reproduce/papers``."""

from functools import partial
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from ccfcpp.core.config import Positive, Section, Tree
from ccfcpp.core.config_layers import read_yaml
from ccfcpp.core.errors import UsageError
from ccfcpp.core.presets import ITEMS_OF_PAPERS, preset_file
from ccfcpp.studies.reproduction.claims import (
    CHECKS,
    VIEWS,
    Count,
    Pairs,
    Range,
    Systems,
    Values,
    count,
)
from ccfcpp.studies.reproduction.measures import (
    MEASURES,
    SPECTRUM_MEASURES,
    Measure,
    Whose,
    measure_spectra,
)
from ccfcpp.studies.tables import format_number

PAPERS = ("ccfcpp", "feddecorr")
"""Names of the files."""
Text = Annotated[str, BeforeValidator(format_number)]
"""A place on an axis: a number as papers print it, or a name."""


class Block(Section):
    """Runs over some presets."""

    files: tuple[str, ...] = ()
    """Names of shipped configuration files, such as ``feddecorr/table1``."""
    settings: Tree = Field(default_factory=dict)
    """Settings over those of the files."""
    grid: tuple[dict[str, list[object]], ...] = ()
    """Grids of values by dotted key; if there is none, that of the last file that has one."""
    seeds: Positive = 1
    """Seeds of each cell."""
    images: str | None = None
    """A folder of images for which the settings have no name: ``digit-domains``, which is made, or
    a folder among the data sets."""


class TableSpec(Section):
    """Description of a table of scores; ``panel``, ``place`` and ``system`` are label templates."""

    title: str
    """The name of the measure in the table."""
    measure: str
    """One of ``MEASURES``, or of ``SPECTRUM_MEASURES`` if ``spectrum`` is given."""
    spectrum: Whose | None = None
    axis: str = ""
    panel: str = ""
    """If it is empty, ``panels`` of the item."""
    place: str
    system: str
    anywhere: tuple[str, ...] = ()
    """Systems to which the axis means nothing."""
    over: str = ""
    """The system by whose values all are divided."""
    last: bool = False
    """Whether only the last place on the axis is kept."""
    published: str = ""
    """The paper's table beside it, by its name in ``published.py``."""
    tabulated: bool = True
    """Whether the table is shown."""
    drawn: bool = True
    """Whether figures show it."""

    @property
    def measured(self) -> Measure:
        """The measure of a run in this table."""
        if self.spectrum is None:
            return MEASURES[self.measure]
        return partial(measure_spectra, SPECTRUM_MEASURES[self.measure], self.spectrum)

    @model_validator(mode="after")
    def _measure_is_known(self) -> "TableSpec":
        known = MEASURES if self.spectrum is None else SPECTRUM_MEASURES
        if self.measure not in known:
            raise ValueError(f"measure {self.measure!r} is none of {', '.join(known)}")
        return self


class SpectraSpec(Section):
    """Description of figures of singular values."""

    of: Whose
    title: str = ""
    """Template of the figure's title; the item's panel if it is empty."""
    line: str
    """Template of a line's name. A line is that of the first run of its name."""


class PictureSpec(Section):
    """Description of figures of the models and images of runs with the first seed."""

    show: Literal["holdings", "covariance", "correlations", "plane"]
    title: str = ""
    """Template of the figure's title; the item's panel if it is empty."""
    line: str = ""
    """Template of a line's name, if a figure has several runs."""
    only: dict[str, tuple[object, ...]] = Field(default_factory=dict)
    """Values by dotted key that the runs must have."""


class ClaimSpec(Section):
    """A claim: a check against a table, or against values that views compute from it.

    The fields from ``places_to_last_of`` to ``of`` are views, applied in their order. Those from
    ``higher`` on are checks, of which each claim has one; ``claims.py`` defines them.
    """

    say: str
    stated: bool = True
    """Whether the paper states it; else it is our reading."""
    each: str = ""
    """A template: the claim is made for each group of runs of the same label, which ``say`` may
    name."""
    table: str = ""
    """The name of the table; the item's first if it is empty."""

    places_to_last_of: str | None = None
    below_best: str | None = None
    gains: Pairs | None = None
    losses: bool = False
    steps: bool = False
    ratios: bool = False
    """As ``steps``, by quotients."""
    by_place: bool = False
    at: tuple[Text, ...] = ()
    without: Text | None = None
    of: str | None = None

    higher: Pairs | None = None
    highest: tuple[str, ...] | None = None
    rises: Systems | None = None
    falls: Systems | None = None
    ends_higher: Systems | None = None
    ends_lower: Systems | None = None
    everywhere: Range | None = None
    somewhere: Range | None = None
    best_differs: str | None = None

    def view(self, values: Values) -> Values:
        """Return the values that the check is applied to."""
        for name, make in VIEWS.items():
            if argument := getattr(self, name):
                values = make(values, argument)
        return values

    def count(self, viewed: Values) -> Count:
        """Count in how many places the check holds, and of how many."""
        (name,) = self._checks
        return count(name, getattr(self, name), viewed)

    @property
    def _checks(self) -> list[str]:
        return [name for name in CHECKS if getattr(self, name) is not None]

    @model_validator(mode="after")
    def _one_check(self) -> "ClaimSpec":
        if len(self._checks) != 1:
            raise ValueError(f"{self.say!r} must have one of {', '.join(CHECKS)}")
        return self


class Item(Section):
    """Description of a table or a figure of a paper."""

    title: str
    command: Literal["cluster", "classify"]
    """The command that makes the runs."""
    base: Tree = Field(default_factory=dict)
    """Settings of all runs, under those of a block."""
    full: tuple[Block, ...]
    """Its runs at the paper's size."""
    quick: tuple[Block, ...]
    """Its runs on little data, in minutes."""
    timed: bool = False
    """Whether it measures time, so that its runs have the machine for themselves."""
    panels: str = "{images}"
    """Template of the panels' labels."""
    spectra: tuple[SpectraSpec, ...] = ()
    pictures: tuple[PictureSpec, ...] = ()
    tables: dict[str, TableSpec]
    claims: tuple[ClaimSpec, ...]

    @model_validator(mode="after")
    def _claims_have_tables(self) -> "Item":
        for claim in self.claims:
            if claim.table not in ("", *self.tables):
                raise ValueError(f"{claim.say!r} is about a table {claim.table!r}: there is none")
        return self


class Paper(Section):
    """A file with the items of a paper."""

    paper: str
    """The name with which the items' titles begin."""
    command: Literal["cluster", "classify"]
    base: Tree = Field(default_factory=dict)
    shared: object = None
    """Anchors of what several items have."""
    items: dict[str, Tree]


def load_items() -> dict[str, Item]:
    """Read the items of all papers by name, in the papers' order.

    Raises:
        UsageError: In one line, the first key or value that does not fit.
    """
    files = [f"{ITEMS_OF_PAPERS}/{name}" for name in PAPERS]
    of_papers = [read_paper(read_yaml(preset_file(where)), where) for where in files]
    return {name: item for items in of_papers for name, item in items.items()}


def read_paper(tree: Tree, where: str) -> dict[str, Item]:
    """Read the items of one paper from the content of its file, which errors call ``where``.

    Raises:
        UsageError: In one line, the first key or value that does not fit.
    """
    place = where
    try:
        paper = Paper.model_validate(tree)
        items = {}
        for name, item in paper.items.items():
            place = f"{where}: {name}"
            common = {"command": paper.command, "base": paper.base}
            read = Item.model_validate(common | item)
            items[name] = read.model_copy(update={"title": f"{paper.paper}, {read.title}"})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise UsageError(f"{place}: {key}: {first['msg']}") from error
    return items


ITEMS = load_items()
"""All tables and figures by name."""
