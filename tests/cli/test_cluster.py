"""What a user sees: results, files, and one clear line where something does not fit."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file

import ccfcpp as package
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.systems.ccfc import representations
from ccfcpp.clustering.systems.ccfc.local_training import ContrastiveTrainer, TrainingResult
from ccfcpp.clustering.systems.ccfc.representations import represent
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.models.network import FlatNetwork
from ccfcpp.models.steps import Training
from ccfcpp.runs.environment import use_processors
from tests.support.command import (
    CCFCPP,
    TINY,
    TINY_ROUNDS,
    TINY_SCAN,
    Result,
    ccfcpp,
    refused,
    set_options,
    succeeded,
)

RUNS = {"ccfc++": (*TINY, "--p", 0.75), "fed-scan": (*TINY_SCAN, "--p", 0.75)}
"""Systems that are nothing alike: models that are averaged, and steps over all clients."""
EITHER = pytest.mark.parametrize("method", RUNS)


def summary_of(*arguments: object) -> dict[str, Any]:
    """The summary of a run that must succeed."""
    summary: dict[str, Any] = json.loads(succeeded("cluster", "--json", *arguments).stdout)
    return summary


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Result, Path]]:
    """Finished runs by system, which no test changes."""

    @cache
    def run(method: str) -> tuple[Result, Path]:
        out = tmp_path_factory.mktemp("whole") / "run"
        return succeeded("cluster", "--json", *RUNS[method], "--out", out), out

    return run


@pytest.fixture
def finished(whole: Callable[[str], tuple[Result, Path]], tmp_path: Path) -> Path:
    """A copy of one of them, for a test to change."""
    return Path(shutil.copytree(whole("ccfc++")[1], tmp_path / "run"))


def results(summary: dict[str, Any]) -> dict[str, Any]:
    """What of a summary is the same for the same command."""
    return summary | {"seconds": None, "out": None}


def write_images(folder: Path, count: int, size: int = 8) -> Path:
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(len(folder.name)).integers(0, 255, (count, size, size), np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{number}.png")
    return folder


def test_version() -> None:
    assert ccfcpp("--version").stdout == f"ccfcpp {package.__version__}\n"


def test_help_of_every_command_names_its_flags() -> None:
    assert "Federated clustering" in ccfcpp("--help").stdout
    flags = (
        "--config --dataset --p --alpha --partition --method --clients --clusters --rounds "
        "--pretrain-rounds --eta --lam --disconnection-rate --dropout-rate --seed --device "
        "--cohort --data-root --out --resume --set --profile --json"
    )
    shown = ccfcpp("cluster", "--help").stdout
    assert [flag for flag in flags.split() if flag not in shown] == []


def test_datasets_are_listed() -> None:
    shown = ccfcpp("datasets").stdout
    assert "classify/office-caltech10" in shown
    for name in ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "stl10"):
        assert name in shown


# --- a whole run ---------------------------------------------------------------------------------


@EITHER
def test_json_is_one_object_with_the_results(
    method: str, whole: Callable[[str], tuple[Result, Path]]
) -> None:
    result, _ = whole(method)
    summary = json.loads(result.stdout)
    promised = {"method", "dataset", "p", "nmi", "kappa", "accuracy", "ari", "clients", "connected"}
    assert promised | {"rounds", "seconds", "out"} <= summary.keys()
    assert summary["method"] == method
    assert (summary["clients"], summary["connected"], summary["rounds"]) == (4, 4, 4)
    assert summary["p"] == 0.75
    assert 0 <= summary["nmi"] <= 1
    assert "round 4/4" in result.stderr
    assert "NMI" in result.stderr


KM = ("--method", "km", "--set", "centroids.restarts=1")


def test_the_published_preset_is_that_of_the_paper(tmp_path: Path) -> None:
    few = ("--rounds", 1, "--pretrain-rounds", 1, *set_options("data.images=60"))
    small = set_options("model.widths=[4,4]")
    result = succeeded("cluster", "--preset", "published", *few, *small, "--out", tmp_path / "run")
    header = "CCFC++ on digits, published preset, skew, p = 0, seed 0: "
    assert header in result.stderr
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["preset"], config["method"]) == ("published", "ccfc++")
    line = refused("cluster", *few, "--out", tmp_path / "other")
    assert "--pretrain-rounds 1 has no effect: it needs training.pretraining = siamese" in line
    again = succeeded("cluster", "--out", tmp_path / "run", "--resume")
    assert f"going on with {header}" in again.stderr
    other = ("--resume", "--preset", "default")
    line = refused("cluster", "--out", tmp_path / "run", *other)
    assert "was started with --preset published: leave it out" in line


def test_without_a_method_ccfc_plus_plus_runs_after_fed_scan(tmp_path: Path) -> None:
    small = set_options(
        *("scan.stem=0", "scan.widths=[8]", "scan.hidden=8", "model.latent=6", "data.images=80"),
        *("scan.steps=6", "scan.steps_per_round=2", "training.predictor_steps=2"),
    )
    result = succeeded("cluster", *small, "--json", "--out", tmp_path / "run")
    summary = json.loads(result.stdout)
    assert (summary["method"], summary["rounds"], summary["pretrain_rounds"]) == ("ccfc++", 5, 3)
    assert summary["sends"] == "sums of statistics and gradients"
    assert "CCFC++ on digits, default preset, skew, p = 0, seed 0: " in result.stderr


def test_alpha_names_the_dirichlet_partition(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = succeeded("cluster", *KM, "--alpha", 0.1, "--out", out)
    assert "KM on digits, default preset, dirichlet, alpha = 0.1, seed 0: " in result.stderr
    assert "dirichlet, alpha = 0.1" in result.stdout
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["partition"], summary["alpha"]) == ("dirichlet", 0.1)
    assert (summary["p"], summary["clients"]) == (None, 10)
    assert min(each["samples"] for each in summary["participants"]) >= 10
    assert len({each["samples"] for each in summary["participants"]}) > 5
    settings = ("--partition", "dirichlet", "--set", "partition.alpha=0.1")
    other = succeeded("cluster", *KM, *settings, "--json", "--out", tmp_path / "other")
    assert json.loads(other.stdout)["participants"] == summary["participants"]
    again = succeeded("cluster", "--resume", "--alpha", 0.1, "--out", out)
    assert "dirichlet, alpha = 0.1" in again.stdout


def test_an_imbalance_makes_the_first_class_the_largest(tmp_path: Path) -> None:
    settings = ("--set", "data.imbalance=10", "--partition", "iid")
    summary = summary_of(*KM, *settings, "--out", tmp_path / "run")
    classes = np.bincount(np.load(tmp_path / "run" / "assignments.npz")["class"])
    assert (classes[0], classes[-1]) == (174, 17)
    assert (summary["samples"], summary["imbalance"]) == (classes.sum(), 10)


@pytest.mark.parametrize(
    ("arguments", "named", "told"),
    [
        (
            ("--classes-per-client", 2, "--clients", 5),
            "2 classes a client",
            {"partition": "classes", "classes_per_client": 2, "p": None, "clients": 5},
        ),
        (("--p", 0.75), "skew, p = 0.75", {"partition": "skew", "p": 0.75}),
    ],
)
def test_a_partition_is_named_with_its_degree(
    arguments: tuple[object, ...], named: str, told: dict[str, object], tmp_path: Path
) -> None:
    result = succeeded("cluster", *KM, *arguments, "--out", tmp_path / "run")
    assert f"KM on digits, default preset, {named}, seed 0: " in result.stderr
    assert named in result.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert {key: summary[key] for key in told} == told


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (("--partition", "iid", "--p", 0.75), "--p 0.75 has no effect: it needs --partition skew"),
        (("--alpha", 3, "--p", 0.75), "--p 0.75 has no effect: it needs --partition skew"),
        (
            ("--partition", "iid", "--set", "partition.alpha=0.1"),
            "partition.alpha = 0.1 has no effect: it needs --partition dirichlet",
        ),
    ],
)
def test_degrees_of_other_partitions_are_refused(
    arguments: tuple[object, ...], needed: str
) -> None:
    result = ccfcpp("cluster", *KM, "--clients", 5, *arguments)
    assert result.code == 2
    assert needed in result.stderr


@EITHER
def test_the_files_of_a_run_agree_with_its_summary(tmp_path: Path, method: str) -> None:
    run = tmp_path / "run"
    result = succeeded("cluster", "--out", run, "--disconnection-rate", 0.25, *RUNS[method])
    assert "NMI" in result.stdout
    summary = json.loads((run / "summary.json").read_text())
    assert summary["method"] == method
    rounds = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in rounds] == [0, 1, 2, 3]
    assert sum(line["bytes_up"] for line in rounds) == summary["bytes_up"] > 0
    assert sum(line["bytes_down"] for line in rounds) == summary["bytes_down"] > 0
    assert rounds[-1]["scores"]["nmi"] == summary["nmi"]
    taking_part = [entry["client"] for entry in summary["participants"]]
    assert len(taking_part) == summary["connected"] == 3
    assert all(line["clients"] == taking_part for line in rounds)
    assert [entry["rounds"] for entry in summary["participants"]] == [4, 4, 4]
    assignments = np.load(run / "assignments.npz")
    assert assignments["cluster"].shape == assignments["client"].shape == (1797,)
    for entry in summary["participants"]:
        assert (assignments["client"] == entry["client"]).sum() == entry["samples"]
    assert "centroids" in load_file(run / "model.safetensors")
    session = json.loads((run / "environment.json").read_text())["sessions"][0]
    assert session["device"] == ("cuda" if torch.cuda.is_available() else "cpu")
    assert session["torch"].startswith(torch.__version__.split("+")[0])
    assert not list(run.rglob("*.tmp"))


def test_who_is_absent_is_named_and_scored_apart(tmp_path: Path) -> None:
    def run(name: str, *arguments: object) -> tuple[Result, dict[str, Any]]:
        result = succeeded("cluster", *KM, *arguments, "--out", tmp_path / name)
        return result, json.loads((tmp_path / name / "summary.json").read_text())

    result, summary = run("absent", "--disconnection-rate", 0.25)
    there = {entry["client"] for entry in summary["participants"]}
    gone = ", ".join(f"client {number}" for number in range(10) if number not in there)
    assert summary["disconnected"] == 3
    assert f"absent for the whole run: {gone}" in result.stderr.splitlines()
    for who in ("connected", "absent"):
        scores = summary[f"scores_{who}"]
        (row,) = [line for line in result.stdout.splitlines() if f"{who} clients" in line]
        assert f"NMI {scores['nmi']:.4f}, Kappa {scores['kappa']:.4f}" in row
    result, summary = run("all")
    assert summary["scores_absent"] is None
    assert "absent for the whole run" not in result.stderr
    assert "absent clients" not in result.stdout
    assert "connected clients" not in result.stdout
    result, _ = run("many", "--disconnection-rate", 0.9, "--clients", 50)
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("absent")]
    assert line.count("client ") == 20
    assert " and 25 more" in result.stderr


@EITHER
def test_the_same_command_gives_the_same_numbers(
    tmp_path: Path, method: str, whole: Callable[[str], tuple[Result, Path]]
) -> None:
    again = summary_of("--out", tmp_path / "again", *RUNS[method])
    assert results(json.loads(whole(method)[0].stdout)) == results(again)
    assert again["method"] == method


def test_unlabelled_images_are_clustered_without_scores(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "pictures", 40)
    where = ("--dataset", folder, "--partition", "iid", "--clusters", 3)
    summary = summary_of(*where, "--out", tmp_path / "run", *TINY)
    assert summary["nmi"] is summary["kappa"] is summary["p"] is None
    assert "class" not in np.load(tmp_path / "run" / "assignments.npz")
    shown = ccfcpp("cluster", "--out", tmp_path / "run", "--resume")
    assert "no labels" in shown.stdout


def test_colour_images_are_learnt_by_a_resnet(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (12, 16, 16, 3), np.uint8)
    np.savez(tmp_path / "colour.npz", x=pixels, y=np.array(["cat", "dog"] * 6))
    short = (*CCFCPP, "--rounds", 1, "--pretrain-rounds", 1)
    summary = summary_of("--dataset", tmp_path / "colour.npz", *short, "--out", tmp_path / "run")
    assert (summary["clients"], summary["clusters"]) == (2, 2)
    names = load_file(tmp_path / "run" / "model.safetensors").keys()
    assert "model/backbone.network.layer4.1.conv2.weight" in names


def test_each_folder_is_a_client(tmp_path: Path) -> None:
    for name, count in (("clinic", 20), ("laboratory", 12)):
        write_images(tmp_path / "sites" / name, count)
    where = ("--dataset", tmp_path / "sites", "--partition", "folders", "--clusters", 3)
    participants = summary_of(*where, "--out", tmp_path / "run", *TINY_ROUNDS)["participants"]
    assert [(p["name"], p["samples"]) for p in participants] == [("clinic", 20), ("laboratory", 12)]


def test_a_client_without_samples_takes_no_part(tmp_path: Path) -> None:
    labels = np.array([0] * 30 + [1])
    images = np.random.default_rng(0).integers(0, 255, (31, 8, 8), np.uint8)
    np.savez(tmp_path / "two.npz", images=images, labels=labels)
    where = ("--dataset", tmp_path / "two.npz", "--p", 1)
    summary = summary_of(*where, "--out", tmp_path / "run", *TINY)
    # Clients 1 and 3 share the only image of class 1, so that client 3 has none.
    assert [entry["samples"] for entry in summary["participants"]] == [15, 1, 15]
    assert (summary["clients"], summary["connected"]) == (4, 3)


def test_a_run_in_which_a_client_diverges_goes_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: the client is taken up again in the next round."""
    real = ContrastiveTrainer.pretrain

    def explode(
        trainer: ContrastiveTrainer,
        message: EncoderState,
        client: Client,
        now: Randomness,
        see: bool,
    ) -> Training[TrainingResult]:
        trained = yield from real(trainer, message, client, now, see)
        if (now.round, client.id) != (1, 2):
            return trained
        client.memory = {k: v * float("nan") for k, v in client.memory.items()}
        assert trained.latents is not None
        return replace(trained, latents=trained.latents * float("nan"))

    monkeypatch.setattr(ContrastiveTrainer, "pretrain", explode)
    run = tmp_path / "run"
    settings = ("--json", "--set", "centroids.encoder=local")
    result = succeeded("cluster", "--out", run, *TINY, *settings)
    assert "round 2: client 2 refused: pre-training: its representations hold NaN" in result.stderr
    assert json.loads(result.stdout)["refused_updates"] == 1
    rounds = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [list(line["refused"]) for line in rounds] == [[], ["2"], [], []]


