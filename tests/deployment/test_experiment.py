"""From the first question to a run's folder, with clients in this process and all as bytes."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ccfcpp.clustering.evaluation.summary_text import MEASURES
from ccfcpp.clustering.model import load_model
from ccfcpp.clustering.run import clustering_run
from ccfcpp.clustering.systems.pooled.config import MeansConfig
from ccfcpp.core.config import RunConfig, Tree
from ccfcpp.core.errors import UsageError
from ccfcpp.core.metrics import clustering_scores
from ccfcpp.core.permissions import KINDS
from ccfcpp.data.images import ImageData
from ccfcpp.data.open import load
from ccfcpp.deployment.client.run import load_data
from ccfcpp.deployment.client.worker import Worker
from ccfcpp.deployment.link.messages import Request
from ccfcpp.deployment.link.packet import Undelivered
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.deployment.server.channel import Channel
from ccfcpp.deployment.server.enrolling import enrol
from ccfcpp.deployment.server.enrolment import Enrolment
from ccfcpp.deployment.server.run import DeployedRun
from ccfcpp.engine.client import Client
from ccfcpp.engine.federation import RoundReport
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.reports import rounds, summary_tables
from ccfcpp.reports.run_reader import read_run
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.paths import RunPaths
from tests.support import traps
from tests.support.classification import labelled_clients, small_config
from tests.support.clustering import tiny
from tests.support.command import ccfcpp, report
from tests.support.deployment import AT_ONCE, RUN, Grid, Told, introduced, trusting, worker_of

CLASSES = [str(number) for number in range(10)]
THREE: Tree = {"clusters": 3, "device": "cpu"}


def experiment_on(
    grid: Grid,
    config: RunConfig,
    least: int | None = None,
    channel: Channel | None = None,
) -> DeployedRun:
    sums, names = config.section(PrivacyConfig).secure_sums, list(grid.workers)
    # Its files are beside those of the workers.
    folder = next(iter(grid.workers.values())).folder.parent
    roster = introduced(grid, folder) if sums else None
    channel = channel or grid.channel
    enrolment = enrol(channel, config, names, least, roster)
    return DeployedRun(config, replace(enrolment, run=RUN), channel)


def grid_of(clients: list[Client], folder: Path, tested: bool = False) -> Grid:
    workers = {client.name: worker_of(client, folder, CLASSES) for client in clients}
    if not tested:
        for client in clients:
            data = ImageData(client.name, client.images, client.labels, tuple(CLASSES))
            workers[client.name].load = lambda spec, data=data: data  # type: ignore[misc]
    return Grid(workers)


def run(experiment: DeployedRun, path: Path) -> dict[str, Any]:
    return experiment.run(RunFolder.create(path, experiment.config))


def test_a_client_builds_its_side_again_where_the_server_goes_back(tmp_path: Path) -> None:
    """A server that was stopped after its last checkpoint may send another model of a version."""
    config = tiny("fed-scan", THREE)
    grid = grid_of(labelled_clients(40, 30, 20), tmp_path)
    worker = grid.workers["client 1"]
    read, loads = worker.load, list[RunSpec]()
    worker.load = lambda spec: loads.append(spec) or read(spec)  # type: ignore[func-returns-value]
    federation = experiment_on(grid, config).federation()
    state: Any = federation.algorithm.initial_state(federation.randomness)
    before = len(loads)
    first, _ = federation.run_round(state, 0)
    second, _ = federation.run_round(first, 1)
    assert len(loads) == before + 1
    federation.run_round(first, 1)
    federation.run_round(second, 2)
    assert len(loads) == before + 2


@pytest.mark.parametrize("method", ["ffcm-km", "ccfc", "fed-scan"])
def test_scores_from_counts_are_those_from_the_images(method: str, tmp_path: Path) -> None:
    clients = labelled_clients(40, 30, 20)
    grid = grid_of(clients, tmp_path)
    config = tiny(method, THREE)
    summary = run(experiment_on(grid, config), tmp_path / "run")
    found = [np.load(grid.workers[client.name].folder / "found.npz")["found"] for client in clients]
    labels = torch.cat([client.labels for client in clients if client.labels is not None])
    expected = clustering_scores(labels.numpy(), np.concatenate(found))
    assert {name: summary[name] for name in expected} == expected
    assert summary["counted_clients"] == [client.name for client in clients]
    assert summary["held"] == 90
    saved = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert saved["nmi"] == summary["nmi"]
    assert not (tmp_path / "run" / "assignments.npz").exists()


@pytest.mark.parametrize("sums", [False, True])
def test_a_clustering_is_judged_as_in_one_process(sums: bool, tmp_path: Path) -> None:
    clients = labelled_clients(50, 40, 30)
    config = tiny(
        "fed-km",
        {"clusters": 3, "device": "cpu", "partition": {"kind": "folders"}},
        {"privacy": {"secure_sums": sums}, "means": {"rounds": 60}},
    )
    grid = grid_of(clients, tmp_path)
    deployed = run(experiment_on(grid, config), tmp_path / "deployed")
    data = ImageData(
        "all",
        torch.cat([client.images for client in clients]),
        labels=None,
        classes=(),
        owners=torch.cat([torch.full((len(own),), own.id) for own in clients]),
        owner_names=tuple(client.name for client in clients),
    )
    alone = clustering_run(config, data)
    expected = alone.run(RunFolder.create(tmp_path / "alone", config))
    for key in MEASURES:
        assert deployed[key] is not None
        assert deployed[key] == pytest.approx(expected[key], rel=1e-4)
    assert deployed["epilogue"]["clients"] == 3
    # Where a run converges before its last round, this is no further round for a client.
    most = config.section(MeansConfig).rounds
    assert deployed["rounds"] < most
    asked = {Request.model_validate_json(packet.header).round for _, packet in grid.requests}
    assert {number for number in asked if number >= deployed["rounds"]} == {most}


@pytest.mark.parametrize("method", ["ffcm-km", "ccfc"])
def test_the_server_and_each_client_keep_a_model(method: str, tmp_path: Path) -> None:
    grid = grid_of(labelled_clients(40, 30), tmp_path)
    config = tiny(method, {"dataset": "the clients' own images", "clusters": 3, "device": "cpu"})
    run(experiment_on(grid, config), tmp_path / "run")
    for worker in grid.workers.values():
        images = worker.load(RunSpec(command="cluster", config={})).values
        found = np.load(worker.folder / "found.npz")["found"].tolist()
        for folder in (tmp_path / "run", worker.folder):
            assert load_model(folder, "cpu").assign(images).tolist() == found


def test_who_is_not_there_at_the_start_is_not_waited_for(tmp_path: Path) -> None:
    grid = grid_of(labelled_clients(40, 30, 20), tmp_path)
    late = list(grid.workers)[1]
    grid.away.add(late)
    config = tiny("ffcm-km", THREE)
    experiment = experiment_on(grid, config, least=2)
    grid.away.clear()
    summary = run(experiment, tmp_path / "run")
    assert late not in {name for name, _ in grid.requests}
    assert (summary["clients"], summary["held"]) == (2, 60)
    assert [each["client"] for each in summary["participants"]] == [0, 2]


def test_who_does_not_allow_counts_is_left_out(tmp_path: Path) -> None:
    grid = grid_of(labelled_clients(40, 30, 20), tmp_path)
    for worker in grid.workers.values():
        worker.rules = trusting(allow=("pixels",), smallest_count=0)
    config = tiny("ffcm-km", THREE)
    summary = run(experiment_on(grid, config), tmp_path / "run")
    assert summary["nmi"] is None
    assert summary["counted_clients"] == []
    assert all((worker.folder / "found.npz").exists() for worker in grid.workers.values())


@pytest.mark.parametrize("comes", [True, False])
def test_who_is_late_for_the_model_gets_it_while_the_server_lingers(
    comes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = grid_of(labelled_clients(40, 30, 20), tmp_path)
    late = list(grid.workers)[1]
    linger = 1000.0 if comes else 2.0
    channel = Channel(grid, replace(AT_ONCE, linger=linger), told := Told())
    config = tiny("ffcm-km", THREE)
    experiment = experiment_on(grid, config, channel=channel)
    grid.tampering[late] = lambda packet: Undelivered("its node is gone")
    waits = iter(range(10))

    def wait(seconds: float) -> None:
        if comes and next(waits) == 3:
            del grid.tampering[late]

    monkeypatch.setattr("ccfcpp.deployment.server.evaluator.time.sleep", wait)
    summary = run(experiment, tmp_path / "run")
    found = grid.workers[late].folder / "found.npz"
    assert summary["without_model"] == ({} if comes else {late: "its node is gone"})
    there = [name for name in grid.workers if comes or name != late]
    assert summary["counted_clients"] == there
    assert [names for names, _ in told.awaited] == [[late]]
    assert 0 < told.awaited[0][1] <= linger
    assert found.exists() or not comes


def test_a_server_that_lingers_can_be_stopped(tmp_path: Path) -> None:
    grid = grid_of(labelled_clients(40, 30, 20), tmp_path)
    late = list(grid.workers)[1]
    config = tiny("ffcm-km", THREE)
    channel = Channel(grid, replace(AT_ONCE, linger=1000.0))
    experiment = experiment_on(grid, config, channel=channel)
    grid.away.add(late)
    folder, asked = (
        RunFolder.create(tmp_path / "run", experiment.config),
        iter(range(100)),
    )
    rounds = experiment.algorithm.rounds
    summary = experiment.run(folder, should_stop=lambda: next(asked) >= rounds)
    assert summary["without_model"] == {late: "it is not online"}
    assert next(asked) == rounds + 1


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_server_that_everybody_has_left_is_stopped_at_once(rounds: int, tmp_path: Path) -> None:
    """The round that it was to end first would never end; the run goes on from its checkpoint."""
    grid = grid_of(labelled_clients(40, 30), tmp_path, tested=True)
    experiment = experiment_on(grid, small_config("method=fedavg"))
    asked = iter([False] * rounds)

    def leave(report: RoundReport, scores: dict[str, float]) -> None:
        grid.away.update(grid.workers)

    if rounds == 0:
        grid.away.update(grid.workers)
    folder = RunFolder.create(tmp_path / "run", experiment.config)
    with pytest.raises(KeyboardInterrupt):
        experiment.run(folder, leave, lambda: next(asked, True))
    assert folder.checkpoint.exists() == (rounds > 0)


def test_a_server_that_everybody_has_left_ends(tmp_path: Path) -> None:
    grid = grid_of(labelled_clients(40, 30), tmp_path)
    experiment = experiment_on(grid, tiny("ffcm-km", THREE))
    folder = RunFolder.create(tmp_path / "run", experiment.config)

    def leave(report: RoundReport, scores: dict[str, float]) -> None:
        if report.round + 1 == experiment.algorithm.rounds:
            grid.away.update(grid.workers)

    summary = experiment.run(folder, leave)
    assert summary["without_model"] == dict.fromkeys(grid.workers, "it is not online")
    assert summary["nmi"] is None


@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_a_classifier_is_tested_by_its_clients(method: str, tmp_path: Path) -> None:
    clients = labelled_clients(40, 30, 20)
    grid = grid_of(clients, tmp_path, tested=True)
    config = small_config(f"method={method}", "compute.cohort=1", "device=cpu")
    summary = run(experiment_on(grid, config), tmp_path / "run")
    assert 0 <= summary["accuracy"] <= 1
    assert summary["training_images"] == 90


def test_a_run_goes_on_after_its_checkpoint(tmp_path: Path) -> None:
    config = small_config("method=scaffold", "compute.cohort=1", "device=cpu")
    states = {}
    for interrupted in (False, True):
        place = tmp_path / str(interrupted)
        grid = grid_of(labelled_clients(40, 30, 20), place, tested=True)
        folder = RunFolder.create(place / "run", config)
        if interrupted:
            with pytest.raises(KeyboardInterrupt):
                experiment_on(grid, config).run(folder, _stop_in_round_1)
        experiment_on(grid, config).run(folder)
        states[interrupted] = (place / "run" / "model.safetensors").read_bytes()
    assert states[True] == states[False]


def _stop_in_round_1(report: Any, scores: dict[str, float]) -> None:
    if report.round == 1:
        raise KeyboardInterrupt


def test_a_run_needs_clients_that_may_take_part(tmp_path: Path) -> None:
    grid = grid_of(labelled_clients(10, 8), tmp_path)
    for worker in grid.workers.values():
        worker.rules = trusting(smallest_count=0)
    with pytest.raises(UsageError, match="2 of 2 clients cannot take part"):
        experiment_on(grid, tiny("km"))


@pytest.mark.parametrize("method", ["fed-scan", "fedavg"])
def test_a_report_shows_what_clients_have_told(method: str, tmp_path: Path) -> None:
    grid = grid_of(labelled_clients(40, 30, 20), tmp_path, tested=method == "fedavg")
    config: RunConfig = tiny("fed-scan", THREE)
    if method == "fedavg":
        config = small_config("method=fedavg", "compute.cohort=1", "device=cpu")
    experiment = experiment_on(grid, config)
    summary = run(experiment, tmp_path / "run")
    enrolment = Enrolment(RUN, experiment.spec, tuple(experiment.members), 1.0)
    enrolment.save(RunPaths(tmp_path / "run").deployment)
    found = report(tmp_path / "run")
    assert {"scores", "bytes", "participation", "confusion"} <= set(found["figures"])
    reasons = {each["figure"]: each["reason"] for each in found["left_out"]}
    assert reasons["Covariance matrix"] == "the images are with the clients, on other machines"
    page = (tmp_path / "run" / "report.html").read_text()
    score = "accuracy" if method == "fedavg" else "nmi"
    assert f"{summary[score]:.4g}" in page
    with (tmp_path / "run" / "figures" / "confusion.csv").open() as file:
        counted = sum(int(row["images"]) for row in csv.DictReader(file))
    assert counted == (12 if method == "fedavg" else 90)
    assert ("client-classes" in found["figures"]) == (method == "fed-scan")
    assert "[&#39;" not in page  # no list of Python's


def test_a_page_says_whose_labels_gave_which_score(tmp_path: Path) -> None:
    """The first client cannot take part, so that places and numbers differ."""
    clients = labelled_clients(40, 30, 20, 25)
    grid = grid_of(clients, tmp_path)
    one, two, silent, four = grid.workers.values()
    one.rules = trusting(smallest_count=50)
    silent.rules = trusting(smallest_count=0)
    config = tiny("fed-scan", THREE)
    experiment = experiment_on(grid, config, least=3)
    summary = run(experiment, tmp_path / "run")
    enrolment = Enrolment(RUN, experiment.spec, tuple(experiment.members), 1.0)
    enrolment.save(RunPaths(tmp_path / "run").deployment)
    names = [clients[number].name for number in (1, 3)]
    assert summary["counted_clients"] == names
    recorded = read_run(tmp_path / "run")
    rows = {row["labels of"]: row for row in summary_tables.scored_by(recorded)}
    assert list(rows) == [*(client.name for client in clients[1:]), "all together"]
    assert set(list(rows[clients[2].name].values())[1:]) == {"\N{EN DASH}"}
    for worker, name in ((two, clients[1].name), (four, clients[3].name)):
        found = np.load(worker.folder / "found.npz")["found"]
        labels = next(client.labels for client in clients if client.name == name)
        assert labels is not None
        assert rows[name]["NMI"] == f"{clustering_scores(labels.numpy(), found)['nmi']:.4g}"
    assert rows["all together"]["NMI"] == f"{summary['nmi']:.4g}"
    drawn = rounds.participation(recorded)
    assert {(row["client"], row["name"]) for row in drawn.rows} == {
        (number, clients[number].name) for number in (1, 2, 3)
    }
    assert {row["state"] for row in drawn.rows} == {"took part"}
    recorded.log[0]["absent"] = {"3": ["steps: no answer within 5 s"]}
    states = {
        (row["client"], row["round"]): row["state"] for row in rounds.participation(recorded).rows
    }
    assert states[3, 1] == "missed a part"


@pytest.mark.usefixtures("unrendered")
def test_a_report_before_the_end_shows_the_rounds(tmp_path: Path) -> None:
    grid = grid_of(labelled_clients(40, 30, 20), tmp_path, tested=True)
    config = small_config("method=scaffold", "compute.cohort=1", "device=cpu")
    experiment = experiment_on(grid, config)
    folder = RunFolder.create(tmp_path / "run", config)
    with pytest.raises(KeyboardInterrupt):
        experiment.run(folder, _stop_in_round_1)
    Enrolment(RUN, experiment.spec, tuple(experiment.members), 1.0).save(folder.deployment)
    found = report(tmp_path / "run")
    assert "participation" in found["figures"]
    reasons = {each["figure"]: each["reason"] for each in found["left_out"]}
    assert reasons["Confusion matrix"] == "no client has reported the clusters of its images"
    assert "2 of" in (tmp_path / "run" / "report.html").read_text()


def test_cluster_does_not_go_on_with_other_images_than_those_of_the_clients(
    tmp_path: Path,
) -> None:
    """The run's configuration names no data set, and the default one is another."""
    folder = RunFolder.create(tmp_path / "run", tiny("ffcm-km"))
    folder.deployment.write_text("{}")
    result = ccfcpp("cluster", "--out", folder.path, "--resume")
    assert result.code == 2
    assert "are with its clients, on other machines" in result.stderr


