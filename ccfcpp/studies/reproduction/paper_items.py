"""Items (tables and figures of the papers), described by files in ``configs/reproduce/papers``."""

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

Text = Annotated[str, BeforeValidator(format_number)]
"""A place (value on an axis): a name, or a number, converted to text by ``format_number``."""


class Block(Section):
    """Settings of a group (block) of runs: files, values that override them, and grids."""

    files: tuple[str, ...] = ()
    """Names of shipped configuration files, such as ``feddecorr/table1``."""
    settings: Tree = Field(default_factory=dict)
    """Settings that override those of the files."""
    grid: tuple[dict[str, list[object]], ...] = ()
    """Grids of values by dotted key; empty: the grid of the last file that has one."""
    seeds: Positive = 1
    """Number of seeds for each combination of settings."""
    images: str | None = None
    """A folder of images that is no named data set: ``digit-domains``, which is generated, or a
    folder beside the data sets."""


class TableSpec(Section):
    """Description of a score table: its measure, and templates of labels (see ``label``)."""

    title: str
    """The name of the measure in the table."""
    measure: str
    """One of ``MEASURES``, or of ``SPECTRUM_MEASURES`` if ``spectrum`` is given."""
    spectrum: Whose | None = None
    axis: str = ""
    panel: str = ""
    """Empty: the item's ``panels``."""
    place: str
    system: str
    anywhere: tuple[str, ...] = ()
    """Systems whose scores do not depend on the axis."""
    over: str = ""
    """System by whose scores all are divided; empty: none."""
    last: bool = False
    """Whether only the last place on the axis is kept."""
    published: str = ""
    """Name in ``published.csv`` of the paper's table to compare with; empty: none."""
    tabulated: bool = True
    """Whether the table is shown."""
    drawn: bool = True
    """Whether figures show it."""

    @property
    def measured(self) -> Measure:
        """Function that measures a run for this table."""
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
    """Template of the figure's title; empty: the item's ``panels``."""
    line: str
    """Template of a line's name; of several runs with the same name, the first is drawn."""


class PictureSpec(Section):
    """Description of figures that show models and images of the runs with the lowest seed."""

    show: Literal["holdings", "covariance", "correlations", "plane"]
    title: str = ""
    """Template of the figure's title; empty: the item's ``panels``."""
    line: str = ""
    """Template of a line's name, if a figure has several runs."""
    only: dict[str, tuple[object, ...]] = Field(default_factory=dict)
    """Values by dotted key that the runs must have."""


class ClaimSpec(Section):
    """Description of a claim: views, which transform a table's values, and a check of the result.

    The fields from ``places_to_last_of`` to ``of`` are arguments of views, applied in this order.
    Those from ``higher`` on are arguments of checks; each claim has one. See ``claims.py``.
    """

    say: str
    stated: bool = True
    """Whether the paper states the claim; if not, it is our reading of its table."""
    each: str = ""
    """Template of a label: the claim is checked for each group of runs with the same label. ``say``
    may contain the same names."""
    table: str = ""
    """Name of the table; empty: the item's first one."""

    places_to_last_of: str | None = None
    below_best: str | None = None
    gains: Pairs | None = None
    losses: bool = False
    steps: bool = False
    ratios: bool = False
    """Like ``steps``, with quotients in place of differences."""
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
        """Transform a table's values by this claim's views; return those that are to be checked."""
        for name, make in VIEWS.items():
            if argument := getattr(self, name):
                values = make(values, argument)
        return values

    def count(self, viewed: Values) -> Count:
        """Count the values (of ``view``) for which the claim's check holds, and all of them."""
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
    """Item: description of a table or figure of a paper, of its runs and of its claims."""

    title: str
    command: Literal["cluster", "classify"]
    """The command that makes the runs."""
    base: Tree = Field(default_factory=dict)
    """Settings of all runs, which those of a block override."""
    full: tuple[Block, ...]
    """Runs at the paper's size."""
    quick: tuple[Block, ...]
    """Runs on little data, which take minutes."""
    timed: bool = False
    """Whether it measures time, so that its runs are made one at a time."""
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
    """Content of a file that describes the items (tables and figures) of one paper."""

    paper: str
    """The name with which the items' titles begin."""
    command: Literal["cluster", "classify"]
    base: Tree = Field(default_factory=dict)
    shared: object = None
    """Unused: a place for YAML anchors that several items refer to."""
    items: dict[str, Tree]


def load_items() -> dict[str, Item]:
    """Read the items (tables and figures) of all papers, by name.

    Raises:
        UsageError: A key or value of a file is not allowed; the message names the first.
    """
    files = [f"{ITEMS_OF_PAPERS}/{name}" for name in ("ccfcpp", "feddecorr")]
    of_papers = [read_paper(read_yaml(preset_file(where)), where) for where in files]
    return {name: item for items in of_papers for name, item in items.items()}


def read_paper(tree: Tree, where: str) -> dict[str, Item]:
    """Parse a paper's items (tables, figures) from a file's content; errors name it ``where``.

    Raises:
        UsageError: A key or value is not allowed; the message names the first.
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