def test_a_run_in_which_everybody_diverges_says_so(tmp_path: Path) -> None:
    settings = ("--set", "training.learning_rate=1e30", "--set", "centroids.encoder=local")
    result = ccfcpp("cluster", "--out", tmp_path / "run", *TINY, *settings)
    assert result.code == 1
    assert "refused" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: no client has delivered centroids")


def test_images_pass_the_frozen_model_once_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluation, pseudo-labels, centroids and refinement share one pass over each image."""
    passes: list[int] = []

    def counting(model: FlatNetwork, images: torch.Tensor) -> representations.Representations:
        passes.append(len(images))
        return represent(model, images)

    monkeypatch.setattr(representations, "represent", counting)
    succeeded("cluster", "--disconnection-rate", 0.5, "--out", tmp_path / "run", *TINY)
    # Rounds 1 (the last of pre-training), 2 and 3 each end with a new model.
    models = 3
    # Each of the four rounds has an effective rank, and the last one's two local models are
    # compared with the global one, on all images.
    compared = 4 + 2
    assert sum(passes) == (models + compared) * 1797


def test_names_that_look_like_markup_or_need_quoting(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images[/b]" / "a class", 30).parent
    run = tmp_path / "my run[/i]"
    where = ("--dataset", folder, "--p", 0, "--clusters", 2)
    result = succeeded("cluster", *where, "--out", run, *TINY)
    shown = "".join(result.stdout.replace("│", "").split())
    assert "myrun[/i]" in shown


def test_images_that_nobody_holds_are_counted(tmp_path: Path) -> None:
    summary = summary_of("--p", 1, "--out", tmp_path / "run", *TINY)
    # Four clients hold the digits 0 to 3.
    assert (summary["samples"], summary["held"]) == (1797, 178 + 182 + 177 + 183)
    assert (np.load(tmp_path / "run" / "assignments.npz")["client"] == -1).sum() == 1797 - 720


@pytest.mark.parametrize("threads", ["2,1", "abc", "0", ""])
def test_odd_numbers_of_threads_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert ccfcpp("cluster", "--out", tmp_path / "r", "--p", 2).code == 2
    threads_before = torch.get_num_threads()
    use_processors()
    assert torch.get_num_threads() >= 1
    torch.set_num_threads(threads_before)


def test_rounds_that_everybody_misses_do_not_stop_a_run(tmp_path: Path) -> None:
    rarely = ("--dropout-rate", 0.8, "--seed", 1)
    result = succeeded("cluster", *rarely, "--out", tmp_path / "run", *TINY)
    assert "no client took part" in result.stderr


@pytest.mark.parametrize("arguments", [TINY, TINY_SCAN])
def test_a_run_without_a_single_update_says_so(
    arguments: tuple[object, ...], tmp_path: Path
) -> None:
    result = ccfcpp("cluster", "--dropout-rate", 0.9999, "--out", tmp_path / "run", *arguments)
    assert result.code == 1
    assert result.stderr.splitlines()[-1] == "error: no client has sent an update in any round"
    assert not (tmp_path / "run" / "summary.json").exists()


# --- bad input -----------------------------------------------------------------------------------

TWO = ("--clusters", 2, "--clients", 2)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--p", 1.5], "--p 1.5 is refused"),
        (["--p", -0.1], "--p -0.1 is refused"),
        (["--p", "much"], "--p much is refused: it should be a valid number"),
        (["--set", "partition.p=1.5"], "partition.p = 1.5 is refused"),
        (["--method", "fed-scan", "--set", "scan.learning_rate=1e38"], "scan.learning_rate = 1e38"),
        (["--alpha", 0], "--alpha 0 is refused: it should be greater than 0"),
        (["--alpha", 0.1, "--partition", "iid"], "--alpha and --partition each name a partition"),
        (["--alpha", 1, "--clients", 200], "200 clients with 10 samples at least need 2000 of"),
        (["--partition", "dirichlett"], "it should be 'skew', 'classes', 'dirichlet', 'iid' or 'f"),
        (["--no-such-flag"], "--no-such-flag"),
        (["--dataset", "minst"], "mnist"),
        (["--method", "ccfc+"], "--method ccfc+ is refused: did you mean 'ccfc++'?"),
        (["--preset", "paper"], "it should be 'default', 'published', 'fast' or 'best'"),
        (["--method", "ccfc", "--eta", 1], "but --eta 1 and loss.pretrain_eta = 0"),
        (["--clusters", 1798], "--clusters 1798 is more than the 1797 images"),
        (["--clients", 1798], "clients = 1798 is more than the 1797 images"),
        (["--disconnection-rate", 1], "disconnects all 10 clients"),
        (["--device", "cuda"], "finds no CUDA device"),
        (["--dropout-rate", 1], "--dropout-rate 1 is refused: it should be less than 1"),
        (["--device", "tpu"], "--device tpu is refused"),
        (["--partition", "folders"], "folder"),
        (["--set", "loss.lamda=1"], "did you mean 'loss.lam'"),
        (["--set", "loss.lam"], "key=value"),
        (["--seed", 4, "--set", "seed=3"], "--seed 4 and --set seed=3 set the same: give one"),
        (["--set", "scan.widths=[8,8,8,8]"], "fewer widths"),
        (["--resume"], "give --out"),
        (["--out", "x" * 300], "cannot be used"),
        (["--dataset", "x" * 300], "x" * 300),
        (["--dataset", ""], "dataset"),
        (["--p", "1\n2"], "--p 1 2 is refused"),
        (["--set", "seed=2024-13-45"], "not a YAML value"),
        (["--config", "mine.yaml"], "unknown key 'partition.pp': did you mean 'partition.p'?"),
        (["--dataset", "empty"], "no image"),
        (["--dataset", "broken", "--skip", 0], "broken.png ("),
        (["--dataset", "plain", *TWO, "--p", 0.5], "partition.kind = skew needs class labels"),
        (["--dataset", "plain", *TWO, "--alpha", 1], "dirichlet needs class labels"),
        (
            ["--dataset", "plain", *TWO, "--partition", "iid", "--set", "data.imbalance=2"],
            "data.imbalance = 2 needs class labels, and plain has none: leave it out",
        ),
        (["--dataset", "plain", "--partition", "iid"], "give --clusters"),
        (["--out", "nothing", "--resume"], "no run to resume"),
        *((["--cohort", n], f"--cohort {n} is refused") for n in ("0", "-2", "some", "1.5")),
        (
            ["--device", "cpu", "--set", "compute.precision=tf32"],
            "compute.precision = 'tf32' is refused: the device is cpu",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[object], expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("partition:\n  pp: 0.5\n")
    Path("empty").mkdir()
    write_images(Path("plain"), 20)
    broken = write_images(Path("broken"), 3) / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n broken")
    assert expected in refused("cluster", *arguments)
    assert not Path("runs").exists()


def test_mnist_without_file_or_network_names_what_is_expected_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    line = refused("cluster", "--dataset", "mnist", "--data-root", tmp_path / "data")
    for expected in ("train-images-idx3-ubyte", str(tmp_path / "data"), "digits"):
        assert expected in line


def test_an_output_folder_with_another_run_is_left_alone(finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    line = refused("cluster", "--out", finished, "--seed", 1, *TINY)
    assert "holds another run" in line
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


def test_an_output_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert "is not empty" in refused("cluster", "--out", tmp_path, *TINY)
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["thesis.tex"]


def test_resuming_with_another_configuration_names_the_keys(finished: Path) -> None:
    again = ("cluster", "--out", finished, "--resume")
    line = refused(*again, "--seed", 5, "--lam", 0.5)
    assert "was started with --lam 0.001, --seed 0: leave them out" in line
    succeeded(*again, "--seed", 0, "--device", "cpu")


def test_the_same_command_with_resume_goes_on(tmp_path: Path) -> None:
    command = (*TINY, "--method", "ccfc", "--config", "cluster/published/digits")
    succeeded("cluster", "--out", tmp_path / "run", *command)
    succeeded("cluster", "--out", tmp_path / "run", *command, "--resume")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("environment.json", "environment.json is damaged"),
        ("checkpoint/latest.safetensors", "cannot be read"),
    ],
)
def test_what_is_damaged_is_named(name: str, said: str, finished: Path) -> None:
    content = (finished / name).read_bytes()
    (finished / name).write_bytes(content[: len(content) // 2])
    assert said in refused("cluster", "--out", finished, "--resume")


# --- speed --------------------------------------------------------------------------------------

FEW = (*TINY, *set_options("data.images=160"))


def test_a_run_says_how_many_clients_were_trained_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a processor no more than there are threads, or clients."""
    for number, (threads, given, expected) in enumerate(
        [(1, "3", 1), (3, "2", 2), (3, "auto", 3), (9, "99", 4)]
    ):
        monkeypatch.setattr(torch, "get_num_threads", lambda there=threads: there)
        summary = summary_of("--out", tmp_path / str(number), *FEW, "--cohort", given)
        assert summary["cohort"] == expected


