"""Tables on other machines: the same bits as in one process, and the clusters of new rows."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_wine

from ccfcpp.cli.serve import with_suited_settings
from ccfcpp.clustering.api import CLUSTERING
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.run import clustering_run
from ccfcpp.core.config import Tree, VectorsConfig
from ccfcpp.core.config_layers import merge, validate
from ccfcpp.core.permissions import KINDS
from ccfcpp.deployment.client.rules import ForbiddenError, Rules
from ccfcpp.deployment.client.run import load_data
from ccfcpp.deployment.client.worker import Worker
from ccfcpp.deployment.link.messages import Response
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.deployment.server.enrolling import enrol
from ccfcpp.deployment.server.run import DeployedRun
from ccfcpp.runs.folder import RunFolder
from tests.support.command import succeeded
from tests.support.deployment import Grid, greeted, trusting

FARMS = ("east", "north", "west")


def write_tables(place: Path) -> None:
    """A third of scikit-learn's wines for each farm, whose columns come in an order of its own."""
    wine = load_wine()
    names = [*wine.feature_names, "colour"]
    colours = np.array(["red", "white", "rose"])[(wine.data[:, 0] % 3).astype(int)]
    data = np.column_stack([wine.data.astype(str), colours])
    place.mkdir()
    for number, farm in enumerate(FARMS):
        columns = [*range(number, len(names)), *range(number)]
        write(place / f"{farm}.csv", [names[c] for c in columns], data[number::3, columns])
    write(place.parent / "new.csv", names, data[::7])


def write(path: Path, columns: Sequence[str], rows: NDArray[np.str_]) -> None:
    lines = [",".join(columns), *(",".join(row) for row in rows.tolist())]
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(("method", "clusters"), [("fed-em", 3), ("fed-km", 3), ("fed-em", "auto")])
def test_three_clients_with_tables_are_the_same_as_one_process(
    method: str, clusters: int | str, tmp_path: Path
) -> None:
    write_tables(tmp_path / "wines")

    def worker(farm: str) -> Worker:
        table = str(tmp_path / "wines" / f"{farm}.csv")
        rules = trusting(allow=KINDS, smallest_count=0)
        return Worker(lambda spec: load_data(spec, table), tmp_path / f"{farm}.state", rules)

    asked = {"dataset": "the clients' own images", "method": method, "clusters": clusters}
    vectors = {"categories": ["colour"], "most_categories": 4}
    layers = [asked | {"device": "cpu", "seed": 2, "vectors": vectors}]
    begun = CLUSTERING.open(layers, Path("runs/none"), deployed=True)
    grid = Grid({farm: worker(farm) for farm in FARMS})
    enrolment = enrol(grid.channel, begun.config, list(FARMS), None)
    begun = with_suited_settings(begun, enrolment.spec)
    there = DeployedRun(begun.config, enrolment.with_config(begun.config), grid.channel)
    there.run(RunFolder.create(tmp_path / "deployed", begun.config))

    alone = {"dataset": str(tmp_path / "wines"), "partition": {"kind": "folders"}}
    config = validate(ClusterConfig, merge(begun.config.model_dump(mode="json"), alone))
    here = clustering_run(config)
    here.run(RunFolder.create(tmp_path / "alone", config))

    models = [tmp_path / name / "model.safetensors" for name in ("deployed", "alone")]
    assert models[0].read_bytes() == models[1].read_bytes()
    deployed, alone_too = (json.loads((m.parent / "summary.json").read_text()) for m in models)
    assert deployed["cluster_sizes"] == alone_too["cluster_sizes"]
    assert deployed["clusters"] == alone_too["clusters"] == len(deployed["cluster_sizes"])
    found = []
    for number, place in enumerate(("alone", "deployed", *(f"{farm}.state" for farm in FARMS))):
        out = tmp_path / f"clusters-{number}.csv"
        succeeded("predict", tmp_path / place, tmp_path / "new.csv", "--out", out)
        found.append(out.read_text())
    assert found == [found[0]] * 5
    assert len(found[0].splitlines()) == 1 + len(range(0, 178, 7))
    # Each owner has a description of its own rows, in which the texts of categories stand.
    for farm in FARMS:
        assert "\ncolour,rose," in (tmp_path / f"{farm}.state" / "profile.csv").read_text()


# --- columns --------------------------------------------------------------------------------------

PATIENTS = ("weight,age,patient,ward", *(f"{n}.5,{n % 40},p{n:03},{n % 3}" for n in range(60)))


def asked(
    folder: Path, run: Tree, own: VectorsConfig, patients: Sequence[str] = PATIENTS
) -> Response:
    """The answer of a client that tells counts to a server that names columns."""
    table = folder / "own.csv"
    lines = patients if own.label_column == "patient" else [x.replace("p0", "0") for x in patients]
    table.write_text("\n".join(lines) + "\n")
    spec = RunSpec.model_validate(
        {"command": "cluster", "config": {"method": "fed-em", "vectors": run}}
    )
    rules = Rules(allow=("counts", "pixels"))
    worker = Worker(lambda spec: load_data(spec, str(table), own=own), folder / "state", rules)
    return greeted(worker, spec)


def test_a_server_gets_no_column_by_naming_it(tmp_path: Path) -> None:
    answer = asked(tmp_path, {"label_column": "patient"}, VectorsConfig())
    assert (answer.status, answer.facts) == ("forbidden", None)
    assert "give --label-column patient" in answer.reason


@pytest.mark.parametrize("run", [{}, {"label_column": "patient"}, {"label_column": "ward"}])
def test_the_owners_column_holds_the_classes(run: Tree, tmp_path: Path) -> None:
    answer = asked(tmp_path, run, VectorsConfig(label_column="ward"))
    assert answer.facts is not None
    assert answer.facts.classes == ("0", "1", "2")
    assert answer.facts.columns == ("weight", "age", "patient")


def test_a_client_names_classes_in_the_spelling_that_all_compare(tmp_path: Path) -> None:
    spelt = [PATIENTS[0], *(f"{line}.0" for line in PATIENTS[1:])]
    answer = asked(tmp_path, {}, VectorsConfig(label_column="ward"), spelt)
    assert answer.facts is not None
    assert answer.facts.classes == ("0", "1", "2")


def test_a_column_that_tells_rows_apart_is_not_named(tmp_path: Path) -> None:
    answer = asked(tmp_path, {"label_column": "patient"}, VectorsConfig(label_column="patient"))
    assert (answer.status, answer.facts) == ("forbidden", None)
    assert "60 classes for 60 samples" in answer.reason


def test_a_server_chooses_no_text_column(tmp_path: Path) -> None:
    spec = RunSpec.model_validate(
        {
            "command": "cluster",
            "config": {"method": "fed-em", "vectors": {"text_column": "notes"}},
        }
    )
    (tmp_path / "own.csv").write_text("text,notes\na,b\n")
    with pytest.raises(ForbiddenError, match="give --text-column notes"):
        load_data(spec, str(tmp_path / "own.csv"), encoder="torchvision:resnet18")


def test_a_server_cannot_ask_for_rare_categories(tmp_path: Path) -> None:
    """A category that one of a client's rows has would tell of this row."""
    for rare, status in ((1, "forbidden"), (5, "done")):
        (tmp_path / str(rare)).mkdir()
        run: Tree = {"categories": ["patient"], "rare": rare}
        answer = asked(tmp_path / str(rare), run, VectorsConfig())
        assert answer.status == status
        assert ("vectors.rare=1" in answer.reason) == (rare == 1)
