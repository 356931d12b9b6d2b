import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from torchvision import datasets

from ccfcpp.data.registry import DATASETS, describe
from ccfcpp.data.sets.cifar import CIFAR10, CIFAR100
from ccfcpp.data.sets.mnist import FASHION_MNIST, MNIST, IdxSet
from ccfcpp.data.sets.published import BinarySet
from ccfcpp.data.sets.stl10 import STL10
from tests.support import originals
from tests.support.plugin import write_metadata

NAMES = ["digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "stl10", "tiny-imagenet"]
SLOW = ("torch", "torchvision", "sklearn", "matplotlib", "scipy")

PACKAGE = """
from ccfcpp.data.registry import DataSet


class Stripes(DataSet):
    def place(self, root):
        return f"{root} or nowhere"

    def load(self, root):
        import torch

        from ccfcpp.data.images import ImageData

        images = torch.arange(8, dtype=torch.uint8).view(2, 1, 2, 2)
        return ImageData(self.name, images, torch.tensor([0, 1]), ("a", "b"))


STRIPES = Stripes("stripes", 2, 2, (1, 2, 2))
NO_DATA_SET = "stripes"
"""


def run(folder: Path, code: str, *paths: Path) -> str:
    """What a fresh interpreter prints, with folders of installed packages besides its own."""
    own = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (*paths, own)))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported(folder: Path, code: str) -> list[str]:
    """Which of the slow libraries are there after some code."""
    found: list[str] = json.loads(
        run(folder, f"{code}\nimport json, sys\nprint(json.dumps([*sys.modules]))").splitlines()[-1]
    )
    return [name for name in SLOW if name in found]


def install(folder: Path, entry: str) -> Path:
    """Write what pip leaves of a package that adds a data set."""
    (folder / "zebra.py").write_text(PACKAGE)
    name, _, place = entry.partition(" = ")
    write_metadata(folder, "zebra", {"ccfcpp.datasets": {name: place}})
    return folder


def test_the_names() -> None:
    assert DATASETS.own() == NAMES
    assert [DATASETS[name].name for name in NAMES] == NAMES


def test_listing_and_describing_import_nothing_slow(tmp_path: Path) -> None:
    code = "from ccfcpp.data.registry import DATASETS, describe\nlist(DATASETS)"
    assert imported(tmp_path, code) == []
    assert imported(tmp_path, f"{code}\ndescribe()") == []


def test_digits_and_mnist_need_nothing_but_torch(tmp_path: Path) -> None:
    originals.write_idx_set(
        tmp_path / "mnist",
        originals.random_images(0, 2, 28, 28),
        originals.random_images(1, 2) % 10,
        1,
        gz=True,
    )
    for name in ("digits", "mnist"):
        code = f"from pathlib import Path\nfrom ccfcpp.data.open import load\nload('{name}', "
        assert imported(tmp_path, code + "data_root=Path())") == ["torch"]


def test_describe(tmp_path: Path) -> None:
    originals.write_idx_set(
        tmp_path / "mnist",
        originals.random_images(0, 2, 28, 28),
        originals.random_images(1, 2) % 10,
        1,
        gz=True,
    )
    described = describe(tmp_path)
    places = {name: place for name, (_, place) in described.items()}
    assert list(described) == NAMES
    assert places["digits"] == "scikit-learn"
    assert places["mnist"] == str(tmp_path / "mnist")
    assert places["cifar100"] == f"to be downloaded to {tmp_path}"
    stl10, cifar100 = described["stl10"][0], described["cifar100"][0]
    assert (stl10.images, stl10.shape) == (13_000, (3, 96, 96))
    assert cifar100.classes == 100


@pytest.mark.parametrize("ours", [MNIST, FASHION_MNIST])
def test_idx_sets_are_torchvisions(ours: IdxSet) -> None:
    theirs = getattr(datasets, ours.original)
    assert ours.expected.startswith(", ".join(file for file, _ in theirs.resources))
    if ours is FASHION_MNIST:
        assert list(ours.class_names) == theirs.classes


@pytest.mark.parametrize("ours", [CIFAR10, CIFAR100])
def test_cifar_is_torchvisions(ours: BinarySet) -> None:
    theirs = getattr(datasets, ours.original)
    assert (ours.folder, ours.archive) == (theirs.base_folder, theirs.filename)
    *batches, meta = ours.members
    assert batches == [file for file, _ in (*theirs.train_list, *theirs.test_list)]
    assert isinstance(ours.decode, partial)
    assert (meta, ours.decode.keywords["names_key"]) == (
        theirs.meta["filename"],
        theirs.meta["key"],
    )


def test_stl10_is_torchvisions() -> None:
    theirs = datasets.STL10
    assert (STL10.folder, STL10.archive) == (theirs.base_folder, theirs.filename)
    published = {file for file, _ in [*theirs.train_list[:2], *theirs.test_list]}
    assert set(STL10.members) == published | {theirs.class_names_file}


def test_an_installed_package_adds_a_data_set(tmp_path: Path) -> None:
    code = """
from ccfcpp.core.errors import UsageError
from ccfcpp.data.open import load
from ccfcpp.data.registry import describe
name, (stripes, place) = describe().popitem()
print(name, stripes.images, stripes.classes, stripes.shape, place)
data = load("stripes", classes=["b"], image_size=2)
print(data.name, data.images.flatten().tolist(), data.classes)
for source in ("stripe", "quagga"):
    try:
        load(source)
    except UsageError as error:
        print(error)
"""
    lines = run(tmp_path, code, install(tmp_path, "stripes = zebra:STRIPES")).splitlines()
    assert lines[0].startswith("stripes 2 2 (1, 2, 2) ")
    assert lines[0].endswith("or nowhere")
    assert lines[1] == "stripes [4, 5, 6, 7] ('b',)"
    assert "did you mean 'stripes'? Known: digits, " in lines[2]
    assert "tiny-imagenet, stripes, or a path" in lines[3]


def test_a_package_cannot_take_the_name_of_a_data_set_of_ours(tmp_path: Path) -> None:
    code = (
        "from ccfcpp.data.registry import DATASETS\nprint(len(DATASETS), DATASETS['mnist'].images)"
    )
    shown = run(tmp_path, code, install(tmp_path, "mnist = zebra:STRIPES"))
    assert shown.split() == [str(len(NAMES)), "70000"]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("stripes = zebra:NO_DATA_SET", "zebra:NO_DATA_SET is a str, but must be a ccfcpp.data"),
        ("stripes = quagga:STRIPES", "No module named 'quagga'"),
    ],
)
def test_a_package_that_adds_something_else_is_named(
    tmp_path: Path, entry: str, reason: str
) -> None:
    code = """
from ccfcpp.core.errors import UsageError
from ccfcpp.data.registry import describe
try:
    describe()
except UsageError as error:
    print(error)
"""
    (line,) = run(tmp_path, code, install(tmp_path, entry)).splitlines()
    assert reason in line
