"""An ML engineer's first day: the pages' Python as one script, without a screen; scikit-learn."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import DOCS, blocks

pytestmark = pytest.mark.nightly(
    "ccfcpp/runs", "ccfcpp/clustering", "supervised", "README.md", "docs/usage.md", "docs/tables.md"
)
README = DOCS.parent / "README.md"
BEFORE = """\
import numpy as np
from sklearn.datasets import load_digits
digits = load_digits(n_class=4)
images, labels = (digits.images[:200] * 15).astype(np.uint8), digits.target[:200]
new_images, new_labels = images[:9], labels[:9]
holders = np.arange(200) % 4
"""
"""What the pages speak of: images, labels, and who holds them."""
SCIKIT_LEARN = """\
import pickle
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from ccfcpp import FederatedClustering
vectors = images.reshape(200, -1).astype(float)
steps = make_pipeline(StandardScaler(), FederatedClustering(4, method="fed-km", random_state=0))
fitted = clone(steps).fit(vectors, federatedclustering__clients=holders)
again = pickle.loads(pickle.dumps(fitted))
assert (again.predict(vectors) == fitted.predict(vectors)).all()
assert (clone(fitted).fit_predict(vectors, federatedclustering__clients=holders)
        == fitted[-1].labels_).all()
assert fitted.transform(vectors).shape == (200, 4)
search = GridSearchCV(FederatedClustering(method="fed-km"), {"n_clusters": [2, 6]}, cv=2)
print("best", search.fit(vectors).best_params_["n_clusters"])
"""


def headless(script: str, place: Path) -> str:
    """What a script prints, in a process without a screen; it must not warn."""
    (place / "day.py").write_text(script)
    without = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    paths = {"PYTHONPATH": str(DOCS.parent), "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "day.py"],
        cwd=place,
        env=without | paths,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr
    return done.stdout


def python_of(page: str) -> list[str]:
    """The Python of a page."""
    return [block.text for block in blocks(page) if block.language == "python"]


def test_an_engineers_day(tmp_path: Path) -> None:
    (readme,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    estimators = next(text for text in python_of("usage.md") if "FederatedClassifier" in text)
    small = {
        "(load_digits().images * 15)": "(load_digits(n_class=4).images[:200] * 15)",
        "n_clusters=10": "n_clusters=4, settings={'scan.steps': 12}",
        '"rounds": 20': '"rounds": 2',
    }
    script = BEFORE + readme + estimators
    for shown, here in small.items():
        assert shown in script
        script = script.replace(shown, here)
    printed = headless(script + SCIKIT_LEARN, tmp_path)
    assert re.fullmatch(r"best \d\n", printed)


def test_the_pages_tables_run_as_one_script(tmp_path: Path) -> None:
    printed = headless("\n".join(python_of("tables.md")), tmp_path)
    assert printed.startswith("[")
    assert (tmp_path / "models" / "wines" / "config.yaml").exists()


def test_a_study_from_python(tmp_path: Path) -> None:
    functions = next(text for text in python_of("usage.md") if "ccfcpp.compare" in text)
    small = {
        '"dataset": "mnist", ': '"dataset": "digits", "method": "k-fed", "data.images": 120, ',
        '"dataset": "cifar10", "method": "moon"': '"dataset": "digits", "method": "moon", '
        '"training.rounds": 1, "training.local_epochs": 1',
        '"ccfc++"]': '"km"], "data.images": 120',
        ', "loss.eta": [0, 0.1]': "",
    }
    for shown, here in small.items():
        assert shown in functions
        functions = functions.replace(shown, here)
    shown = "print(len(table), page)\n"
    printed = headless(functions + shown, tmp_path)
    rows, page = printed.split()[-2:]
    assert int(rows) == 3  # k-FED at two skews, and KM at any
    assert (tmp_path / page).exists()
