"""The page of a study: its tables and settings; ``study_figures`` draws its figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from markupsafe import Markup

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import RunConfig
from ccfcpp.core.config_layers import read_yaml, values_of
from ccfcpp.core.errors import UsageError
from ccfcpp.core.units import counted
from ccfcpp.papers.comparison import COSTS_TITLE, Comparison, by_presence
from ccfcpp.papers.reproduction.results import Result, images
from ccfcpp.papers.reproduction.scores import plain
from ccfcpp.papers.reproduction.writing import made_by
from ccfcpp.papers.study_figures import Cells, in_words
from ccfcpp.runs.paths import MAY_CHANGE
from ccfcpp.runs.study import Planned, Row, Study
from supervised.config import ClassifyConfig
from supervised.table import scores, tabulate

Tables = dict[str, list[dict[str, str]]]
_SCORES = {"accuracy": "accuracy", "effective_rank": "effective rank"}


@dataclass(frozen=True)
class Examined:
    """The finished part of a study: runs, the numbers of each cell, and what its page says."""

    cells: Cells
    rows: Sequence[Row]
    facts: Mapping[str, object]


def is_study(path: Path) -> bool:
    """Return whether a folder holds several runs, of ``compare`` or of ``classify``."""
    return Study.plan_of(path).is_file()


def examine_study(path: Path) -> Examined:
    """Read the folder of a study without changing it.

    Raises:
        UsageError: Its plan or a result is damaged, or none of its runs is finished.
    """
    study = _reopened(path)
    done = [planned for planned in study.runs if study.is_finished(planned)]
    if not done:
        raise UsageError(
            f"no run of the study in {path} is finished, and there is nothing to show: wait, or go "
            "on with it by --resume"
        )
    runs = [(planned.axes, Result(planned.config, study.folder(planned))) for planned in done]
    results = [(axes, result.summary) for axes, result in runs]
    clustered = [
        Planned(run.axes, run.config) for run in study.runs if isinstance(run.config, ClusterConfig)
    ]
    if clustered:
        comparison = Comparison(clustered, results)
        rows, tables = comparison.rows, comparison.written(Markup("<b>{}</b>"))
        tables[COSTS_TITLE] = comparison.costs()
        cells = Cells(
            runs,
            comparison.scores,
            lambda result, score: by_presence(result.summary).get(score),
            comparison.published,
        )
    else:
        rows, shown = tabulate(results)
        tables = {
            "Means and deviations over seeds": [
                {in_words(key): v for key, v in row.items()} for row in shown
            ]
        }
        keys = scores([summary for _, summary in results])
        cells = Cells(
            runs,
            {key: _SCORES.get(key, key) for key in keys},
            lambda result, score: result.summary.get(score),
        )
    return Examined(cells, rows, _facts(study, cells, tables))


def _reopened(path: Path) -> Study[RunConfig]:
    plan = read_yaml(Study.plan_of(path))
    try:
        method = plan["runs"][0]["config"]["method"]
    except (KeyError, IndexError, TypeError) as error:
        raise UsageError(
            f"{Study.plan_of(path)} is damaged ({error!r}): there is nothing to show"
        ) from error
    kind: type[RunConfig] = ClusterConfig if method in METHODS else ClassifyConfig
    return Study.reopen(path, kind, {})


def _facts(study: Study[RunConfig], cells: Cells, tables: Tables) -> dict[str, object]:
    results = [result for _, result in cells.results]
    systems = list(dict.fromkeys(cells.system(axes, result) for axes, result in cells.results))
    names = list(dict.fromkeys(map(images, results)))
    seeds = sorted({planned.config.seed for planned in study.runs})
    done, planned = len(results), len(study.runs)
    shared = _shared([values_of(run.config) for run in study.runs])
    setting = {
        "systems": ", ".join(systems),
        "images": ", ".join(names),
        **{in_words(key): ", ".join(map(plain, values)) for key, values in cells.numbers.items()},
        "seeds": ", ".join(map(str, seeds)),
    }
    return {
        "title": f"{counted(len(systems), 'system')} on {' and '.join(names)}",
        "under": f"Study {study.path.resolve().name}",
        "notes": [f"{done} of {planned} runs are finished."] if done < planned else [],
        "tiles": {
            "runs": str(done),
            "systems": str(len(systems)),
            "seeds": str(len(seeds)),
            "time of all runs": f"{sum(result.summary['seconds'] for result in results):,.0f} s",
        },
        "tables": tables,
        "setting": setting,
        "config": yaml.safe_dump(shared, sort_keys=False, allow_unicode=True),
        "sessions": made_by(results),
    }


def _shared(settings: Sequence[Row]) -> Row:
    """Return the settings that have the same value in all runs, by dotted key."""
    first, *others = settings
    return {
        key: value
        for key, value in first.items()
        if key not in MAY_CHANGE and all(key in own and own[key] == value for own in others)
    }
