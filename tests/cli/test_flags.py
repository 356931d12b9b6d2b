"""The table of flags: each sets a key that there is, and its help says what holds without it."""

import re

import pytest

from ccfcpp.cli import classify, cluster, compare, flags
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config import RunConfig, Tree
from ccfcpp.core.config_layers import resolve, values_of
from ccfcpp.core.errors import UsageError
from supervised.config import ClassifyConfig
from tests.support.command import ccfcpp

PUBLISHED: Tree = {"preset": "published"}
CASES = [
    ("cluster", cluster.FLAGS, ClusterConfig, "cluster", {}),
    ("compare", compare.FLAGS, ClusterConfig, "cluster", PUBLISHED),
    ("classify", classify.FLAGS, ClassifyConfig, "classify", {}),
    ("report", (flags.DATA_ROOT,), ClusterConfig, "cluster", {}),
    ("datasets", (flags.DATA_ROOT,), ClusterConfig, "cluster", {}),
    ("reproduce", flags.MACHINE, ClusterConfig, "cluster", PUBLISHED),
]
"""Commands, their flags, the configuration that these set, and what the command lays under it."""


@pytest.mark.parametrize(("command", "table", "kind", "presets", "base"), CASES)
def test_each_flag_shows_what_holds_for_the_default_data_set(
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    table: tuple[flags.Flag, ...],
    kind: type[RunConfig],
    presets: str,
    base: Tree,
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    values = values_of(resolve(kind, presets, base)) | {"rounds": 12}
    shown = ccfcpp(command, "--help").stdout
    for flag in table:
        (line,) = [line for line in shown.splitlines() if re.search(rf" {flag.option} ", line)]
        value = flag.default or values[flag.key]
        default = flag.unset if value is None else "off" if value is False else str(value)
        assert flag.help in line
        assert f"(default: {default})" in line


@pytest.mark.parametrize(("command", "table", "kind", "presets", "base"), CASES)
def test_no_command_has_two_flags_of_one_name(
    command: str,
    table: tuple[flags.Flag, ...],
    kind: type[RunConfig],
    presets: str,
    base: Tree,
) -> None:
    assert len({flag.option for flag in table}) == len(table)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, None),
        ({"partition.kind": "iid"}, "iid"),
        ({"partition.alpha": "0.1"}, "dirichlet"),
        ({"partition.alpha": "0.1", "partition.kind": "dirichlet"}, "dirichlet"),
        ({"partition.classes_per_client": "2"}, "pathological"),
    ],
)
def test_a_flag_of_one_kind_of_partition_names_it(given: flags.Named, kind: str | None) -> None:
    named = {"partition.kind": None, "partition.alpha": None, **given}
    flags.name_partition(named)
    assert named == {"partition.alpha": None, **given, "partition.kind": kind}


@pytest.mark.parametrize(
    "given",
    [
        {"partition.alpha": "0.1", "partition.kind": "skew"},
        {"partition.alpha": "0.1", "partition.classes_per_client": "2"},
    ],
)
def test_flags_of_two_kinds_of_partition_are_refused(given: flags.Named) -> None:
    with pytest.raises(UsageError, match=r"--alpha and --.* each name a partition"):
        flags.name_partition({"partition.kind": None, **given})


def test_a_switch_that_is_not_given_leaves_a_file_its_word() -> None:
    seen: list[flags.Named] = []

    @flags.keyed(flags.TENSORBOARD, flags.DATASET)
    def command(named: flags.Named) -> None:
        seen.append(named)

    command(flag_tensorboard=False, flag_dataset="")
    command(flag_tensorboard=True, flag_dataset=None)
    assert seen == [
        {"tensorboard": None, "dataset": ""},
        {"tensorboard": True, "dataset": None},
    ]
