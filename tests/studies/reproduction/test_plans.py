"""Which runs each table and figure needs, and where they lie."""

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.systems.ccfc.config import TrainingConfig
from ccfcpp.core.config import RunConfig
from ccfcpp.core.config_layers import flatten
from ccfcpp.core.errors import UsageError
from ccfcpp.runs.paths import MAY_CHANGE
from ccfcpp.studies.reproduction.paper_items import ITEMS, Block, load_items, read_paper
from ccfcpp.studies.reproduction.plan import images_folder, plan_item, plan_run
from supervised.config import ClassifyConfig
from tests.studies.reproduction.test_published import TABLES_I_AND_II
from tests.support.reproduction import Plan, Plans

BOTH = pytest.mark.parametrize("quick", [True, False], ids=["quick", "full"])
EVERY_ITEM = pytest.mark.parametrize("name", ITEMS)

# Cells times seeds, from the papers' tables and texts.
FULL = {
    "ccfcpp-table1": 4 * (2 + 8 * 5),
    "ccfcpp-table2": 4 * (2 + 8 * 5),
    "ccfcpp-figure2": 5,
    "ccfcpp-figure3": 5,
    "ccfcpp-figure4": 5,
    "ccfcpp-figure5": 2 * 5,
    "ccfcpp-figure6": 5 + 5 * 4,
    "ccfcpp-figure7": 2 * 5 * 10 * 3,
    "feddecorr-table1": 3 * 4 * (2 + 4 * 2) * 3,
    "feddecorr-table2": 3 * 3 * (2 + 4 * 2) * 3,
    "feddecorr-table3": 2 * 5 * 2 * 3,
    "feddecorr-table4": 2 * 5 * 2 * 2 * 3,
    "feddecorr-table5": 2 * 4 * 2 * 2 * 3,
    "feddecorr-table6": 3 * 4,
    "feddecorr-table7": 3 * 4 * 3,
    "feddecorr-table8": 3 * 2 * 2 * 3,
    "feddecorr-figure1": 2 + 1,
    "feddecorr-figure2": 4,
    "feddecorr-figure3": 4,
    "feddecorr-figure4": 4,
    "feddecorr-figure5": 2 * 2,
    "feddecorr-figure6": 2 * 2,
    "feddecorr-figure7": 2 * 2,
    "feddecorr-figure8": 6 * 2 * 3,
    "feddecorr-figure9": 2 * 2 * (1 + 5) * 3,
    "feddecorr-iclr-table3": 5 * 3 * 2 * 3,
    "feddecorr-iclr-table10": 2 * 2 * 3,
    "feddecorr-iclr-figure7": 3 * 4,
    "feddecorr-iclr-figure8": 2 * 4,
    "feddecorr-iclr-figure9": 2 * 4,
    "feddecorr-iclr-figure10": 4,
    "feddecorr-iclr-figure11": 1,
}


def values_of(plan: Plan, key: str) -> list[Any]:
    """The values of a setting, each once, in the order of the plan; of runs that have it."""
    values = (dict(flatten(run.config.model_dump())) for run in plan)
    return list(dict.fromkeys(own[key] for own in values if key in own))


def datasets(plan: Plan) -> set[str]:
    return {Path(run.config.dataset).name for run in plan}


@EVERY_ITEM
def test_full_runs_are_as_many_as_in_the_papers(plans: Plans, name: str) -> None:
    plan = plans.of(name, quick=False)
    assert len(plan) == FULL[name]
    assert len({run.folder for run in plan}) == len(plan)


def test_all_items_of_both_papers_are_there() -> None:
    assert list(ITEMS) == list(FULL)
    assert [name for name, item in ITEMS.items() if item.timed] == ["feddecorr-table6"]


def test_items_have_the_names_and_titles_of_their_files() -> None:
    assert load_items() == ITEMS
    assert ITEMS["ccfcpp-table1"].title == "CCFC++, Table I: NMI"
    assert ITEMS["feddecorr-iclr-table3"].title == "FedDecorr, ICLR, Table 3: number of clients"


