"""What a user of ``ccfcpp predict`` sees."""

import csv
import json
import socket
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ccfcpp.data.open import load
from tests.support.command import TINY, TINY_SCAN, refused, set_options, succeeded

GAN = set_options(
    *("gan.noise=5", "gan.generator_width=16", "gan.generator_channels=[6,4]", "gan.epochs=2"),
    *("gan.discriminator_channels=[4,6]", "gan.discriminator_width=8", "gan.batch_size=16"),
)
DCN = set_options("dcn.widths=[16]", "dcn.latent=4", "dcn.pretrain_epochs=1", "dcn.epochs=1")
FEW = ("--set", "data.images=300")

Run = tuple[Path, Path]


def clusters_in(path: Path) -> dict[str, int]:
    with path.open(newline="") as file:
        return {row["file"]: int(row["cluster"]) for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some digits as an .npz file."""
    path = tmp_path_factory.mktemp("digits") / "digits.npz"
    np.savez(path, x=load("digits").images[:300].numpy())
    return path


@pytest.fixture(scope="module")
def k_fed(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    """A run of k-FED on these."""
    run = tmp_path_factory.mktemp("k-fed") / "run"
    options = ("--partition", "iid", "--clients", 3, "--clusters", 4)
    succeeded("cluster", "--method", "k-fed", "--dataset", digits, *options, "--out", run)
    return run


@pytest.mark.parametrize(
    "settings",
    [
        TINY_SCAN,
        TINY,
        ("--method", "k-fed"),
        ("--method", "ffcm-km", "--set", "ffcm.rounds=2"),
        ("--method", "sda-fc-km", *GAN),
        ("--method", "ppfc-gan", *GAN, *DCN),
        ("--method", "km", "--set", "centroids.restarts=1"),
    ],
    ids=["fed-scan", "ccfc++", "k-fed", "ffcm-km", "sda-fc-km", "ppfc-gan", "km"],
)
def test_a_runs_own_images_are_assigned_as_the_run_has_them(
    tmp_path: Path, settings: tuple[object, ...]
) -> None:
    run, out = tmp_path / "run", tmp_path / "clusters.csv"
    succeeded("cluster", "--clients", 4, *settings, "--out", run)
    np.savez(tmp_path / "digits.npz", x=load("digits").images.numpy())
    result = succeeded("predict", run / "model.safetensors", tmp_path / "digits.npz", "--out", out)
    found = clusters_in(out)
    assert list(found) == [str(index) for index in range(1797)]
    expected = np.load(run / "assignments.npz")["cluster"]
    assert list(found.values()) == expected.tolist()
    assert result.stdout == f"{out}: 1,797 images in {len(set(expected.tolist()))} clusters\n"


def test_who_is_not_sure_gets_no_cluster(tmp_path: Path, digits: Path, k_fed: Path) -> None:
    every, some = tmp_path / "every.csv", tmp_path / "some.csv"
    known = succeeded("predict", k_fed, digits, "--out", every)
    result = succeeded("predict", k_fed, digits, "--out", some, "--min-confidence", 0.9, "--json")
    with every.open(newline="") as first, some.open(newline="") as second:
        pairs = list(zip(csv.DictReader(first), csv.DictReader(second), strict=True))
    unsure = 0
    for one, other in pairs:
        sure = float(one["probability"]) >= 0.9
        unsure += not sure
        assert other == one | ({} if sure else {"cluster": ""})
    assert 0 < unsure < len(pairs)
    told = json.loads(result.stdout)
    assert (told["images"], told["unsure"]) == (300, unsure)
    assert sum(told["sizes"].values()) == 300 - unsure
    scores = [float(one["outlier"]) for one, _ in pairs]
    assert told["median_outlier"] == pytest.approx(sorted(scores)[149], rel=1e-4)
    assert f"median outlier score {sorted(scores)[149]:.2f}: 1 is usual" in known.stderr


def test_files_have_their_names_below_the_folder(tmp_path: Path, digits: Path, k_fed: Path) -> None:
    images = np.load(digits)["x"][:, 0]
    for number, image in enumerate(images[:20]):
        path = tmp_path / "photos" / ("even, really" if number % 2 == 0 else ".") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    arguments = (k_fed, tmp_path / "photos", "--out", tmp_path / "a.csv", "--json")
    summary = json.loads(succeeded("predict", *arguments).stdout)
    found = clusters_in(tmp_path / "a.csv")
    expected = np.load(k_fed / "assignments.npz")["cluster"]
    for name, cluster in found.items():
        assert cluster == expected[int(Path(name).stem)]
    assert {"even, really/0.png", "1.png"} <= found.keys()
    assert len(found) == summary["images"] == sum(summary["sizes"].values()) == 20
    assert summary["out"] == str(tmp_path / "a.csv")


def test_images_are_resized_as_the_runs_were(tmp_path: Path, digits: Path) -> None:
    run = tmp_path / "run"
    options = ("--partition", "iid", "--clients", 3, "--clusters", 4, "--set", "data.image_size=5")
    succeeded("cluster", "--method", "k-fed", "--dataset", digits, *options, "--out", run)
    succeeded("predict", run, digits, "--out", tmp_path / "a.csv")
    expected = np.load(run / "assignments.npz")["cluster"]
    assert list(clusters_in(tmp_path / "a.csv").values()) == expected.tolist()


def test_no_network_is_asked(
    tmp_path: Path, digits: Path, k_fed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("the network is asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    succeeded("predict", k_fed, digits, "--out", tmp_path / "a.csv")


def test_what_is_wrong_takes_one_line(
    tmp_path: Path, digits: Path, k_fed: Path, classifier_run: Path
) -> None:
    out = ("--out", tmp_path / "new.csv")
    np.savez(tmp_path / "colour.npz", x=np.zeros((2, 9, 7, 3), np.uint8))
    none = tmp_path / "none"
    for run, images, flags, said in (
        (k_fed, tmp_path / "colour.npz", out, "are in colour, and grey ones are wanted"),
        (none, digits, out, "there is no model"),
        (digits, digits, out, "is no model ("),
        (classifier_run, digits, out, "names no known system of clustering (fedavg)"),
        (k_fed, none, out, "there is no "),
        (k_fed, digits, (*out, "--device", "gpu"), "--device gpu is refused"),
        (k_fed, digits, ("--out", none / "a.csv"), "is no folder"),
        (k_fed, digits, (*out, "--min-confidence", 2), "--min-confidence 2.0 is refused: give a"),
    ):
        assert said in refused("predict", run, images, *flags)
    assert not (tmp_path / "new.csv").exists()
    (tmp_path / "there.csv").write_text("mine")
    line = refused("predict", k_fed, digits, "--out", tmp_path / "there.csv")
    assert "there.csv is there already: give another --out" in line
    assert (tmp_path / "there.csv").read_text() == "mine"


def test_gaps_of_a_table_are_told(tmp_path: Path) -> None:
    rows = [f"{size},{age},{'low' if size < 5 else 'high'}" for size in range(10) for age in "123"]
    (tmp_path / "run.csv").write_text("\n".join(["size,age,grade", *rows]))
    few = ("--clusters", 2, "--clients", 1, "--partition", "iid", "--missing", "mean")
    run = ("--method", "fed-km", "--categories", "grade", *few, "--out", tmp_path / "run")
    succeeded("cluster", "--dataset", tmp_path / "run.csv", *run)
    (tmp_path / "new.csv").write_text("size,grade\n1,low\n2,HIGH\n3,HIGH\n4,\n")
    told = succeeded(
        "predict", tmp_path / "run", tmp_path / "new.csv", "--out", tmp_path / "c.csv"
    ).stderr
    assert "column 'age' is missing: the run's mean stands for it" in " ".join(told.split())
    assert "column 'grade': 2 of 4 rows hold a category that" in " ".join(told.split())
