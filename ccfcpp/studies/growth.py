"""Extension of a study by values of an axis, axes or seeds; existing runs are kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import (
    C,
    Layers,
    differing_keys,
    flatten,
    merge,
    stack,
    unflatten,
    validate,
    values_of,
)
from ccfcpp.core.encoders import refuse_program
from ccfcpp.core.errors import KeyValue, UsageError, join_pieces
from ccfcpp.core.unused_settings import refuse_unused
from ccfcpp.runs.paths import MAY_CHANGE, RunPaths, writable
from ccfcpp.studies.grids import (
    Grid,
    PlannedRun,
    StudySpec,
    config_hash,
    list_grids,
    parse_number,
    split_axes,
    without_grids,
)
from ccfcpp.studies.study import Study

Plan = Callable[[StudySpec], list[PlannedRun[C]]]


def reopen_study(path: Path, kind: type[C], plan: Plan[C], layers: Layers, seeds: int) -> Study[C]:
    """Reopen a study, and plan the runs that new settings add.

    An axis is a setting that the study varies. A list given for a key, or one value for an axis, is
    added to the axis's values; a new axis also has the value of the existing runs. Nothing is
    removed. ``check_new_runs`` writes the additions to the folder.

    Args:
        path: Folder of the study.
        kind: Class of the configurations.
        plan: Plans the runs of a spec.
        layers: The user's settings, each layer over the one before.
        seeds: Smallest number of seeds for each combination of settings.

    Raises:
        UsageError: A setting would change existing runs, or the plan is damaged.
    """
    layers, axes = split_axes(kind, layers)
    changes = dict(flatten(merge(*without_grids(layers))))
    machine = unflatten({key: changes.pop(key) for key in MAY_CHANGE & changes.keys()})
    study = Study.reopen(path, kind, machine)
    named = [changes.get("data.encoder"), *axes.get("data.encoder", ())]
    for run in study.runs:
        refuse_program(values_of(run.config).get("data.encoder"), named)
    spec = study.spec or StudySpec()
    known = {key for grid in spec.grids for key in grid}
    added: dict[str, list[object]] = {key: list(values) for key, values in axes.items()}
    for key in known & changes.keys():
        added[key] = [parse_number(changes.pop(key))]
    _refuse_changes(study, kind, changes)
    more = [one for layer in layers if "grid" in layer for one in list_grids(layer["grid"])]
    if not (added or more or seeds > len({run.config.seed for run in study.runs})):
        return study
    if study.spec is None:
        raise UsageError(
            f"an earlier version planned the runs in {path} and did not note what was asked for: "
            "go on without new values, or give another --out"
        )
    bigger = StudySpec(
        spec.files,
        # What the runs so far have too, and what only the added ones have.
        unflatten(
            {k: own for k, own in [*flatten(spec.values), *changes.items()] if k not in added}
        ),
        [*(_extend_grid(grid, added, study.runs) for grid in spec.grids), *more],
        max(spec.seeds, seeds),
        spec.baseline,
    )
    return Study(path, _keep_folders(study, plan(bigger)), bigger)


def check_new_runs(
    study: Study[C],
    layers: Layers,
    presets: str,
    check: Callable[[list[PlannedRun[C]]], None],
    *,
    resumed: bool,
) -> Study[C]:
    """Check the runs that a study's folder does not have yet; write the plan, return the study.

    Args:
        study: A new study, or an extended one.
        layers: The user's settings, each layer over the one before.
        presets: Folder of the data sets' presets: ``cluster`` or ``classify``.
        check: Raises ``UsageError`` if one of the new runs cannot be made.
        resumed: Whether the folder has a plan already.

    Raises:
        UsageError: A setting has no effect, a new run cannot be made, or another study has begun
            in the folder meanwhile.
    """
    there = set()
    if resumed:
        before = Study.reopen(study.path, type(study.runs[0].config), {})
        there = {run.folder for run in before.runs}
    refuse_unused([run.config for run in study.runs], presets, without_grids(layers))
    if new := [run for run in study.runs if run.folder not in there]:
        check(new)
    if not resumed:  # The checks have taken a while.
        RunPaths(study.path).refuse_if_taken()
    with writable(study.path):
        study.write_plan()
    return study


def _extend_grid(grid: Grid, added: Grid, runs: Sequence[PlannedRun[C]]) -> Grid:
    """Add values to a grid (values by key); a new axis also has the values of existing runs."""
    settings = [values_of(run.config) for run in runs]
    before = {key: list(dict.fromkeys(own[key] for own in settings if key in own)) for key in added}
    return {
        **grid,
        **{key: [*grid.get(key, before[key]), *own] for key, own in added.items()},
    }


def _refuse_changes(study: Study[C], kind: type[C], changes: Mapping[str, object]) -> None:
    """Raise ``UsageError`` if a setting in ``changes`` would change existing runs."""
    first = min(run.config.seed for run in study.runs)
    for run in study.runs:
        if not changes or run.config.seed != first:
            continue
        config: Tree = run.config.model_dump(mode="json")
        other = validate(kind, stack(kind, config, unflatten(changes)))
        if differing := [key for key in differing_keys(run.config, other) if key in changes]:
            before = values_of(run.config)
            was = join_pieces(", ", ([KeyValue(key, before.get(key))] for key in differing))
            asked = ", ".join(str(changes[key]) for key in differing)
            raise UsageError(
                f"the runs in {study.path} have ",
                *was,
                f", not {asked}: leave it out to go on, give a list to have both, or give another "
                "--out",
            )


def _keep_folders(study: Study[C], plan: list[PlannedRun[C]]) -> list[PlannedRun[C]]:
    """Return the planned runs, with the folders of those that the study already has.

    Raises:
        UsageError: The plan lacks an existing run.
    """
    there = {config_hash(run.config): run for run in study.runs}
    kept: dict[str, PlannedRun[C]] = {}
    for run in plan:
        same, chosen = config_hash(run.config), run
        if before := there.get(same):
            moved = before.folder if before.folder != run.folder else None
            chosen = replace(before, axes=run.axes, place=moved)
        kept.setdefault(same, chosen)
    for same, old in there.items():
        if same not in kept:
            near = min(plan, key=lambda run: len(differing_keys(run.config, old.config)))
            keys = ", ".join(differing_keys(near.config, old.config))
            raise UsageError(
                f"the run {old.folder} in {study.path} would be another one today ({keys} differ): "
                "go on without new values, or give another --out"
            )
    return list(kept.values())
