"""The table of flags: each sets a key that there is, and its help says what holds without it."""

import re
from pathlib import Path

import pytest

from ccfcpp.cli import classify, cluster, compare, flags
from ccfcpp.cli.setting_options import with_flags
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import RunConfig, Tree
from ccfcpp.core.config_layers import resolve, values_of
from ccfcpp.core.errors import KeyValue, UsageError, in_file
from ccfcpp.core.settings_reference import describe_keys
from supervised.config import ClassifyConfig
from tests.support.command import ccfcpp

PUBLISHED: Tree = {"preset": "published"}
CASES = [
    ("cluster", cluster.FLAGS, ClusterConfig, "cluster", {}),
    ("compare", compare.FLAGS, ClusterConfig, "cluster", PUBLISHED),
    ("classify", classify.FLAGS, ClassifyConfig, "classify", {}),
    ("datasets", (flags.DATA_ROOT,), ClusterConfig, "cluster", {}),
    ("reproduce", flags.MACHINE, ClusterConfig, "cluster", PUBLISHED),
]
"""Commands, their flags, the configuration that these set, and what the command lays under it."""

CLIENTS_DATA: tuple[Tree, ...] = (
    {"dataset": "the clients' own images"},
    {"dataset": "the clients' own images", "data": {"encoder": "torchvision:resnet18"}},
)
"""What ``serve`` begins with, without and with an encoder."""


@pytest.mark.parametrize(("command", "table", "kind", "presets", "base"), CASES)
def test_each_flag_shows_what_holds_for_the_default_data_set(
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    table: tuple[flags.Flag, ...],
    kind: type[RunConfig],
    presets: str,
    base: Tree,
) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    values = {key: field.default for key, field in kind.known_fields({}).items()}
    values |= values_of(resolve(kind, presets, base))
    values["rounds"] = values.get("training.rounds")
    shown, described = ccfcpp(command, "--help").stdout, describe_keys(kind)
    assert len({flag.option for flag in table}) == len(table)
    for flag in table:
        (line,) = [line for line in shown.splitlines() if re.search(rf" {flag.option} ", line)]
        value = flag.default or values[flag.key]
        assert value is None or f"default: {'off' if value is False else in_file(value)})" in line
        if flag.key in described:
            assert described[flag.key].description in line


def test_help_of_serve_names_its_own_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    lines = ccfcpp("serve", "--help").stdout.splitlines()
    method, clusters, rounds = (
        next(line for line in lines if f" --{flag} " in line)
        for flag in ("method", "clusters", "rounds")
    )
    of_images, of_vectors = (resolve(ClusterConfig, "cluster", each) for each in CLIENTS_DATA)
    of_classes = ClassifyConfig().method
    assert (
        f"default: {of_images.method}, with an encoder {of_vectors.method}; "
        f"to classify {of_classes})" in method
    )
    assert "classes" not in clusters
    assert "default" not in rounds