def test_rounded_products_give_a_run_of_their_own(tmp_path: Path) -> None:
    def loss(precision: str) -> float:
        run = tmp_path / precision
        succeeded("cluster", "--out", run, *FEW, "--set", f"compute.precision={precision}")
        first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
        value: float = first["figures"]["loss"]
        return value

    exact, rounded = loss("float32"), loss("bfloat16")
    assert rounded != exact
    assert rounded == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize(
    ("tiny", "parts"),
    [
        (TINY, ("training: backward", "global model", "k-means: clients")),
        (TINY_SCAN, ("neighbours", "batches", "trip 1", "trip 4", "latents of all images")),
    ],
    ids=["ccfc++", "fed-scan"],
)
def test_a_profile_goes_to_stderr(
    tmp_path: Path, tiny: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    result = ccfcpp("cluster", "--json", "--profile", "--out", tmp_path / "run", *tiny)
    json.loads(result.stdout)
    for part in (*parts, "checkpoint", "other"):
        assert part in result.stderr


@EITHER
def test_memories_that_do_not_fit_change_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    whole: Callable[[str], tuple[Result, Path]],
) -> None:
    result, held = whole(method)
    monkeypatch.setattr("ccfcpp.engine.memories._HOST_BYTES", 0)
    spilled = tmp_path / "spilled"
    summary = summary_of("--out", spilled, *RUNS[method])
    assert results(json.loads(result.stdout)) == results(summary)
    model, other = (load_file(run / "model.safetensors") for run in (held, spilled))
    assert all(torch.equal(model[name], other[name]) for name in model)
    assert len(list((spilled / "checkpoint").glob("client-*"))) == 4
