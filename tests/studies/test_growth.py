"""Studies that grow: what is added, what stays, and what is refused by name."""

from pathlib import Path

import pytest
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config_layers import unflatten, values_of
from ccfcpp.core.errors import UsageError
from ccfcpp.studies.comparison import plan_comparison
from ccfcpp.studies.grids import Grid, StudySpec, split_axes, study_spec
from ccfcpp.studies.growth import check_new_runs, reopen_study
from ccfcpp.studies.study import Study
from supervised.config import ClassifyConfig
from tests.support.comparisons import planned_comparison
from tests.support.studies import planned_study

METHODS = ["k-fed", "ffcm-km", "ccfc++"]


def begun(path: Path, grid: Grid, **values: object) -> Study[ClusterConfig]:
    spec = StudySpec([], values, [grid])
    return planned_study(path, plan_comparison(spec), spec)


def grown(
    path: Path, axes: Grid | None = None, seeds: int = 1, **values: object
) -> Study[ClusterConfig]:
    named = {key.replace("__", "."): value for key, value in values.items()}
    layers = [unflatten({**named, **(axes or {})})]
    return reopen_study(path, ClusterConfig, plan_comparison, layers, seeds)


def cells(study: Study[ClusterConfig]) -> list[tuple[object, ...]]:
    return [(*run.axes.values(), run.config.seed) for run in study.runs]


SOME = st.lists(st.sampled_from(METHODS), min_size=1, max_size=3, unique=True)
PLACES = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=3, unique=True)


@settings(max_examples=8, deadline=None)
@over(SOME, PLACES, SOME, PLACES, st.integers(1, 3))
def test_a_study_that_grows_has_the_runs_of_the_bigger_one_and_keeps_its_own(
    tmp_path_factory: pytest.TempPathFactory,
    methods: list[str],
    places: list[float],
    others: list[str],
    more: list[float],
    seeds: int,
) -> None:
    path = tmp_path_factory.mktemp("study") / "study"
    before = begun(path, {"method": methods, "partition.p": places})
    after = grown(path, {"method": others, "partition.p": more}, seeds)
    whole: Grid = {"method": [*methods, *others], "partition.p": [*places, *more]}
    expected = plan_comparison(StudySpec([], {}, [whole], seeds))
    assert [(run.axes, run.config) for run in after.runs] == [
        (run.axes, run.config) for run in expected
    ]
    assert {run.folder for run in before.runs} <= {run.folder for run in after.runs}
    after.write_plan()
    assert Study.reopen(path, ClusterConfig, {}).runs == after.runs
    # To ask for the same once more changes nothing.
    assert grown(path, {"method": others}, seeds).runs == after.runs


def test_a_new_axis_has_the_value_so_far_and_old_runs_keep_their_folders(tmp_path: Path) -> None:
    path = tmp_path / "study"
    (old,) = begun(path, {"method": ["ccfc++"], "partition.p": [0.5]}).runs
    after = grown(path, {"loss.eta": [0.5, 7.0]})
    etas = [run.axes["loss.eta"] for run in after.runs]
    assert etas == [old.config.model_dump()["loss"]["eta"], 0.5, 7.0]
    assert after.runs[0].folder == old.folder
    assert after.runs[1].folder == Path("method=ccfc++,p=0.5,loss.eta=0.5/seed-0")


def test_a_new_axis_of_some_methods_has_the_value_of_those_that_know_it(tmp_path: Path) -> None:
    path = tmp_path / "study"
    begun(path, {"method": ["k-fed", "ccfc++"], "partition.p": [0.5]}, loss={"eta": 0.1})
    after = grown(path, {"loss.eta": [7.0]})
    assert [run.axes.get("loss.eta") for run in after.runs] == [None, 0.1, 7.0]


def test_a_single_value_of_an_axis_is_added(tmp_path: Path) -> None:
    path = tmp_path / "study"
    begun(path, {"method": ["k-fed"], "partition.p": [0.0]})
    assert cells(grown(path, partition__p=1)) == [("k-fed", 0.0, 0), ("k-fed", 1.0, 0)]


