"""A hospital's first day: photos as they are, kits and keys, a run, a crash, pages of owners."""

import csv
import json
import re
import signal
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support import traps
from tests.support.browser import BROWSER, laid_out
from tests.support.clustering import digits
from tests.support.command import set_options
from tests.support.traps import Trap

pytest.importorskip("flwr")

from tests.support.processes import Machines, bounded

pytestmark = pytest.mark.nightly(
    "ccfcpp/deployment", "ccfcpp/reports", "tests/support/processes.py"
)
CLINICS = ("clinic-1", "clinic-2", "clinic-3")
EACH = 99
"""Photos of a clinic, of three digits."""
FEW = set_options(
    "scan.steps=24", "scan.exact_steps=4", "scan.mine_every=8", "scan.steps_per_round=2"
)
"""A run's 60 steps would take minutes."""


def photo(pixels: np.ndarray, number: int) -> Trap:
    """A photo as one comes: of a phone, of a scanner, of an X-ray machine."""
    side = 20 + 3 * (number % 5)
    image = Image.fromarray(pixels).resize((side, side + number % 3), Image.Resampling.BICUBIC)
    grey = np.asarray(image)
    folder = f"ward {number % 4}/"
    if number % 4 == 0:
        orientation = 1 + number % 8
        exif = Image.Exif()
        exif[274] = orientation
        turned = traps.stored(np.stack([grey] * 3, axis=2), orientation)
        content = traps.encoded(turned, "JPEG", quality=95, exif=exif.tobytes())
        return Trap(f"{folder}IMG_{number:04}.jpg", content)
    if number % 4 == 1:
        return Trap(
            f"{folder}x-ray {number}.png", traps.encoded(traps.scaled(grey, 0, 1000), "PNG")
        )
    if number % 4 == 2:
        return Trap(f"{folder}{number}.tif", traps.encoded(Image.fromarray(grey), "TIFF"))
    return Trap(
        f"{folder}é {number}.png", traps.encoded(Image.fromarray(grey).convert("RGBA"), "PNG")
    )


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    images, labels = digits()
    held = [images[labels == digit].squeeze(1).numpy() for digit in range(3)]
    damaged = [
        trap for trap in traps.broken() if trap.name in ("cut.png", "empty.jpg", "notes.txt")
    ]
    for place, clinic in enumerate(CLINICS):
        chosen = [held[n % 3][(place * EACH + n) // 3] for n in range(EACH)]
        traps.write(
            tmp_path / clinic / "photos",
            [*(photo(pixels, n) for n, pixels in enumerate(chosen)), *damaged],
        )
    (tmp_path / "server").mkdir()
    for machine in ("server", *CLINICS):
        (tmp_path / machine / "passphrase").write_text("ward round at seven\n")
    with bounded(Machines(tmp_path)) as here:
        here.out = tmp_path / "server" / "run"
        yield here


def enrolled(here: Machines) -> None:
    """Two clinics get kits; the third makes its key itself, and is put on the roster."""
    here.run("server", "ccfcpp keys authority")
    here.run("server", "ccfcpp keys server 127.0.0.1")
    where = f"127.0.0.1:{here.port}"
    for clinic in CLINICS[:2]:
        here.run("server", f"ccfcpp keys kit {clinic} --server {where}")
        here.hand_over(f"server/{clinic}.zip", f"{clinic}/{clinic}.zip")
        with zipfile.ZipFile(here.folder / clinic / f"{clinic}.zip") as kit:
            kit.extractall(here.folder)
    here.run("clinic-3", "ccfcpp keys request clinic-3 --seal")
    here.hand_over("clinic-3/keys/clinic-3.request", "server/clinic-3.request")
    here.run("server", "ccfcpp keys sign clinic-3.request")
    here.hand_over("server/keys/ca.crt", "clinic-3/ca.crt")


def join(here: Machines, clinic: str) -> None:
    """Take part, by the command on the kit's page where there is one."""
    kit = here.folder / clinic / "README.txt"
    command = f"ccfcpp join --server 127.0.0.1:{here.port} --authority ca.crt --data photos"
    if kit.exists():
        (line,) = re.findall(r"env/bin/(ccfcpp join .*)", kit.read_text())
        command = line.replace("PHOTOS", "photos")
    else:
        command += f" --key keys/clients/{clinic}.key"
    here.begin(clinic, f"{command} --skip 10%", name=f"{clinic} joins")


def fits_each_screen(page: Path, here: Machines) -> None:
    """Whether a page is whole in a browser, on a phone and on a screen."""
    for width in (400, 1280) if BROWSER else ():
        place = here.folder / f"{page.parent.name} at {width}"
        found = laid_out(page, width, place)
        assert found["complaints"] == []
        assert found["width"] <= width
        assert found["scripts"] == 0


def test_a_hospitals_day(machines: Machines) -> None:
    enrolled(machines)
    # What cannot be read is named before anything is sent; two files of a hundred are too many.
    inspect = machines.begin("clinic-1", "ccfcpp inspect photos", name="inspects")
    assert inspect.wait(100) == 2
    for words in ("empty.jpg: it is empty", "notes.txt", "cut.png", "such as --skip 5%"):
        assert words in machines.said("inspects")
    machines.run("clinic-1", "ccfcpp inspect photos --skip 10%")

    where = f"127.0.0.1:{machines.port}"
    serve = f"ccfcpp serve --clusters 3 --out run --listen {where} --limit 100"
    machines.begin("server", serve, *FEW, name="serve")
    machines.wait_for("waiting for 3 of 3 clients")
    for clinic in CLINICS:
        join(machines, clinic)
    machines.wait_for_round(1)
    killed = machines.started["clinic-2 joins"]
    killed.send_signal(signal.SIGKILL)
    killed.wait(10)
    machines.wait_for("clinic-2 is away")
    join(machines, "clinic-2")
    summary = machines.end()

    assert (summary["samples"], summary["skipped"]) == (3 * EACH, 3 * 3)
    assert [one["name"] for one in summary["participants"]] == list(CLINICS)
    assert summary["without_model"] == {}
    assert any(1 in line["clients"] for line in machines.rounds())
    assert any("1" in line.get("absent", {}) for line in machines.rounds())
    assert sum(summary["cluster_sizes"]) <= 3 * EACH
    assert summary["silhouette"] > 0
    assert 0 < summary["stability"] <= 1

    states = {clinic: machines.folder / clinic / f"{clinic}.state" for clinic in CLINICS[:2]}
    states["clinic-3"] = machines.folder / "clinic-3/keys/clients/clinic-3.state"
    for clinic, state in states.items():
        machines.wait_for("done: the model lies in", f"{clinic} joins")
        with (state / "clusters.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == EACH
        with (state / "skipped.csv").open(newline="") as file:
            skipped = {row["file"] for row in csv.DictReader(file)}
        assert skipped == {"cut.png", "empty.jpg", "notes.txt"}
        machines.run(clinic, f"ccfcpp report {state}")
        page = (state / "report.html").read_text()
        sizes = {name: sum(row["cluster"] == name for row in rows) for name in "012"}
        for cluster, size in sizes.items():
            assert not size or f"Cluster {cluster}: {size} image" in page
        assert all(name in page for name in skipped)
        assert any(row["file"] in page for row in rows)
        fits_each_screen(state / "report.html", machines)
    machines.run("server", "ccfcpp report run")
    fits_each_screen(machines.out / "report.html", machines)
    told = json.loads((machines.out / "summary.json").read_text())
    assert "nmi" in told
    assert told["nmi"] is None