def test_a_deployed_run_is_defended_and_attacked_by_nobody(tmp_path: Path) -> None:
    clients = labelled_clients(30, 25, 20, 20, 20)
    tree = {"clusters": 3, "device": "cpu", "defence": {"rule": "median"}}
    states = []
    for rule in ("none", "median"):
        config = tiny("ffcm-avg", tree, {"defence": {"rule": rule}})
        experiment = experiment_on(grid_of(clients, tmp_path / rule), config)
        summary = run(experiment, tmp_path / rule / "run")
        assert summary.get("defence", "none") == rule
        states.append(RunFolder(tmp_path / rule / "run").model.read_bytes())
    assert states[0] != states[1]
    config = tiny("ffcm-avg", tree, {"attack": {"kind": "noise"}})
    with pytest.raises(UsageError, match="leave it out of a run over several machines"):
        experiment_on(grid_of(clients, tmp_path / "attack"), config)


def test_photos_of_any_size_and_colour_meet_as_in_one_process(tmp_path: Path) -> None:
    source = np.random.default_rng(0)
    for client, channels, (height, width), depth in (
        ("ann", (), (30, 44), np.uint16),
        ("bob", (3,), (21, 25), np.uint8),
        ("eve", (3,), (64, 50), np.uint8),
    ):
        most = 4096 if depth is np.uint16 else 256
        photos = [
            traps.Trap(
                f"{client}/photo {n}.png",
                traps.encoded(
                    source.integers(0, most, (height + n, width, *channels), depth), "PNG"
                ),
            )
            for n in range(8)
        ]
        traps.write(tmp_path, [*photos, traps.Trap(f"{client}/cut.png", photos[0].content[:60])])
    places = {client: tmp_path / client for client in ("ann", "bob", "eve")}
    told: list[str] = []

    def worker(place: Path) -> Worker:
        rules = trusting(allow=KINDS, smallest_count=0)
        folder = place.with_suffix(".state")
        return Worker(lambda spec: load_data(spec, str(place)), folder, rules, say=told.append)

    grid = Grid({client: worker(place) for client, place in places.items()})
    config = tiny("fed-scan", THREE)
    experiment = experiment_on(grid, config)
    together = tmp_path / "together"
    together.mkdir()
    for client, place in places.items():
        (together / client).symlink_to(place)
    whole = load(str(together), folders_are_clients=True, skip=0.2)
    assert experiment.spec.image_shape == tuple(whole.images.shape[1:])
    assert experiment.spec.image_shape == (3, 32, 32)
    summary = run(experiment, tmp_path / "run")
    assert (summary["samples"], summary["skipped"]) == (24, 3)
    for client in places:
        state = tmp_path / f"{client}.state"
        with (state / "clusters.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["file"] for row in rows] == [f"photo {n}.png" for n in range(8)]
        assert rows[0].keys() == {"file", "cluster", "probability", "distance", "outlier"}
        found = np.load(state / "found.npz")["found"].tolist()
        assert [int(row["cluster"]) for row in rows] == found
        assert all(0 <= float(row["probability"]) <= 1 for row in rows)
        assert (state / "skipped.csv").read_text().startswith("file,reason\ncut.png,")
    assert any("images of 44x30 to 44x37 pixels become 32x32" in line for line in told)