def test_a_setting_that_a_method_does_not_heed_is_no_axis_of_it(tmp_path: Path) -> None:
    study = begun(
        tmp_path / "study",
        {"method": ["k-fed", "ccfc++"], "partition.p": [0.0], "loss.eta": [0.0, 1.0]},
    )
    assert cells(study) == [("k-fed", 0.0, 0), ("ccfc++", 0.0, 0.0, 0), ("ccfc++", 0.0, 1.0, 0)]


def test_a_setting_of_added_methods_alone_holds_for_them(tmp_path: Path) -> None:
    path = tmp_path / "study"
    begun(path, {"method": ["k-fed"], "partition.p": [0.0]}, data={"images": 100})
    study = grown(path, {"method": ["fed-km"]}, means__rounds=2)
    assert values_of(study.runs[1].config)["means.rounds"] == 2
    # It holds for what is added later, too.
    study.write_plan()
    later = grown(path, {"partition.p": [1.0]})
    assert [values_of(run.config).get("means.rounds") for run in later.runs] == [None, None, 2, 2]
    same, idle = grown(path, loss__eta=0.5), [{"loss": {"eta": 0.5}}]
    with pytest.raises(UsageError, match=r"loss\.eta = 0\.5 has no effect on k-fed"):
        check_new_runs(same, idle, "cluster", lambda new: None, resumed=True)


def test_a_study_that_began_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "study"
    mine = Study(path, planned_comparison({}, ["k-fed"], {}, seeds=1))

    def check(new: object) -> None:
        begun(path, {"method": ["km"]})

    with pytest.raises(UsageError, match="holds several runs"):
        check_new_runs(mine, [{}], "cluster", check, resumed=False)
    assert cells(Study.reopen(path, ClusterConfig, {})) == [("km", 0)]


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "study"
    begun(path, {"method": ["k-fed"], "partition.p": [0.0, 1.0]}, clusters=5)
    with pytest.raises(UsageError, match=r"have clusters = 5, not 4: leave it out to go on"):
        grown(path, seeds=2, clusters=4)
    with pytest.raises(UsageError, match=r"have seed = 0, not 3"):
        grown(path, seed=3)
    assert grown(path, clusters=5, seed=0, device="cpu").runs[0].config.device == "cpu"


def test_what_an_earlier_version_planned_goes_on_but_does_not_grow(tmp_path: Path) -> None:
    spec = StudySpec([], {}, [{"method": ["k-fed"], "partition.p": [0.0]}])
    planned_study(tmp_path / "study", plan_comparison(spec))
    assert len(grown(tmp_path / "study").runs) == 1
    with pytest.raises(UsageError, match="an earlier version planned the runs"):
        grown(tmp_path / "study", seeds=2)


def test_a_list_of_grids_grows_in_each(tmp_path: Path) -> None:
    files = [{"grid": [{"method": ["fedavg"], "model.name": ["small"]}, {"method": ["moon"]}]}]

    spec = study_spec(ClassifyConfig, [*files, {}], 1)
    path = tmp_path / "study"
    planned_study(path, spec.plan_runs(ClassifyConfig, "classify"), spec)
    study = reopen_study(
        path,
        ClassifyConfig,
        lambda spec: spec.plan_runs(ClassifyConfig, "classify"),
        [{"model": {"name": ["resnet20"]}}],
        1,
    )
    found = [(run.config.method, run.config.model.name) for run in study.runs]
    assert ("fedavg", "resnet20") in found
    assert ("moon", "resnet20") in found
    assert len(found) == 4


def test_lists_for_single_values_are_axes() -> None:
    settings = {
        "loss": {"eta": "0,0.01,1e-1"},
        "method": ["km", "k-fed"],
        "gan.generator_channels": [4, 4],
        "dataset": "my,photos",
        "centroids.search": "k-means,lloyd",
        "compute.cohort": "1,2",
    }
    (values,), axes = split_axes(ClusterConfig, [unflatten(settings)])
    assert axes == {
        "loss.eta": [0, 0.01, 0.1],
        "method": ["km", "k-fed"],
        "centroids.search": ["k-means", "lloyd"],
    }
    assert values == {
        "gan": {"generator_channels": [4, 4]},
        "dataset": "my,photos",
        "compute": {"cohort": "1,2"},
    }
    with pytest.raises(UsageError, match=r"loss\.eta = 0, holds an empty value"):
        split_axes(ClusterConfig, [{"loss": {"eta": "0,"}}])