CLAIM = {"say": "it rises", "rises": "all"}
TABLE = {"title": "NMI", "measure": "nmi", "place": "{partition.p}", "system": "{method}"}
PLAIN: dict[str, Any] = {
    "title": "Table I",
    "full": [{}],
    "quick": [{}],
    "tables": {"nmi": TABLE},
    "claims": [CLAIM],
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"title": None}, "title: Input should be a valid string"),
        ({"tabels": {}}, "tabels: Extra inputs are not permitted"),
        ({"quick": [{"seeds": 0}]}, "quick.0.seeds: Input should be greater than or equal to 1"),
        ({"tables": {"nmi": TABLE | {"measure": "nim"}}}, "measure 'nim' is none of nmi, "),
        ({"claims": [CLAIM | {"table": "kappa"}]}, "'it rises' is about a table 'kappa'"),
        ({"claims": [{"say": "it rises"}]}, "'it rises' must have one of higher, highest, rises"),
        ({"claims": [CLAIM | {"falls": "all"}]}, "'it rises' must have one of "),
        ({"spectra": [{"of": "all", "line": ""}]}, "spectra.0.of: Input should be 'global', "),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line(changes: dict[str, Any], said: str | None) -> None:
    tree = {"paper": "A", "command": "cluster", "items": {"table1": PLAIN | changes}}
    if said is None:
        assert read_paper(tree, "here")["table1"].title == "A, Table I"
        return
    with pytest.raises(UsageError) as caught:
        read_paper(tree, "here")
    assert str(caught.value).startswith("here: table1: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_weekly_check_runs_all_items(capsys: pytest.CaptureFixture[str]) -> None:
    script = (Path(__file__).parents[3] / ".ci" / "weekly").read_text()
    command = script.partition(" -c '")[2].partition("'")[0]
    exec(command, {})  # noqa: S102 - our own script
    assert capsys.readouterr().out.split() == list(ITEMS)
    assert "for item in $(" in script


@EVERY_ITEM
def test_quick_runs_are_on_little_data(plans: Plans, name: str) -> None:
    plan = plans.of(name, quick=True)
    assert datasets(plan) <= {"digits", "mnist", "digit-domains"}
    assert len(plan) <= 120
    for run in plan:
        if run.config.dataset == "mnist":
            data = run.config.data
            clusters = isinstance(run.config, ClusterConfig)
            assert (data.images if clusters else data.train_images) == 2000


@EVERY_ITEM
@BOTH
def test_every_cell_has_the_same_seeds_from_0_on(plans: Plans, name: str, quick: bool) -> None:
    seeds: dict[str, list[int]] = {}
    for run in plans.of(name, quick):
        cell = run.config.model_copy(update={"seed": 0}).model_dump_json()
        seeds.setdefault(cell, []).append(run.config.seed)
    assert len({tuple(own) for own in seeds.values()}) == 1
    assert next(iter(seeds.values())) in ([0], [0, 1, 2])


@BOTH
def test_a_folder_stands_for_one_configuration(plans: Plans, quick: bool) -> None:
    found: dict[Path, RunConfig] = {}
    for name in ITEMS:
        for run in plans.of(name, quick):
            assert found.setdefault(run.folder, run.config) == run.config
    assert len(set(map(RunConfig.model_dump_json, found.values()))) == len(found)


def test_items_share_the_runs_that_they_both_need(plans: Plans) -> None:
    def folders(name: str, quick: bool) -> set[Path]:
        return {run.folder for run in plans.of(name, quick)}

    for quick in (True, False):
        assert folders("ccfcpp-table1", quick) == folders("ccfcpp-table2", quick)
        assert folders("ccfcpp-figure2", quick) == folders("ccfcpp-figure3", quick)
        assert folders("ccfcpp-figure3", quick) == folders("ccfcpp-figure4", quick)
        assert folders("ccfcpp-figure2", quick) < folders("ccfcpp-figure5", quick)
        assert folders("feddecorr-figure2", quick) == folders("feddecorr-figure4", quick)
        assert folders("feddecorr-figure5", quick) == folders("feddecorr-figure7", quick)
        assert folders("feddecorr-figure2", quick) == folders("feddecorr-iclr-figure10", quick)
    assert folders("ccfcpp-figure5", False) < folders("ccfcpp-table1", False)
    assert folders("feddecorr-figure9", False) & folders("feddecorr-table1", False)
    assert folders("feddecorr-figure8", True) & folders("feddecorr-table1", True)


# --- what the papers say of single ones ---------------------------------------------------------


COLLAPSE = [0.01, 0.05, 0.25, math.inf]


@pytest.mark.parametrize(
    ("name", "quick", "key", "values"),
    [
        ("ccfcpp-figure6", False, "loss.eta", [0.0, 0.001, 0.01, 0.1, 1.0]),
        ("ccfcpp-figure7", False, "availability.disconnection_rate", [n / 10 for n in range(10)]),
        ("ccfcpp-figure7", True, "availability.disconnection_rate", [0.0, 0.3, 0.6, 0.9]),
        ("feddecorr-table1", False, "partition.alpha", [0.05, 0.1, 0.5, math.inf]),
        ("feddecorr-figure2", False, "partition.alpha", COLLAPSE),
        ("feddecorr-figure2", False, "dataset", ["cifar100"]),
        ("feddecorr-figure9", False, "decorrelation.beta", [0.01, 0.05, 0.1, 0.2, 0.3]),
        *(
            ("feddecorr-iclr-figure11", quick, key, [value])
            for quick in (False, True)
            for key, value in {
                "decorrelation.log_epochs": True,
                "decorrelation.kind": "feddecorr",
                "partition.alpha": 0.5,
                "training.local_epochs": 10,
            }.items()
        ),
    ],
)
def test_settings_run_through_the_papers_values(
    plans: Plans, name: str, quick: bool, key: str, values: list[object]
) -> None:
    assert values_of(plans.of(name, quick), key) == values


@EVERY_ITEM
@BOTH
def test_clustering_has_the_published_preset(plans: Plans, name: str, quick: bool) -> None:
    for run in plans.of(name, quick):
        if isinstance(run.config, ClusterConfig):
            assert run.config.preset == "published"
            assert run.config.method in TABLES_I_AND_II


def test_the_phases_of_the_paper(plans: Plans) -> None:
    contrastive = {
        (training.pretrain_rounds, training.rounds)
        for run in plans.of("ccfcpp-table1", quick=False)
        if run.config.method in ("ccfc", "ccfc++")
        for training in [run.config.section(TrainingConfig)]
    }
    assert contrastive == {(100, 30)}


def test_weights_of_the_clustering_paper(plans: Plans) -> None:
    """CCFC++ has MNIST's on every data set (docs/differences.md)."""
    tables = plans.of("ccfcpp-table1", quick=False)
    own = {r.config.dataset: r.config.loss.eta for r in tables if r.config.method == "ccfc++"}
    assert own == {"mnist": 0.01, "fashion-mnist": 0.01, "cifar10": 0.01, "stl10": 0.01}
    assert {r.config.loss.eta for r in tables if r.config.method == "ccfc"} == {0.0}


@pytest.mark.parametrize("name", ["feddecorr-table4", "feddecorr-iclr-table3"])
def test_many_clients_are_sampled_over_more_rounds(plans: Plans, name: str) -> None:
    for run in plans.of(name, quick=False):
        many = run.config.partition.clients > 30
        assert run.config.availability.sample_fraction == (0.2 if many else 1.0)
        if run.config.dataset == "tiny-imagenet":
            assert run.config.training.rounds == (100 if many else 50)


def test_classes_a_client_by_data_set(plans: Plans) -> None:
    held: dict[str, list[int]] = {}
    for run in plans.of("feddecorr-table2", quick=False):
        held.setdefault(run.config.dataset, []).append(run.config.partition.classes_per_client)
    assert {name: sorted(set(own)) for name, own in held.items()} == {
        "cifar10": [3, 4, 5], "cifar100": [20, 30, 40], "tiny-imagenet": [80, 90, 100],
    }  # fmt: skip


def test_moon_has_a_projection_head_on_cifar_alone(plans: Plans) -> None:
    heads = {
        run.config.dataset: run.config.moon.projection
        for run in plans.of("feddecorr-table1", quick=False)
        if run.config.method == "moon"
    }
    assert heads == {"cifar10": (640, 256), "cifar100": (640, 256), "tiny-imagenet": ()}


# --- values, folders and errors -----------------------------------------------------------------


def test_a_missing_folder_of_domains_is_named(tmp_path: Path) -> None:
    item = ITEMS["feddecorr-table3"]
    bare = Plans(tmp_path, tmp_path / "nothing")
    with pytest.raises(UsageError, match=r"nothing/office-caltech10 is missing.*--data-root") as it:
        bare.planned(item, item.full, {})
    assert "\n" not in str(it.value)
    (tmp_path / "nothing" / "office-caltech10").mkdir(parents=True)
    with pytest.raises(UsageError, match="nothing/domainnet is missing"):
        bare.planned(item, item.full, {})


def test_without_a_data_root_domains_are_sought_where_data_sets_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = ITEMS["feddecorr-table3"].full[0].images
    assert images == "office-caltech10"
    (tmp_path / "office-caltech10").mkdir()
    monkeypatch.setenv("CCFCPP_DATA", str(tmp_path))
    assert images_folder(images, tmp_path / "made", None) == tmp_path / "office-caltech10"


def planned_on(dataset: str, data_root: Path, made: Path) -> Plan:
    """The runs of Table 3 on one of its data sets."""
    item = ITEMS["feddecorr-table3"]
    return plan_item(item, False, {}, made, data_root, dataset)


def test_one_data_set_needs_no_folder_of_another(tmp_path: Path) -> None:
    (tmp_path / "office-caltech10").mkdir()
    plan = planned_on("office-caltech10", tmp_path, tmp_path / "made")
    assert len(plan) == FULL["feddecorr-table3"] // 2
    assert {run.config.dataset for run in plan} == {str(tmp_path / "office-caltech10")}
    with pytest.raises(UsageError, match="domainnet is missing"):
        planned_on("domainnet", tmp_path, tmp_path / "made")


def test_a_data_set_that_an_item_does_not_have_is_refused_with_those_it_has(
    tmp_path: Path,
) -> None:
    known = "--dataset mnist is none of this item's: take office-caltech10 or domainnet$"
    with pytest.raises(UsageError, match=known):
        planned_on("mnist", tmp_path, tmp_path / "made")
    plan = plan_item(ITEMS["ccfcpp-table1"], False, {}, tmp_path, None, "stl10")
    assert datasets(plan) == {"stl10"}
    assert len(plan) == FULL["ccfcpp-table1"] // 4


def test_wherever_images_lie_their_runs_have_the_same_folders(tmp_path: Path) -> None:
    for root in ("here", "there"):
        (tmp_path / root / "office-caltech10").mkdir(parents=True)
    first, second = (
        planned_on("office-caltech10", tmp_path / root, tmp_path / "made")
        for root in ("here", "there")
    )
    assert [run.folder for run in first] == [run.folder for run in second]
    assert [run.config for run in first] != [run.config for run in second]


def test_another_spelling_of_the_output_folder_changes_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    item = ITEMS["feddecorr-table3"]
    spellings = (Path("out"), tmp_path / "out", tmp_path / "other" / ".." / "out")
    (tmp_path / "other").mkdir()
    plans = [Plans(made, tmp_path).planned(item, item.quick, {}) for made in spellings]
    assert plans[0] == plans[1] == plans[2]
    (dataset,) = {run.config.dataset for run in plans[0]}
    assert dataset == str(tmp_path.resolve() / "out" / "digit-domains")


def test_values_go_over_all_runs(plans: Plans) -> None:
    item = ITEMS["feddecorr-figure5"]
    plan = plans.planned(item, item.quick, {"device": "cpu", "compute": {"cohort": "3"}})
    assert {(run.config.device, run.config.compute.cohort) for run in plan} == {("cpu", 3)}
    before = plans.of("feddecorr-figure5", quick=True)
    assert [run.folder for run in plan] == [run.folder for run in before]
    with pytest.raises(UsageError, match="device = tpu is refused"):
        plans.planned(item, item.quick, {"device": "tpu"})


def test_equal_cells_of_several_grids_are_one_run(plans: Plans) -> None:
    grid: dict[str, list[object]] = {"dataset": ["digits"], "method": ["km"]}
    blocks = [Block(grid=(grid,), seeds=2), Block(grid=({**grid, "method": ["km", "k-fed"]},))]
    plan = plans.planned(ITEMS["ccfcpp-table1"], blocks, {})
    assert [(run.config.method, run.config.seed) for run in plan] == [
        ("km", 0), ("km", 1), ("k-fed", 0),
    ]  # fmt: skip


def other(value: object) -> object:
    """Another value of about the same kind; none that a run could have."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, tuple):
        return (*value, 7)
    return "other" if isinstance(value, str) else 7


def changed(config: BaseModel, key: str) -> BaseModel:
    """A configuration with another value, which nobody looks at."""
    head, _, rest = key.partition(".")
    value = getattr(config, head)
    return config.model_copy(update={head: changed(value, rest) if rest else other(value)})


@pytest.fixture
def no_complaints() -> Iterator[None]:
    """Values of another kind may be written out."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*Pydantic serializer warnings")
        yield


@pytest.mark.usefixtures("no_complaints")
@pytest.mark.parametrize("config", [ClusterConfig(), ClassifyConfig()])
def test_a_folders_name_depends_on_all_that_may_not_change(config: RunConfig) -> None:
    same = set()
    folders = {plan_run({}, config).folder}
    keys = dict(flatten(config.model_dump()))
    for key in keys:
        run = changed(config, key)
        assert isinstance(run, RunConfig)
        folder = plan_run({"an axis": 1}, run).folder
        same |= {key} if folder in folders else set()
        folders.add(folder)
    assert same == MAY_CHANGE & keys.keys()


def test_a_folders_name_can_be_read() -> None:
    config = ClassifyConfig(dataset="/data/office-caltech10", method="moon")
    folder = plan_run({}, config).folder
    assert len(folder.parts) == 1
    assert folder.name.startswith("moon-office-caltech10-")
    infinite = config.model_copy(
        update={"partition": config.partition.model_copy(update={"alpha": math.inf})}
    )
    assert plan_run({}, infinite).folder != folder
