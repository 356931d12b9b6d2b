"""What a user sees of photos before a run, and their names after it."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import traps
from tests.support.command import TINY_SCAN, ccfcpp, refused, succeeded
from tests.support.traps import COLOUR, GREY, Trap


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two clients with photos of two sizes, one damaged file each, and a client without photos."""
    folder = tmp_path / "photos"
    small, large = traps.last(COLOUR[:, :18, :20]), traps.scaled(GREY[0], 0, 4095)
    for client in ("lisbon", "oslo, old town"):
        files = [Trap(f"{client}/small {n}.png", traps.encoded(small, "PNG")) for n in range(4)]
        files += [Trap(f"{client}/=large {n}.png", traps.encoded(large, "PNG")) for n in range(4)]
        traps.write(
            folder, [*files, Trap(f"{client}/cut\n.png", b"cut"), Trap(f"{client}/a.md", b"x")]
        )
    (folder / "prague").mkdir()
    return folder


def test_inspect_says_what_a_run_would_find(photos: Path) -> None:
    arguments = ("inspect", photos, "--partition", "folders", "--skip", "20%")
    told: dict[str, Any] = json.loads(succeeded(*arguments, "--json").stdout)
    skipped = told.pop("skipped")
    assert told == {
        "path": str(photos),
        "images": 16,
        "files": 20,
        "kinds": {"PNG": 16},
        "sizes": {"32x24": 8, "20x18": 8},
        "bits": {"16": 8, "8": 8},
        "colour": 8,
        "turned": 0,
        "several_frames": 0,
        "width": 16,
        "height": 16,
        "channels": 3,
        "classes": {},
        "clients": {"lisbon": 8, "oslo, old town": 8},
        "empty": ["prague"],
        "hidden": [],
        "notes": [
            "8 images of more than 8 bits: each is mapped to 8 by its own range or DICOM window; "
            "--window LOW,HIGH gives all the same"
        ],
        "refused": None,
    }
    assert {each["file"] for each in skipped} == {
        f"{client}/{name}"
        for client in ("lisbon", "oslo, old town")
        for name in ("cut\n.png", "a.md")
    }
    shown = succeeded(*arguments).stdout
    assert "16x16 pixels, in colour" in shown
    assert "left out: 'lisbon/cut\\n.png': it is no image" in shown


def test_inspect_shows_everything_and_refuses_as_a_run_would(photos: Path) -> None:
    result = ccfcpp("inspect", photos, "--json")
    assert result.code == 2
    told = json.loads(result.stdout)
    assert told["images"] == 16
    assert told["refused"].startswith("2 of the 18 images in ")
    assert result.stderr == f"error: {' '.join(told['refused'].split())}\n"
    for flags, complaint in (
        (("--window", "5"), "--window 5 is refused: it should be the values that become black"),
        (("--skip", "many"), "--skip many is refused: it should be a share, such as 5%"),
        (("--partition", "iid"), "--partition iid does not concern the reading of images: give"),
        (("--set", "scan.steps=3"), "scan.steps does not concern the reading of images"),
        (("--set", "data.image_size=0"), "image_size = 0 is refused"),
    ):
        assert complaint in refused("inspect", photos, *flags)
    assert "there is no folder nothere/" in refused("inspect", "nothere/")