def test_a_refusal_names_the_flags_that_were_typed_and_those_that_would_help() -> None:
    error = UsageError(
        KeyValue("loss.lam", 3.0),
        " needs ",
        KeyValue("privacy.secure_sums", True, advised=True),
        " and ",
        KeyValue("seed", [1, 2]),
    )
    assert str(error) == "loss.lam = 3 needs privacy.secure_sums = true and seed = [1, 2]"
    flags = {"loss.lam": "--lam", "seed": "--seed", "privacy.secure_sums": "--secure-sums"}
    assert error.by_flags(flags, flags) == "--lam 3 needs --secure-sums and --seed 1,2"
    assert error.by_flags({}, flags) == "loss.lam = 3 needs --secure-sums and seed = [1, 2]"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("cluster", "--lam", 3), "--lam 3 has no effect: it needs training.steps = local; give"),
        (("cluster", "--set", "loss.lam=3"), "loss.lam = 3 has no effect: it needs"),
        (("cluster", "--method", "km", "--rounds", 3), "--rounds 3 has no effect on km, whose"),
        (("cluster", "--rounds", "many"), "--rounds many is refused: it should be a valid integer"),
        (("classify", "--beta", -1), "--beta -1 is refused"),
        (
            ("classify", "--epsilon", 3),
            "--epsilon 3 has no effect: it needs --privacy client or image",
        ),
        (("classify", "--set", "moon.mu=1"), "moon.mu = 1 has no effect on fedavg"),
        (("compare", "--p", "0,2"), "--p 2 is refused"),
        (("compare", "--methods", "km,kn"), "--methods kn is refused"),
        (
            ("compare", "--set", "attack.scale=2"),
            "attack.scale = 2 has no effect: it needs attack.kind = scaled",
        ),
        (
            ("serve", "--epsilon", 3),
            "--epsilon 3 has no effect: it needs --privacy client or image",
        ),
        (("serve", "--seed", "x"), "--seed x is refused"),
    ],
)
def test_every_command_refuses_by_flags(
    arguments: tuple[object, ...], complaint: str, tmp_path: Path
) -> None:
    result = ccfcpp(*arguments, "--out", tmp_path / "run")
    assert result.code == 2
    assert result.stderr.startswith(f"error: {complaint}")
    assert not (tmp_path / "run").exists()


def test_help_has_each_flag_under_the_systems_that_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    panels: dict[str, list[str]] = {}
    for line in ccfcpp("cluster", "--help").stdout.splitlines():
        if line.startswith("╭─"):
            found = panels.setdefault(line.strip("╭─╮ "), [])
        elif option := re.match(r"│ +(--[\w-]+)", line):
            found.append(option[1])
    assert panels["CCFC, CCFC++"] == ["--pretrain-rounds", "--eta", "--lam"]
    (several,) = [title for title, options in panels.items() if options == ["--rounds"]]
    assert several == ", ".join(s.title for s in METHODS.values() if s.rounds)
    assert {"--dataset", "--method", "--p", "--seed"} <= {*panels["All systems"]}
    assert "--epsilon" in panels["Privacy"]
    assert "--dropout-rate" in panels["Absent clients"]
    assert "--out" in panels["Options"]
    # Those of the other command are called methods, whatever section their keys are in.
    shown = ccfcpp("classify", "--help").stdout
    assert "All methods" in shown
    assert "CCFC++" not in shown


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, {}),
        ({"partition.kind": "iid"}, {"partition.kind": "iid"}),
        ({"partition.alpha": "0.1"}, {"partition.kind": "dirichlet"}),
        (
            {"partition.alpha": "0.1", "partition.kind": "dirichlet"},
            {"partition.kind": "dirichlet"},
        ),
        ({"partition.classes_per_client": "2"}, {"partition.kind": "classes"}),
    ],
)
def test_a_flag_of_one_kind_of_partition_names_it(given: flags.Named, kind: flags.Named) -> None:
    named = dict(given)
    flags.set_partition_kind(named)
    assert named == given | kind


@pytest.mark.parametrize(
    "given",
    [
        {"partition.alpha": "0.1", "partition.kind": "skew"},
        {"partition.alpha": "0.1", "partition.classes_per_client": "2"},
    ],
)
def test_flags_of_two_kinds_of_partition_are_refused(given: flags.Named) -> None:
    with pytest.raises(UsageError, match=r"--alpha and --.* each name a partition"):
        flags.set_partition_kind(given)


def test_a_switch_that_is_not_given_leaves_a_file_its_word() -> None:
    seen: list[flags.Named] = []

    @with_flags([flags.PRIVACY[0], flags.DATASET], ClusterConfig)
    def command(named: flags.Named) -> None:
        seen.append(named)

    command(flag_secure_sums=False, flag_dataset="")
    command(flag_secure_sums=True, flag_dataset=None)
    assert seen == [
        {"dataset": ""},
        {"privacy.secure_sums": True},
    ]
