"""Content of a study's page: its tables and settings; ``study_figures`` draws its figures."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import RunConfig
from ccfcpp.core.config_layers import flatten, read_yaml, to_yaml, values_of
from ccfcpp.core.errors import UsageError
from ccfcpp.core.units import format_count
from ccfcpp.core.unused_settings import needs_of
from ccfcpp.reports.labels import folder_names
from ccfcpp.runs.paths import MAY_CHANGE, Json, RunPaths
from ccfcpp.studies.classification import score_keys, tabulate
from ccfcpp.studies.comparison import DEGREES, Comparison
from ccfcpp.studies.grids import Axes, PlannedRun
from ccfcpp.studies.reproduction.output import describe_sessions
from ccfcpp.studies.results import Result, images
from ccfcpp.studies.study import Study
from ccfcpp.studies.study_figures import StudyCells
from ccfcpp.studies.tables import axis_name, format_number
from supervised.config import ClassifyConfig

Tables = dict[str, list[dict[str, str]]]
_SCORES = {"accuracy": "accuracy", "effective_rank": "effective rank"}


@dataclass(frozen=True)
class Examined:
    """Content of a study's page: runs, rows of numbers for each combination of settings, texts.

    ``facts`` are title, tables and other text, by their names in the page's template.
    """

    cells: StudyCells
    rows: Sequence[Json]
    facts: Mapping[str, object]


def examine_studies(paths: Sequence[Path]) -> Examined:
    """Read the folders of studies without changing them, and join several into one.

    If a setting that is the same within each study differs between them, the study's name becomes
    an axis.

    Raises:
        UsageError: A plan or a result is damaged, none of the runs is finished, or some studies are
            of clustering and others of classification.
    """
    studies = [_open_study(path) for path in paths]
    kinds = {type(study.runs[0].config) for study in studies}
    if len({kind.__name__ for kind in kinds}) > 1:
        raise UsageError(
            "studies of ccfcpp compare and of ccfcpp classify have no scores in common: give a "
            "report of each"
        )
    joined = join_studies(studies)
    runs = [
        (run.axes, Result(run.config, joined.folder(run)))
        for run in joined.runs
        if joined.is_finished(run)
    ]
    if not runs:
        raise UsageError(
            f"no run of the study in {' or '.join(map(str, paths))} is finished, and there is "
            "nothing to show: wait, or go on with it by --resume"
        )
    results = [(axes, result.summary) for axes, result in runs]
    clustered = [
        PlannedRun(run.axes, run.config)
        for run in joined.runs
        if isinstance(run.config, ClusterConfig)
    ]
    if clustered:
        named = {study.baseline for study in studies}
        comparison = Comparison(clustered, results, named.pop() if len(named) == 1 else None)
        rows, tables = comparison.rows, comparison.format_tables(Markup("<b>{}</b>"))
        cells = StudyCells(runs, comparison.scores, comparison.published)
    else:
        table = tabulate(results)
        rows = table.rows
        tables = {
            table.caption: [{axis_name(key): v for key, v in row.items()} for row in table.shown]
        }
        keys = score_keys([summary for _, summary in results])
        cells = StudyCells(runs, {key: _SCORES.get(key, key) for key in keys})
    return Examined(cells, rows, _facts(studies, joined.runs, cells, tables))


def join_studies(studies: Sequence[Study[RunConfig]]) -> Study[RunConfig]:
    """Join studies: the runs of all of them, without duplicates, with the axes of all of them."""
    if len(studies) == 1:
        return studies[0]
    names = list(dict.fromkeys(key for study in studies for run in study.runs for key in run.axes))
    study_axis = {"study"} if _differing_settings(studies, names) else set()
    called = folder_names([study.path for study in studies])
    here: Study[RunConfig] = Study(Path(), [])
    joined: dict[str, PlannedRun[RunConfig]] = {}
    for study, name in zip(studies, called, strict=True):
        for run in study.runs:
            axes = _with_all_axes(run, names) | dict.fromkeys(study_axis, name)
            same = str([*sorted((key, str(own)) for key, own in axes.items()), run.config.seed])
            if same not in joined or not here.is_finished(joined[same]):
                joined[same] = PlannedRun(axes, run.config, study.path / run.folder)
    # Seeds of a cell are adjacent, even if they come from several studies.
    cells = list(dict.fromkeys(str(run.axes) for run in joined.values()))
    return Study(Path(), sorted(joined.values(), key=lambda run: cells.index(str(run.axes))))


def _with_all_axes(run: PlannedRun[RunConfig], names: Sequence[str]) -> Axes:
    """Return a run's axes (varied settings), with its values of those in ``names`` added.

    They have the order of ``names`` and the values of its configuration, so that cells of several
    studies are equal: a grid may hold 1 where another study has 1.0.
    """
    values = values_of(run.config)
    own = {key: values.get(key, value) for key, value in run.axes.items()} | {
        key: values[full]
        for key in names
        if key not in run.axes and key not in DEGREES
        for full in (key, f"availability.{key}")
        if full in values and needs_of(run.config, full) is None
    }
    return {key: own[key] for key in names if key in own}


def _differing_settings(studies: Sequence[Study[RunConfig]], axes: Sequence[str]) -> Json:
    """Return the settings that differ between studies but not within: each study's value, by key.

    A setting that not all methods have is compared method by method. Left out are axes, settings
    that a method fixes, and settings without effect.
    """
    configs_of = [[run.config for run in study.runs] for study in studies]
    configs = list(itertools.chain.from_iterable(configs_of))
    fixed = {key for one in configs for key, _ in flatten(one.fixed_by(one.model_dump()))}
    left = {*axes, *(f"availability.{key}" for key in axes), "method", "seed"} | fixed
    if isinstance(configs[0], ClusterConfig):  # In which each run has its degree as an axis.
        left |= {f"partition.{key}" for key in DEGREES}
    differing: Json = {}
    for method in (None, *dict.fromkeys(config.method for config in configs)):
        group = [[one for one in of if method in (None, one.method)] for of in configs_of]
        for key, own in _differing_values(group).items():
            if key not in left:
                differing.setdefault(key, own)
    return differing


def _differing_values(configs_of: Sequence[Sequence[RunConfig]]) -> Json:
    """Return the values, by key, of settings that have an effect and differ between studies."""
    shared = [_shared_settings(configs) if configs else {} for configs in configs_of]
    found: Json = {}
    for key in dict.fromkeys(itertools.chain.from_iterable(shared)):
        having = [(own[key], of) for own, of in zip(shared, configs_of, strict=True) if key in own]
        heeded = all(any(needs_of(config, key) is None for config in of) for _, of in having)
        if heeded and len({str(value) for value, _ in having}) > 1:
            found[key] = [own.get(key, "") for own in shared]
    return found


def _open_study(path: Path) -> Study[RunConfig]:
    file = RunPaths(path).study
    try:
        method = read_yaml(file)["runs"][0]["config"]["method"]
    except (KeyError, IndexError, TypeError) as error:
        raise UsageError(f"{file} is damaged ({error!r}): there is nothing to show") from error
    kind: type[RunConfig] = ClusterConfig if method in METHODS else ClassifyConfig
    return Study.reopen(path, kind, {})


def _facts(
    studies: Sequence[Study[RunConfig]],
    runs: Sequence[PlannedRun[RunConfig]],
    cells: StudyCells,
    tables: Tables,
) -> dict[str, object]:
    results = [result for _, result in cells.results]
    names = list(dict.fromkeys(map(images, results)))
    seeds = sorted({run.config.seed for run in runs})
    done, planned = len(results), len(runs)
    folders = folder_names([study.path for study in studies])
    axes = list(dict.fromkeys(key for run in runs for key in run.axes))
    if len(studies) > 1 and (differing := _differing_settings(studies, axes)):
        tables = tables | {
            "Settings in which the studies differ": [
                {"setting": key} | dict(zip(folders, map(str, values), strict=True))
                for key, values in differing.items()
            ]
        }
    setting = {
        "systems": ", ".join(cells.systems),
        "images": ", ".join(names),
        **{
            axis_name(key): ", ".join(map(format_number, values))
            for key, values in cells.numbers.items()
        },
        "seeds": ", ".join(map(str, seeds)),
    }
    return {
        "title": f"{format_count(len(cells.systems), 'system')} on {' and '.join(names)}",
        "under": f"{'Study' if len(folders) == 1 else 'Studies'} {', '.join(folders)}",
        "notes": [f"{done} of {planned} runs are finished."] if done < planned else [],
        "tiles": {
            "runs": str(done),
            "systems": str(len(cells.systems)),
            "seeds": str(len(seeds)),
            "time of all runs": f"{sum(result.summary['seconds'] for result in results):,.0f} s",
        },
        "tables": tables,
        "setting": setting,
        "config": to_yaml(_shared_settings([run.config for run in runs])),
        "sessions": describe_sessions(results),
    }


def _shared_settings(configs: Sequence[RunConfig]) -> Json:
    """Return the settings equal in all runs, by dotted key; without those like the device."""
    first, *others = map(values_of, configs)
    return {
        key: value
        for key, value in first.items()
        if key not in MAY_CHANGE and all(key in own and own[key] == value for own in others)
    }