def rows_in(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("unrendered")
def test_names_travel_through_a_run(photos: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    scan = TINY_SCAN[:2] + TINY_SCAN[4:]
    arguments = ("--dataset", photos, "--partition", "folders", "--clusters", 3, *scan)
    assert "2 of the 18 images in" in refused("cluster", *arguments, "--out", run)
    assert not run.exists()
    result = succeeded("cluster", *arguments, "--skip", "20%", "--out", run)
    assert "16 images of 16x16 pixels" in result.stderr
    assert "images of 20x18 to 32x24 pixels become 16x16" in result.stderr
    assert "4 files left out, with reasons in skipped.csv: 'lisbon/cut\\n.png'" in result.stderr
    assert "no image is in prague" in result.stderr
    assert json.loads((run / "summary.json").read_text())["skipped"] == 4
    assert len(rows_in(run / "skipped.csv")) == 4

    rows = rows_in(run / "clusters.csv")
    arrays = np.load(run / "assignments.npz")
    assert [row["file"] for row in rows] == arrays["name"].tolist()
    assert "lisbon/=large 0.png" in arrays["name"].tolist()
    assert {row["client"] for row in rows} == {"lisbon", "oslo, old town"}
    for name, kind in (("cluster", int), ("probability", float), ("distance", float)):
        np.testing.assert_allclose([kind(row[name]) for row in rows], arrays[name], rtol=1e-5)

    succeeded("report", run)
    nearest = rows_in(run / "figures" / "nearest.csv")
    assert {arrays["name"][int(row["image"])] == row["file"] for row in nearest} == {True}
    page = (run / "report.html").read_text()
    assert "lisbon/=large 0.png" in page
    assert "files left out" in page

    out = tmp_path / "again.csv"
    succeeded("predict", run, photos, "--out", out)
    again = {row.pop("file"): row for row in rows_in(out)}
    assert len(rows_in(tmp_path / "again-skipped.csv")) == 4
    for row in rows:
        found = again[row["file"]]
        assert found["cluster"] == row["cluster"]
        assert float(found["probability"]) == pytest.approx(float(row["probability"]), rel=1e-4)
        assert float(found["distance"]) == pytest.approx(float(row["distance"]), rel=1e-3, abs=1e-6)


def test_clients_of_an_npz_count(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8), np.uint8)
    clients = np.repeat(["b", "a", "c"], 4)
    np.savez(tmp_path / "mine.npz", images=pixels, clients=clients)
    run = tmp_path / "run"
    options = ("--partition", "folders", "--clusters", 2, "--method", "k-fed")
    succeeded("cluster", "--dataset", tmp_path / "mine.npz", *options, "--out", run)
    assert [row["client"] for row in rows_in(run / "clusters.csv")] == clients.tolist()
    assert [row["file"] for row in rows_in(run / "clusters.csv")] == [str(n) for n in range(12)]
    others = ("--partition", "iid", "--clients", 2, "--clusters", 2, "--method", "k-fed")
    out = ("--out", tmp_path / "other")
    result = succeeded("cluster", "--dataset", tmp_path / "mine.npz", *others, *out)
    assert "mine.npz are not used: see --partition" in result.stderr


def test_inspect_describes_tables(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    lines = ["a,b,c,d,kind,site", "1,0.5,7,0,x,north", "2,,7,1,y,south", "4,2.5,7,1,y,south"]
    table.write_text("\n".join(lines) + "\n")
    roles = ("--label-column", "kind", "--client-column", "site")
    result = ccfcpp("inspect", table, *roles, "--json")
    told = json.loads(result.stdout)
    assert result.code == 2
    assert "column 'b' holds nan in row 2" in told["refused"]
    assert [own["kind"] for own in told["columns"].values()] == [
        *("whole numbers", "two values", "constant", "two values")
    ]
    assert told["columns"]["b"] == {
        **{"kind": "two values", "missing": 1, "smallest": 0.5, "mean": 1.5, "largest": 2.5},
        "deviation": 1.0,
    }
    assert told["classes"] == {"x": 1, "y": 2}
    assert told["clients"] == {"north": 1, "south": 2}
    assert told["scale"] == "standard"
    shown = succeeded("inspect", table, *roles, "--missing", "mean", "--scale", "unit").stdout
    for words in ("1 value in b", "c: it tells nothing apart", "unit: each row to length 1"):
        assert words in shown
    line = refused("inspect", table, "--window", "0,9")
    assert "--window does not concern the reading of vectors" in line


def test_inspect_names_the_flags_that_columns_of_text_need(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    lines = ['age,"ward, east",came,remark', "1,north,2026-01-31,well", "2,south,,", "4,south,,ill"]
    lines.append("5,south,2026-02-28,better")
    table.write_text("\n".join(lines) + "\n")
    told = json.loads(ccfcpp("inspect", table, "--json").stdout)
    assert [own["kind"] for own in told["columns"].values()] == [
        *("whole numbers", "dates", "category", "category")
    ]
    assert told["flags"] == """--categories '"ward, east"' --dates came"""
    assert told["take_out"] == ["remark"]
    flags = ("--categories", '"ward, east",remark', "--dates", "came", "--missing", "mean")
    assert json.loads(succeeded("inspect", table, *flags, "--json").stdout)["flags"] == ""


def test_inspect_tells_how_to_write_decimals_with_a_comma_and_dates_with_points(
    tmp_path: Path,
) -> None:
    table = tmp_path / "table.csv"
    rows = ['"1,5",01.05.1970,f', '"2.012,0",31.12.1969,m', '"-2,5",01.05.1970,f']
    table.write_text("\n".join(["dose,born,sex", *rows, *rows]) + "\n")
    told = json.loads(ccfcpp("inspect", table, "--json").stdout)
    assert told["flags"] == "--categories sex"
    assert told["write"] == {"dose": "numbers with a decimal point", "born": "dates as 2026-01-31"}
    shown = " ".join(ccfcpp("inspect", table).stdout.replace("│", " ").split())
    assert "write dose: numbers with a decimal point; born: dates as 2026-01-31" in shown


def test_inspect_describes_a_folder_of_embeddings(tmp_path: Path) -> None:
    folder = tmp_path / "embeddings"
    folder.mkdir()
    rows = np.random.default_rng(0).normal(size=(30, 64)).astype(np.float32)
    for client, own in {"oslo": rows[:10], "rome": rows[10:]}.items():
        np.save(folder / f"{client}.npy", own)
    told = json.loads(succeeded("inspect", folder, "--json").stdout)
    assert (told["rows"], len(told["columns"]), told["refused"]) == (30, 64, None)
    assert told["clients"] == {"oslo": 10, "rome": 20}
    # As a run of Fed-EM has them of long vectors.
    assert told["components"] == 20
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    assert (told["shortest"], told["longest"]) == pytest.approx((lengths.min(), lengths.max()))
    assert "and 44 more" in succeeded("inspect", folder).stdout


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.npy"])
def test_inspect_says_that_a_table_is_not_there_as_a_run_does(tmp_path: Path, name: str) -> None:
    (tmp_path / "b.csv").write_text("a,b\n1,x\n")
    (tmp_path / name).symlink_to("nowhere")
    for path in (tmp_path / name, tmp_path):
        assert f"there is no file {tmp_path / name}: give a file of" in refused("inspect", path)
