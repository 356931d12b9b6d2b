"""A run from its clients to its summary, with an election whose every number is known."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config import AvailabilityConfig
from ccfcpp.core.config_layers import validate
from ccfcpp.core.errors import FederationError, StoppedError
from ccfcpp.data.images import ImageData
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import RefusedUpdateError
from ccfcpp.engine.federation import RoundReport
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.payload import pack
from ccfcpp.runs.evaluator import Arrays, Evaluator, Results, Scores
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.local_spectra import LocalSpectra
from ccfcpp.runs.run import Holdings, LocalRun
from ccfcpp.runs.setting import Setting
from ccfcpp.runs.store import History
from tests.support.election import HOPELESS, Election, Mean, Voting, voters


class Count(Evaluator[Mean]):
    """Every third round is scored."""

    def __init__(self, clients: list[Client]) -> None:
        self.clients = clients

    def scores(self, number: int, state: Mean, memories: ClientMemories) -> Scores:
        return {"first": float(state.value[0])} if number % 3 == 2 else {}

    def results(
        self, state: Mean, memories: ClientMemories, local: LocalSpectra, outcome: None
    ) -> Results:
        votes = {client.id: memories.take(client.id).get("votes") for client in self.clients}
        known = {str(n): int(v) for n, v in votes.items() if v is not None}
        return Results({"votes": known}, pack(state), arrays={"values": {"value": state.value}})

    def image_results(self, state: Mean, memories: ClientMemories) -> Arrays:
        return {"values": {"value": state.value}}

    def describe(self) -> dict[str, Any]:
        return {"method": "election"}


def poll(config: ClusterConfig, rounds: int = 6) -> LocalRun[Election, Count]:
    """Clients that vote."""
    clients, setting = voters(0, 1, 2, HOPELESS), Setting.of(config)
    data = ImageData("votes", torch.zeros(4, 1, 1, 1, dtype=torch.uint8), None, ())
    numbers = range(HOPELESS + 1)
    held = Holdings(data, [torch.zeros(0) for _ in numbers], ["" for _ in numbers])
    everyone, judge = list(numbers), Count(clients)
    return LocalRun(
        setting, Election(rounds), held, clients, judge, None, everyone, lambda _: poll(config)
    )


CONFIG = validate(
    ClusterConfig, {"availability": {"dropout_rate": 0.3}, "device": "cpu", "seed": 2}
)


def new_folder(path: Path) -> RunFolder:
    return RunFolder.create(path, CONFIG)


def rows(folder: RunFolder) -> list[dict[str, Any]]:
    """The log, without the time that rounds took."""
    lines = folder.metrics.read_text().splitlines()
    return [{**json.loads(line), "seconds": 0} for line in lines]


def test_a_summary_holds_the_setting_the_rounds_and_the_results(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "run")
    seen: list[tuple[RoundReport, Scores]] = []
    summary = poll(CONFIG).run(folder, lambda report, scores: seen.append((report, scores)))
    reports = [report for report, _ in seen]
    assert [report.round for report in reports] == list(range(6))
    assert [sorted(scores) for _, scores in seen] == [[], [], ["first"], [], [], ["first"]]
    assert json.loads(folder.summary.read_text()) == summary
    assert summary["method"] == "election"
    assert summary["out"] == str(folder.path)
    assert summary["rounds"] == 6
    assert "cohort" not in summary  # Nothing is trained side by side.
    assert summary["bytes_up"] == sum(report.bytes_up for report in reports)
    assert summary["refused_updates"] == sum(len(r.refused.get(HOPELESS, [])) for r in reports) > 0
    took_part = {each["client"]: each["rounds"] for each in summary["participants"]}
    assert took_part == {
        client: sum(client in report.clients for report in reports)
        for client in (0, 1, 2, HOPELESS)
    }
    # Round 1 holds two exchanges; a refused vote is not remembered.
    twice = [report for report in reports if report.round == 1]
    expected = {n: took_part[n] + sum(n in r.clients for r in twice) for n in (0, 1, 2)}
    assert summary["votes"] == {str(n): count for n, count in expected.items()}


def test_the_log_has_a_line_a_round_with_its_scores(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "run")
    seen: list[dict[str, Any]] = []
    poll(CONFIG).run(
        folder, lambda report, scores: seen.append({**report.line(), "scores": scores})
    )
    assert rows(folder) == json.loads(json.dumps([{**row, "seconds": 0} for row in seen]))


def test_a_run_whose_updates_are_all_refused_ends_and_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log says why; a checkpoint of the rounds before is there."""
    config = CONFIG.model_copy(update={"availability": AvailabilityConfig()})
    folder = RunFolder.create(tmp_path / "run", config)
    with pytest.raises(StoppedError):
        poll(config).run(folder, should_stop=lambda: len(rows(folder)) == 2)
    monkeypatch.setattr(Voting, "_vote", lambda *_: RefusedUpdateError("its disk is full"))
    for _ in range(2):
        with pytest.raises(FederationError, match="of 4 clients; client 0: vote: its disk is full"):
            poll(config).run(folder)
        assert rows(folder)[3]["refused"]["0"] == ["vote: its disk is full"]
        assert not folder.summary.exists()
    monkeypatch.undo()
    assert poll(config).run(folder)["rounds"] == 6


