"""Commands with an encoder: what they take, what they remember, and what they refuse."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ccfcpp import FederatedClustering
from ccfcpp.core.errors import UsageError
from tests.support.command import ccfcpp, refused, succeeded
from tests.support.encoders import Small, save_program, write_photos


class Other(Small):
    """Another program."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return 1 + super().forward(images)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with photos and two programs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CCFCPP_CACHE", str(tmp_path / "cache"))
    write_photos(tmp_path / "photos")
    save_program(Small(), tmp_path / "small.pt")
    save_program(Other(), tmp_path / "other.pt")
    return tmp_path


@pytest.mark.usefixtures("unrendered")
def test_a_run_on_photos_remembers_its_encoder(here: Path) -> None:
    given = ("--dataset", "photos", "--partition", "folders", "--method", "fed-km", "--rounds", "3")
    shown = succeeded("cluster", *given, "--encoder", "small.pt", "--out", "run", "--json")
    summary = json.loads(shown.stdout)
    assert (summary["unit"], summary["samples"], summary["clients"]) == ("vector", 36, 3)
    assert summary["nmi"] == 1
    assert "vectors are those of small.pt, content hash" in shown.stderr
    # A program runs only where its user names it.
    for command in (
        ("predict", "run", "photos", "--out", "new.csv"),
        ("cluster", "--out", "run", "--resume"),
    ):
        assert "is the program small.pt: give it by --encoder" in refused(*command)
    assert succeeded("report", "run").stdout.split() == ["run/report.html"]
    succeeded("cluster", "--out", "run", "--resume", "--encoder", "small.pt")
    succeeded("predict", "run", "photos", "--out", "new.csv", "--encoder", "small.pt")
    with (here / "new.csv").open() as file, (here / "run" / "clusters.csv").open() as known:
        found, wanted = ({row["file"]: row["cluster"] for row in csv.DictReader(f)}
                         for f in (file, known))  # fmt: skip
    assert found == wanted
    (here / "small.pt").replace(here / "moved.pt")
    again = ("predict", "run", "photos", "--out", "a.csv", "--encoder")
    assert "there is no file small.pt" in refused(*again, "small.pt")
    assert "the encoder has the content hash" in refused(*again, "other.pt")
    succeeded(*again, "moved.pt")
    # Vectors in a file say by which encoder they were made.
    for name in ("moved", "other"):
        succeeded("embed", "photos", "--encoder", f"{name}.pt", "--out", f"{name}.npz")
    succeeded("predict", "run", "moved.npz", "--out", "d.csv")
    assert "content hash" in refused("predict", "run", "other.npz", "--out", "e.csv")


@pytest.mark.usefixtures("unrendered")
def test_embedded_files_are_a_data_set(here: Path) -> None:
    given = ("embed", "photos", "--encoder", "small.pt", "--partition", "folders")
    told = json.loads(succeeded(*given, "--out", "one.npz", "--json").stdout)
    assert (told["vectors"], told["length"], told["skipped"]) == (36, 9, 0)
    succeeded(*given, "--out", "each")
    for name in ("one.npz", "each"):
        run = ("--dataset", name, "--method", "fed-km", "--rounds", "3", "--partition", "folders")
        shown = succeeded("cluster", *run, "--out", f"run-{name}", "--json")
        assert json.loads(shown.stdout)["nmi"] == 1
    names = [
        [row["name"] for row in csv.DictReader((here / f"run-{name}" / "clusters.csv").open())]
        for name in ("one.npz", "each")
    ]
    assert names[0] == names[1]
    assert names[0][0] == "east/blue/0.png"
    # Vectors with names and without photos are shown by their names.
    succeeded("report", "run-one.npz")
    nearest = (here / "run-one.npz" / "figures" / "nearest.csv").read_text()
    assert "east/blue/" in nearest
    assert (here / "run-one.npz" / "figures" / "nearest.png").is_file()
    line = refused("predict", "run-one.npz", "photos", "--out", "x.csv")
    assert "the run was on vectors of an encoder, and photos holds none: give --encoder" in line
    succeeded("predict", "run-one.npz", "photos", "--encoder", "small.pt", "--out", "x.csv")
    # The files of a folder must agree.
    succeeded("embed", "photos/east", "--encoder", "other.pt", "--out", "new.npz")
    (here / "new.npz").replace(here / "each" / "east.npz")
    line = refused("cluster", "--dataset", "each", "--clusters", "3")
    assert "hold vectors of several encoders" in line


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("--set", "vectors.scale=unit"), "vectors.scale = unit"),
        (("--set", "dataset=digits"), "dataset = digits"),
        (("--partition", "iid"), "--partition iid"),
    ],
)
def test_what_embedding_does_not_read_is_refused(given: tuple[str, ...], named: str) -> None:
    line = refused("embed", "photos", "--encoder", "small.pt", "--out", "one.npz", *given)
    assert f"{named} has no effect on embedding" in line


