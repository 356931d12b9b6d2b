"""The README's commands for several machines, as they stand there, each in its machine's folder."""

import csv
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ccfcpp.core.metrics import clustering_scores
from tests.support.clustering import digits
from tests.support.command import set_options

pytest.importorskip("flwr")

from tests.support.processes import (
    Machines,
    assert_same,
    bounded,
    in_one_process,
    tensors_of,
)

pytestmark = pytest.mark.nightly("ccfcpp/deployment", "README.md", "tests/support/processes.py")
README = Path(__file__).parents[2] / "README.md"
CLINICS = {"clinic-1": (0, 1, 2), "clinic-2": (2, 3), "clinic-3": (3, 4)}
"""Which digits each has photos of."""
EACH = 25
"""Photos of a digit at a clinic."""
FEW = set_options("scan.steps=4", "scan.exact_steps=2", "scan.mine_every=2", "device=cpu")
"""The README's 60 steps would take minutes."""


def commands() -> list[str]:
    """Those of the README's section."""
    section = README.read_text().split("\n## On several machines\n")[1]
    block = section.split("```sh\n")[1].split("```")[0].replace("\\\n", " ")
    return [shlex.join(shlex.split(line, comments=True)) for line in block.splitlines()]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    images, labels = digits()
    for machine in ("server", *CLINICS):
        (tmp_path / machine).mkdir()
    for digit in range(5):
        own = iter(images[labels == digit].squeeze(1).numpy())
        for clinic in (name for name, held in CLINICS.items() if digit in held):
            folder = tmp_path / clinic / "photos" / str(digit)
            folder.mkdir(parents=True)
            for number in range(EACH):
                Image.fromarray(next(own)).save(folder / f"{number:02}.png")
    with bounded(Machines(tmp_path)) as here:
        here.out = tmp_path / "server" / "runs" / "x"
        yield here


def test_the_commands_run_and_each_client_has_its_clusters(machines: Machines) -> None:
    authority, server, client, serve, join, predict = commands()
    machines.run("server", authority)
    machines.run("server", server)
    for clinic in CLINICS:
        machines.run(clinic, client.replace("clinic-1", clinic))
        machines.hand_over("server/keys/ca.crt", f"{clinic}/keys/ca.crt")
        machines.hand_over(f"{clinic}/keys/roster/{clinic}.pub", f"server/keys/roster/{clinic}.pub")
    where = f"127.0.0.1:{machines.port}"
    machines.begin("server", serve, "--listen", where, *FEW, name="serve")
    machines.wait_for("waiting for 3 of 3 clients")
    for clinic in CLINICS:
        words = join.replace("clinic-1", clinic).replace("server.example.org:9092", where)
        machines.begin(clinic, words, "--allow", "counts", "--reproducible", name=f"{clinic}-joins")
    summary = machines.end()
    assert summary["held"] == EACH * 7
    assert summary["refused_updates"] == 0
    assert_same(tensors_of(machines.out), in_one_process(machines))
    classes, clusters = [], []
    for clinic in CLINICS:
        machines.run(clinic, predict.replace("clinic-1", clinic), "--device", "cpu")
        with (machines.folder / clinic / "clusters.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == EACH * len(CLINICS[clinic])
        classes += [int(row["file"].split("/")[0]) for row in rows]
        clusters += [int(row["cluster"]) for row in rows]
    scores = clustering_scores(np.array(classes), np.array(clusters))
    assert {name: summary[name] for name in scores} == scores
