"""What is said of a run before its first round."""

from pathlib import Path

from ccfcpp.cli import flags
from ccfcpp.cli.single_run import chosen_by_default
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import resolve
from tests.support.command import TINY_SCAN, succeeded


def test_what_the_user_did_not_choose_is_named_by_its_flags() -> None:
    config = resolve(ClusterConfig, "cluster", {"seed": 3})
    shown = (flags.DATASET, flags.SEED, flags.SKEW, flags.CLIENTS, flags.CLUSTERS)
    line = chosen_by_default(shown, [{"seed": 3}], config, {"partition.clients": 10})
    assert line == "by default: --dataset digits, --p 0, --clients 10"
    everything: Tree = {"dataset": "digits", "seed": 3, "partition": {"p": 0, "clients": 2}}
    assert chosen_by_default(shown, [everything], config, {}) == ""


def test_a_run_says_what_it_is_about_to_do(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = succeeded("cluster", *TINY_SCAN, "--out", out)
    _, setting, default, *_ = result.stderr.splitlines()
    assert setting.startswith("1,797 images of 8x8 pixels, 10 classes; 4 clients; 4 rounds on ")
    assert default.startswith("by default: --dataset digits, --clusters 10, --seed 0, ")
    assert "--method" not in default
    again = succeeded("cluster", "--out", out, "--resume")
    assert setting in again.stderr
    assert "by default" not in again.stderr


def test_a_classifier_is_named_with_its_decorrelation_term(tmp_path: Path) -> None:
    few = ("--rounds", 1, "--set", "data.train_images=100", "--set", "model.widths=[4]")
    absent = ("--disconnection-rate", 0.25, "--clients", 5, "--seed", 0)
    result = succeeded("classify", *few, *absent, "--out", tmp_path / "run")
    assert result.stderr.startswith("FedAvg with FedDecorr on digits, seed 0: ")
    assert "by default: --dataset digits, --method fedavg, --decorr feddecorr" in result.stderr
    assert "absent for the whole run: client " in result.stderr
    assert "FedAvg with FedDecorr on digits" in result.stdout
    assert "about so many directions are in use" in " ".join(result.stdout.split())