def test_no_client_of_a_table_names_a_file_elsewhere(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ccfcpp.data.encoders import loading
    from tests.data.test_encoders import TEXTS

    monkeypatch.setattr(loading, "load_encoder", lambda name, device: TEXTS)
    (here / "texts.csv").write_text("text,who\none,../../a\ntwo,b\n")
    given = ("embed", "texts.csv", "--encoder", "sentence-transformers:none", "--out", "each")
    line = refused(*given, "--partition", "folders", "--client-column", "who")
    assert "client '../../a' cannot be a file's name" in line
    (here / "texts.csv").write_text("text,who\none,~$a\ntwo,b\n")
    line = refused(*given, "--partition", "folders", "--client-column", "who")
    assert "client '~$a' cannot be a file's name" in line
    line = refused(*given, "--partition", "folders")
    assert "--out each is a folder, and texts has no clients" in line
    assert not (here / "each").exists()


def test_compare_takes_systems_of_vectors(here: Path) -> None:
    given = ("--dataset", "photos", "--encoder", "small.pt", "--partition", "folders")
    shown = succeeded("compare", *given, "--methods", "k-fed,ccfc++,fed-km", "--out", "all")
    assert "left out, since they take no vectors: ccfc++" in shown.stderr
    assert "Fed-KM" in shown.stdout
    # Each run remembers the encoder's content, and a file that has changed is refused.
    save_program(Other(), here / "small.pt")
    next((here / "all").rglob("*k-fed*/**/summary.json")).unlink()
    unnamed = ccfcpp("compare", "--out", "all", "--resume")
    assert "is the program small.pt: give it by --encoder" in " ".join(unnamed.stderr.split())
    changed = ccfcpp("compare", "--out", "all", "--resume", "--encoder", "small.pt")
    assert changed.code
    assert "the encoder has the content hash" in " ".join(changed.stderr.split())


def test_named_data_sets_are_embedded(here: Path) -> None:
    given = ("--dataset", "digits", "--encoder", "small.pt", "--set", "data.images=60")
    shown = succeeded("cluster", *given, "--method", "k-fed", "--out", "digits", "--json")
    assert json.loads(shown.stdout)["unit"] == "vector"


REFUSED = [
    (["cluster", "--method", "ccfc++"], "--method ccfc++ does not cluster vectors"),
    (["cluster", "--set", "data.image_size=8"], "data.image_size has no effect on photos"),
    (["cluster", "--label-column", "kind"], "column 'kind' has no effect on images"),
    (["embed", "--out", "each"], "a folder has a file for each client"),
    (["embed", "--out", "photos"], "photos is there already"),
    (["embed", "--out", "x.npz"], "x-skipped.csv is there already"),
    (["embed", "--encoder", "resnet50", "--out", "y.npz"], "it should be torchvision:NAME"),
    (["embed", "--encoder", "small.onnx", "--out", "y.npz"], "there is no file small.onnx"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_what_is_refused(here: Path, arguments: list[str], message: str) -> None:
    Path("x-skipped.csv").touch()
    command, *more = arguments
    data = ["photos"] if command == "embed" else ["--dataset", "photos"]
    encoder = [] if "--encoder" in more else ["--encoder", "small.pt"]
    assert message in refused(command, *data, *encoder, *more)


def test_what_needs_an_encoder_says_so(here: Path) -> None:
    assert "--encoder is missing" in ccfcpp("embed", "photos", "--out", "x.npz").stderr
    np.save("x.npy", np.random.default_rng(0).normal(size=(9, 2)))
    texts = ("--clusters", "3", "--text-column", "what")
    assert "--text-column what has no effect" in refused("cluster", "--dataset", "x.npy", *texts)


def test_a_saved_estimator_loads_a_program_only_where_it_is_named(here: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3)).astype(np.uint8)
    estimator = FederatedClustering(3, method="k-fed", encoder="small.pt")
    estimator.fit(pixels, clients=np.arange(12) % 2).save("model")
    with pytest.raises(UsageError, match=r"is the program small.pt: give it by --encoder"):
        FederatedClustering.load("model")
    loaded = FederatedClustering.load("model", encoder="small.pt")
    np.testing.assert_array_equal(loaded.predict(pixels), estimator.labels_)
