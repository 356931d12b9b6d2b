"""The floors of the house: each room imports only from those below it, and nothing in a circle."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forks import Fork

REPOSITORY = Path(__file__).parent.parent


def test_imports_run_downwards_and_in_no_circle() -> None:
    program = (
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    )
    command = [sys.executable, "-c", program]
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_every_room_has_its_floor() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    (floors,) = [contract["layers"] for contract in contracts if contract["id"] == "floors"]
    named = {room.strip() for floor in floors for room in floor.split("|")}
    rooms = {f"ccfcpp.{path.parent.name}" for path in (REPOSITORY / "ccfcpp").glob("*/__init__.py")}
    assert named == rooms | {"supervised", "ccfcpp.plugin"}


def test_no_module_lies_loose() -> None:
    loose = {path.name for path in (REPOSITORY / "ccfcpp").iterdir() if path.is_file()}
    assert loose == {"__init__.py", "__main__.py", "plugin.py", "py.typed"}
    # Else a package that extends it has no types.
    assert (REPOSITORY / "supervised" / "py.typed").exists()


def test_nothing_that_was_made_is_in_the_repository() -> None:
    git = shutil.which("git")
    if git is None or not (REPOSITORY / ".git").exists():
        pytest.skip("this copy of the project is not a clone, or there is no git")
    listed = subprocess.run(
        [git, "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    top = {Path(name).parts[0] for name in listed.stdout.splitlines()}
    folders = {".ci", "ccfcpp", "configs", "docs", "scripts", "supervised", "tests"}
    pages = {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md"}
    tools = {"pyproject.toml", "mkdocs.yml", "CITATION.cff"}
    assert top == folders | pages | tools | {".gitignore", ".pre-commit-config.yaml"}


def test_files_that_pages_and_presets_name_are_there() -> None:
    named = re.compile(r"\b(?:ccfcpp|supervised|tests|configs)/[\w/.-]+\.(?:py|yaml)\b")
    pages = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")]
    presets = (REPOSITORY / "configs").rglob("*.yaml")
    found = {path: named.findall(path.read_text()) for path in [*pages, *presets]}
    gone = [
        (page, file) for page in found for file in found[page] if not (REPOSITORY / file).exists()
    ]
    assert not gone


def imports_of(node: ast.AST) -> Iterator[str]:
    """The modules that are imported as a module is, but for what only types need."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            yield from (name for other in child.orelse for name in imports_of(other))
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield from (child.module, *(f"{child.module}.{alias.name}" for alias in child.names))
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports_of(child)


def reached_from(module: str) -> set[str]:
    """The files that a module imports and that these import, itself among them.

    Packages' own files, which hold a docstring alone, are none of them.
    """
    found: set[str] = set()
    waiting = [module]
    while waiting:
        path = f"{waiting.pop().replace('.', '/')}.py"
        if path not in found and (REPOSITORY / path).is_file():
            found.add(path)
            tree = ast.parse((REPOSITORY / path).read_text())
            waiting += [name for name in imports_of(tree) if name.startswith("ccfcpp.")]
    return found


@pytest.mark.parametrize(
    ("module", "most"),
    [
        ("ccfcpp.clustering.systems.fed_scan.algorithm", 35),
        ("ccfcpp.clustering.systems.ccfc.algorithm", 60),
        ("ccfcpp.engine.federation", 20),
    ],
)
def test_what_is_to_be_read_to_understand_a_system_stays_small(module: str, most: int) -> None:
    found = reached_from(module)
    assert len(found) <= most
    assert {f"{module.replace('.', '/')}.py", "ccfcpp/engine/exchange.py"} <= found
    rooms = {path.split("/")[1] for path in found}
    assert not rooms & {"privacy", "robust", "deployment"}


def imported(program: str) -> set[str]:
    """The packages that a program has imported in the end."""
    shown = (
        "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program + shown], cwd=REPOSITORY, capture_output=True, text=True
    )
    return set(finished.stderr.splitlines()[-1].split())


SLOW = {"torch", "sklearn", "scipy", "matplotlib", "jinja2", "torchvision", "faiss", "numpy", "PIL",
        "cryptography", "httpx", "uvicorn", "flwr", "pandas", "pyarrow"}  # fmt: skip


FLOWER_INTERNALS = {
    "deployment/link/flower_internals.py": 23,
    "deployment/server/flower_internals.py": 24,
}
"""The only modules that import what Flower does not document, and how many names each takes."""


def test_flowers_internals_are_imported_in_one_place_on_each_side() -> None:
    found: dict[str, int] = {}
    for path in (REPOSITORY / "ccfcpp").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not any(name.name.split(".")[0] == "flwr" for name in node.names), path
            module = (isinstance(node, ast.ImportFrom) and node.module) or ""
            if module.startswith("flwr.") and module != "flwr.app":
                assert isinstance(node, ast.ImportFrom)
                name = path.relative_to(REPOSITORY / "ccfcpp").as_posix()
                found[name] = found.get(name, 0) + len(node.names)
    assert found == FLOWER_INTERNALS


