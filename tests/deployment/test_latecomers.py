"""Clients that come while a run on several machines is under way."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ccfcpp.clustering.run import clustering_run
from ccfcpp.core.config import RunConfig, Tree
from ccfcpp.core.errors import StoppedError
from ccfcpp.data.images import ImageData
from ccfcpp.deployment.link.packet import Packet
from ccfcpp.deployment.server.channel import Channel
from ccfcpp.deployment.server.enrolling import Enroller, enrol
from ccfcpp.deployment.server.enrolment import Enrolment
from ccfcpp.deployment.server.run import DeployedRun
from ccfcpp.runs.folder import RunFolder
from tests.deployment.test_experiment import CLASSES, grid_of
from tests.support.classification import labelled_clients, small_config
from tests.support.clustering import tiny
from tests.support.deployment import AT_ONCE, RUN, Grid, Told, introduced

_SIZES = 40, 30, 20
_LATE = "client 1"
_OWN: Tree = {"clusters": 3, "device": "cpu", "partition": {"kind": "folders"}}


class Late:
    """A federation whose second client comes after the first round.

    Attributes:
        told: Lines about clients.
        grown: The enrolments with it.
    """

    def __init__(self, config: RunConfig, grid: Grid, folder: Path) -> None:
        self.config, self.grid, self.folder = config, grid, RunFolder.create(folder / "run", config)
        self.told = Told()
        self.grown: list[Enrolment] = []
        self.names = list(grid.workers)
        sums = bool(config.model_dump().get("privacy", {}).get("secure_sums"))
        self.roster = introduced(grid, folder) if sums else None
        grid.away.add(_LATE)
        enrolment = enrol(grid.channel, config, self.names, 2, self.roster)
        self.enrolment = replace(enrolment, run=RUN)

    def run(self, **how: Any) -> dict[str, Any]:
        """Run it, from its last checkpoint on."""
        channel = Channel(self.grid, AT_ONCE, self.told)
        late = Enroller(
            channel, self.enrolment, self.config, self.names, self.grown.append, self.roster
        )
        experiment = DeployedRun(self.config, self.enrolment, channel, late.enrol_newcomers)
        return experiment.run(self.folder, lambda *_: self.grid.away.clear(), **how)

    @property
    def model(self) -> dict[str, Tensor]:
        """What the server has saved."""
        return load_file(self.folder.path / "model.safetensors")


def _in_one_process(config: Any, path: Path) -> dict[str, Tensor]:
    clients = labelled_clients(*_SIZES)
    labels = [client.labels for client in clients if client.labels is not None]
    data = ImageData(
        "all",
        torch.cat([client.images for client in clients]),
        torch.cat(labels),
        tuple(CLASSES),
        owners=torch.cat([torch.full((len(own),), own.id) for own in clients]),
        owner_names=tuple(client.name for client in clients),
    )
    settings = config.model_dump(mode="json")
    # Where clients may be absent, their parts are kept one by one, as those of other machines.
    settings["availability"] |= {"late": [1], "dropout_rate": 1e-9}
    config = type(config).model_validate(settings)
    clustering_run(config, data).run(RunFolder.create(path, config))
    return load_file(path / "model.safetensors")


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("ccfc", {"compute": {"cohort": 1}}),
        ("fed-km", {}),
        ("fed-km", {"privacy": {"secure_sums": True}}),
        ("fed-scan", {}),
    ],
)
def test_they_take_part_as_in_one_process(method: str, more: Tree, tmp_path: Path) -> None:
    config = tiny(method, _OWN, more)
    late = Late(config, grid_of(labelled_clients(*_SIZES), tmp_path), tmp_path)
    summary = late.run()
    rounds = summary["rounds"]
    took = {one["client"]: one["rounds"] for one in summary["participants"]}
    assert took == {0: rounds, 1: rounds - 1, 2: rounds}
    assert (summary["samples"], summary["connected"]) == (90, 3)
    assert summary["counted_clients"] == late.names
    assert late.told.said == [(_LATE, "30 images")]
    expected = _in_one_process(config, tmp_path / "alone")
    found = late.model
    for name, part in expected.items():
        if method == "fed-km":  # whose sums in one process are formed together
            assert torch.allclose(found[name], part, 1e-5, 1e-5), name
        else:
            assert torch.equal(found[name], part), name


def test_their_answers_wait_for_the_end_of_a_long_round(tmp_path: Path) -> None:
    """Else they would be asked anew after each round, and never be in."""
    grid, lives = grid_of(labelled_clients(*_SIZES), tmp_path), list[float]()
    late = Late(tiny("ccfc", _OWN), grid, tmp_path)
    send = grid.push

    def push(node: int, packet: Packet, seconds: float) -> str | None:
        lives.append(seconds)
        return send(node, packet, seconds)

    grid.push = push  # type: ignore[method-assign]
    grid.away.clear()
    channel = Channel(grid, AT_ONCE)
    Enroller(channel, late.enrolment, late.config, late.names).enrol_newcomers()
    assert [life > 7 * 86_400 for life in lives] == [True]


def test_a_run_that_is_resumed_knows_them(tmp_path: Path) -> None:
    config = tiny("ccfc", _OWN, {"training": {"rounds": 3}})
    late = Late(config, grid_of(labelled_clients(*_SIZES), tmp_path), tmp_path)
    asked = iter(range(9))
    with pytest.raises(StoppedError):
        late.run(should_stop=lambda: next(asked) == 2)
    assert [one.spec.samples for one in late.grown] == [90]
    late.grown[0].save(tmp_path / "clients.json")
    late.enrolment = Enrolment.load(tmp_path / "clients.json")
    summary = late.run()
    assert {one["client"]: one["rounds"] for one in summary["participants"]} == {
        0: 4, 1: 3, 2: 4,
    }  # fmt: skip
    assert len(late.grown) == 1


def test_new_classes_count(tmp_path: Path) -> None:
    grid = grid_of(labelled_clients(*_SIZES), tmp_path)
    own = grid.workers[_LATE].load(None)  # type: ignore[arg-type]
    named = replace(own, classes=(*CLASSES[:-1], "a new one"))
    grid.workers[_LATE].load = lambda spec: named
    late = Late(tiny("fed-km", _OWN), grid, tmp_path)
    summary = late.run()
    assert summary["classes"] == 11
    assert summary["counted_clients"] == late.names


@pytest.mark.parametrize("what", ["shape", "class", "noise"])
def test_who_does_not_fit_stays_out(what: str, tmp_path: Path) -> None:
    grid = grid_of(labelled_clients(*_SIZES), tmp_path, tested=what == "class")
    own = grid.workers[_LATE].load(None)  # type: ignore[arg-type]
    config: Any = tiny("fed-km", _OWN)
    line = "its images are (1, 6, 8), not (1, 8, 8)"
    assert isinstance(own, ImageData)
    if what == "shape":
        cut = replace(own, values=own.images[:, :, :6])
        grid.workers[_LATE].load = lambda spec: cut
    elif what == "class":
        named = replace(own, classes=(*CLASSES[:-1], "a new one"))
        grid.workers[_LATE].load = lambda spec: named
        config = small_config("device=cpu")
        line = "the run knows no class 'a new one'"
    else:
        noise: Tree = {"level": "client", "reproducible_noise": True, "noise": 20.0}
        config = tiny("fed-km", _OWN, {"privacy": noise})
    late = Late(config, grid, tmp_path)
    summary = late.run()
    assert [one["client"] for one in summary["participants"]] == [0, 2]
    assert late.told.said == ([] if what == "noise" else [(_LATE, f"cannot take part: {line}")])