def test_a_run_that_is_stopped_after_each_round_ends_the_same(tmp_path: Path) -> None:
    """Also what the clients remember, and the lines of the log."""
    folders = [new_folder(tmp_path / name) for name in ("whole", "broken")]
    whole = poll(CONFIG).run(folders[0])
    for _ in range(5):
        with pytest.raises(StoppedError):
            poll(CONFIG).run(folders[1], should_stop=lambda: True)
    # There is no round after the sixth, before which to stop.
    broken = poll(CONFIG).run(folders[1], should_stop=lambda: True)
    differing = {"seconds", "out"}
    assert {k: v for k, v in broken.items() if k not in differing} == {
        k: v for k, v in whole.items() if k not in differing
    }
    assert rows(folders[1]) == rows(folders[0])
    first, second = (load_file(folder.model) for folder in folders)
    assert torch.equal(first["value"], second["value"])


def test_a_finished_run_that_goes_on_runs_no_round(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "run")
    first = poll(CONFIG).run(folder)
    again = poll(CONFIG).run(folder, lambda *_: pytest.fail("a round was run"))
    assert again == first


def test_a_run_that_is_stopped_writes_what_a_report_shows(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "run")
    with pytest.raises(StoppedError):
        poll(CONFIG).run(folder, should_stop=lambda: True)
    one_round = poll(CONFIG, rounds=1).run(new_folder(tmp_path / "other"))
    value = load_file(tmp_path / "other" / "model.safetensors")["value"]
    assert torch.equal(folder.read_arrays("values")["value"], value)
    assert one_round["rounds"] == 1
    setting = folder.read_setting()
    assert setting is not None
    assert (setting.planned, setting.described) == (6, {"method": "election"})


def test_a_history_survives_json_and_counts_rounds_in_which_something_travelled() -> None:
    history = History()
    history.add(RoundReport(0, [1, 2], {2: ["vote: no", "vote: no"]}, 10, 20, 1.5))
    history.add(RoundReport(1, [2], seconds=0.5))
    again = History(**json.loads(json.dumps(asdict(history))))
    assert again == history
    described = again.describe([voter.member for voter in voters(1, 2, 3)])
    assert [each["rounds"] for each in participants_of(described)] == [1, 2, 0]
    assert {key: described[key] for key in described if key != "participants"} == {
        "rounds": 2, "communication_rounds": 1, "seconds": 2.0, "bytes_down": 10, "bytes_up": 20,
        "refused_updates": 2,
    }  # fmt: skip


def participants_of(described: dict[str, object]) -> list[dict[str, Any]]:
    participants = described["participants"]
    assert isinstance(participants, list)
    return participants