COMMANDS = ("cluster", "classify", "compare", "report", "reproduce", "verify-theory", "datasets",
            "serve", "join", "predict", "inspect", "leakage", "keys", "keys client")  # fmt: skip


def test_help_imports_no_network_library() -> None:
    """That of any command, one after the other in one process."""
    helps = [["--help"], ["--version"], *([*name.split(), "--help"] for name in COMMANDS)]
    program = (
        "import sys\nfrom ccfcpp.cli.app import main\n"
        f"for words in {helps}:\n"
        "    sys.argv = ['ccfcpp', *words]\n"
        "    try: main()\n"
        "    except SystemExit as end: assert not end.code, words\n"
        f"    slow = sys.modules.keys() & {SLOW}\n"
        "    assert not slow, (words, slow)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr


def test_the_package_alone_imports_nothing_slow() -> None:
    assert not imported("import ccfcpp; dir(ccfcpp)") & (SLOW | {"pydantic", "yaml", "typer"})


@pytest.mark.parametrize("package", ["ccfcpp", "supervised"])
@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ({}, "PASSIVE"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"),
        ({"GOMP_SPINCOUNT": "1000"}, "None"),
        ({"KMP_BLOCKTIME": "200"}, "None"),
    ],
)
def test_openmp_waits_without_spinning_unless_the_user_chose(
    package: str, given: dict[str, str], policy: str
) -> None:
    choices = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    environment = {key: value for key, value in os.environ.items() if key not in choices}
    program = f"import os, sys, {package}; print(os.environ.get('OMP_WAIT_POLICY'))"
    program += "; print('torch' in sys.modules)"
    finished = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env=environment | given,
        capture_output=True,
        text=True,
    )
    assert finished.stdout.split() == [policy, "False"], finished.stderr


# PyTorch has sympy for the gradients of the step that CCFC++ rehearses.
@pytest.mark.parametrize(("method", "needed"), [("fed-scan", set()), ("ccfc++", {"sympy"})])
def test_a_run_begins_without_what_only_its_results_need(
    tmp_path: Path, method: str, needed: set[str]
) -> None:
    command = ["ccfcpp", "cluster", "--method", method, "--out", str(tmp_path / "run")]
    program = (
        "import sys\n"
        f"sys.argv = {command}\n"
        "from ccfcpp.engine.federation import Federation\n"
        "def stop(self, state, number): raise KeyboardInterrupt\n"
        "from ccfcpp.cli.app import main\n"
        "Federation.run_round = stop\n"
        "try: main()\nexcept SystemExit: pass"
    )
    found = imported(program)
    assert "torch" in found
    late = {"sklearn", "scipy", "matplotlib", "jinja2", "torchvision", "faiss", "sympy"}
    assert not found & late - needed


def test_the_names_at_the_top_are_there() -> None:
    from ccfcpp import METHODS, FederatedClustering, compare, load, report, run

    assert "ccfc++" in METHODS
    assert all(map(callable, (run, compare, report)))
    assert callable(load)
    assert FederatedClustering.__name__ == "FederatedClustering"


EXTRAS = ("cryptography", "dp_accounting", "flwr", "httpx", "mlflow", "pillow_heif", "pydicom",
          "starlette", "tensorboard", "umap", "uvicorn")  # fmt: skip


def test_without_the_extras_runs_and_reports_work(tmp_path: Path) -> None:
    """As after ``pip install ccfcpp``: an extra is imported only where it is asked for."""
    run, page = tmp_path / "run", tmp_path / "classified"
    small = ["--set", "data.images=60", "--set", "scan.steps=4", "--set", "scan.steps_per_round=2"]
    classify = ["--set", "data.train_images=40", "--rounds", "1", "--local-epochs", "1"]
    commands = [
        ["cluster", "--clients", "2", *small, "--out", str(run)],
        ["classify", "--clients", "2", *classify, "--out", str(page)],
        ["report", str(run)],
        ["datasets"],
        *([name, "--help"] for name in ("serve", "join", "keys", "compare", "reproduce")),
    ]
    program = (
        "import sys\n"
        f"sys.modules |= dict.fromkeys({EXTRAS!r})\n"
        "from ccfcpp.cli.app import main\n"
        f"for command in {commands!r}:\n"
        "    sys.argv = ['ccfcpp', *command]\n"
        "    try: main()\n"
        "    except SystemExit as end: assert not end.code, command\n"
    )
    process = Fork(["-c", program], os.environ, REPOSITORY)
    assert process.wait() == 0, process.communicate()
    assert (run / "report.html").is_file()
