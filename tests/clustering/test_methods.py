"""Every system runs on the engine: whole runs, failures, order, and the command."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.systems.ccfc.local_training import ContrastiveTrainer
from ccfcpp.clustering.systems.synthetic.gan_training import GANTrainer
from ccfcpp.core.config_layers import resolve, validate
from ccfcpp.core.errors import UsageError
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.payload import pack
from tests.support.clustering import clients_of_sizes, made, run_tiny, tiny
from tests.support.command import ccfcpp

GANS = ("sda-fc-km", "sda-fc-fcm", "ppfc-gan")
every_method = pytest.mark.parametrize("method", METHODS.own())


@every_method
def test_the_configuration_takes_every_name_of_the_registry(method: str) -> None:
    config = resolve(ClusterConfig, "cluster", {}, {"method": method})
    assert config.method == method
    for kind in METHODS[method].sections.values():
        assert isinstance(config.section(kind), kind)


def test_the_configuration_takes_no_other_name() -> None:
    with pytest.raises(UsageError, match="did you mean 'fed-scan'\\? Known: km, fcm, "):
        validate(ClusterConfig, {"method": "dbscan"})


@every_method
def test_to_make_a_system_builds_nothing_that_trains(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that only assigns images needs the algorithm, and no client's half of it."""
    (client, *_) = clients = clients_of_sizes(30, 21)
    state, _, _ = run_tiny(tiny(method), clients)
    expected = made(tiny(method)).assign(state, replace(client, scratch={}))

    def refuse(*arguments: object, **named: object) -> None:
        raise AssertionError("a client's half of the work is made")

    for trainer in (ContrastiveTrainer, GANTrainer):
        monkeypatch.setattr(trainer, "__init__", refuse)
    monkeypatch.setattr(type(made(tiny(method))), "client_side", refuse)
    algorithm = made(tiny(method))
    assert torch.equal(algorithm.assign(state, replace(client, scratch={})), expected)
    assert pack(algorithm.final_model(state))


@every_method
def test_a_whole_run(method: str, device: torch.device) -> None:
    state, reports, clusters = run_tiny(tiny(method), clients_of_sizes(30, 21, 12), device=device)
    assert 1 <= len(state.centroids) <= 3
    assert set(clusters.tolist()) <= set(range(len(state.centroids)))
    assert all(not report.refused for report in reports)
    assert reports[-1].bytes_up > 0


@every_method
def test_the_order_of_clients_does_not_matter(method: str) -> None:
    clients = clients_of_sizes(30, 21, 12)
    first, _, clusters = run_tiny(tiny(method), clients)
    second, _, others = run_tiny(tiny(method), clients[::-1])
    assert torch.equal(clusters, others)
    for name, entry in pack(first).items():
        assert torch.equal(entry, pack(second)[name]), name


@every_method
@pytest.mark.usefixtures("double_precision")
def test_cohorts_give_what_clients_one_by_one_do(method: str) -> None:
    clients = clients_of_sizes(30, 21, 12)
    states = [run_tiny(tiny(method, {"compute": {"cohort": n}}), clients)[0] for n in (1, 3)]
    alone, together = map(pack, states)
    for name, entry in alone.items():
        if name.startswith("images"):  # rounded to bytes
            assert (entry.int() - together[name].int()).abs().max() <= 1
        else:
            assert torch.allclose(entry.double(), together[name].double(), atol=1e-4), name


@every_method
def test_a_client_that_is_absent_and_one_of_a_single_image(method: str) -> None:
    clients = clients_of_sizes(30, 21, 1)
    state, reports, _ = run_tiny(tiny(method), clients, Availability(dropout_rate=0.4))
    # GANs need no connection: in two of three rounds nobody is missed.
    assert any(len(report.clients) < 3 for report in reports) or method in GANS or len(reports) == 1
    assert state.centroids is None or bool(torch.isfinite(state.centroids).all())


# --- the command --------------------------------------------------------------------------------


def test_the_summary_says_what_leaves_a_client(tmp_path: Path) -> None:
    result = ccfcpp("cluster", "--method", "k-fed", "--json", "--out", tmp_path / "run")
    summary = json.loads(result.stdout)
    assert summary["sends"] == "centroids"
    assert (summary["rounds"], summary["communication_rounds"]) == (1, 1)
    assert summary["local_clusters"] == 10
    assert "pretrain_rounds" not in summary


@pytest.mark.parametrize(
    ("arguments", "of_images", "complaint"),
    [
        (("--method", "km", "--eta", "0.1"), False, "--eta 0.1 has no effect on km"),
        (("--method", "k-means"), False, "--method k-means is refused"),
        (
            ("--method", "k-fed", "--set", "kfed.local_clusters=11"),
            True,
            "more than the 10 clusters",
        ),
        (("--method", "fcm", "--set", "fuzzy.m=1"), False, "fuzzy.m = 1 is refused"),
        (
            ("--method", "ppfc-gan", "--set", "gan.discriminator_channels=[4,4,4,4]"),
            True,
            "gan.discriminator_channels",
        ),
        (
            ("--method", "ppfc-gan", "--set", "gan.generator_channels=[]"),
            True,
            "gan.generator_channels",
        ),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, arguments: tuple[str, ...], of_images: bool, complaint: str
) -> None:
    result = ccfcpp("cluster", *arguments, "--out", tmp_path / "run")
    assert result.code == 2
    *before, line = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert complaint in line
    # What depends on the images is found when the run has been announced.
    assert [" on digits, " in said for said in before] == ([True] if of_images else [])
    assert not (tmp_path / "run").exists()
