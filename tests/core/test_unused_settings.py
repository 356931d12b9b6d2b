"""What a user gives and what has no effect is refused in one line."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import Positive, Section, Tree, Unused, require, unused_without
from ccfcpp.core.config_layers import (
    merge,
    parse_assignments,
    read_configs,
    read_yaml,
    resolve,
)
from ccfcpp.core.errors import UsageError
from ccfcpp.core.presets import preset_file, preset_names
from ccfcpp.core.unused_settings import refuse_unused
from supervised.config import ClassifyConfig
from tests.support.plugin import add_system

FLAGS = {
    "privacy.epsilon": "--epsilon",
    "privacy.level": "--privacy",
    "privacy.secure_sums": "--secure-sums",
    "loss.eta": "--eta",
}


def checked(
    methods: Sequence[str], *files: Tree, values: Tree | None = None, flags: bool = False
) -> None:
    """Resolve layers for each of some systems, and refuse what is idle in all of them."""
    layers = [*files, values or {}]
    configs = [
        resolve(ClusterConfig, "cluster", *(merge(layer, {"method": name}) for layer in layers))
        for name in methods
    ]
    try:
        refuse_unused(configs, "cluster", [*files, values or {}])
    except UsageError as error:
        raise UsageError(error.by_flags(FLAGS, FLAGS) if flags else str(error)) from error


def complaint(
    methods: Sequence[str], *files: Tree, values: Tree | None = None, flags: bool = False
) -> str:
    with pytest.raises(UsageError) as caught:
        checked(methods, *files, values=values, flags=flags)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("method", "setting", "expected"),
    [
        (
            "fed-scan",
            "privacy.threshold=5",
            "privacy.threshold = 5 has no effect: it needs privacy.secure_sums = true; give that, "
            "or leave it out",
        ),
        (
            "fed-scan",
            "privacy.clip=2",
            "privacy.clip = 2 has no effect: it needs privacy.level = client or image; give that, "
            "or leave it out",
        ),
        (
            "fed-scan",
            "scan.exact_steps=2",
            "scan.exact_steps = 2 has no effect: it needs scan.lagged = true; give that, or leave "
            "it out",
        ),
        (
            "fed-scan",
            "compute.cohort=3",
            "compute.cohort = 3 has no effect on fed-scan: leave it out, or take one of sda-fc-km, "
            "sda-fc-fcm, ppfc-gan, ccfc, ccfc++",
        ),
        (
            "ccfc++",
            "views.rotation=9",
            "views.rotation = 9 has no effect: it needs training.pretraining = siamese; give that, "
            "or leave it out",
        ),
        (
            "km",
            "loss.eta=0.1",
            "loss.eta = 0.1 has no effect on km: leave it out, or take one of ccfc, ccfc++",
        ),
    ],
)
def test_a_single_value_that_does_nothing(method: str, setting: str, expected: str) -> None:
    values = merge({"scan": {"overclustering": 1}}, parse_assignments([setting]))
    if method != "fed-scan":
        del values["scan"]["overclustering"]
    assert complaint([method], values=values) == expected


def test_a_single_value_is_refused_also_where_it_is_the_default() -> None:
    assert "privacy.bits = 64 has no effect" in complaint(["km"], values={"privacy": {"bits": 64}})
    assert "privacy.bits = 64 has no effect" in complaint(["km"], {"privacy": {"bits": 64}})


@pytest.mark.parametrize("method", ["fed-km", "k-fed", "ccfc++"])
def test_what_a_named_preset_has_for_other_systems_is_no_fault(method: str) -> None:
    (named,) = read_configs([Path("cluster/vectors")])
    checked([method], named)
    # The same in a file of the user's is.
    assert "has no effect" in complaint([method], dict(named))


def test_a_single_value_may_switch_off_what_a_file_switches_on() -> None:
    private = {"privacy": {"level": "image", "clip": 0.5}}
    checked(["fed-scan"], private, values={"privacy": {"level": "none"}})
    assert "privacy.clip" in complaint(["fed-scan"], {"privacy": {"clip": 0.5}})


@pytest.mark.parametrize("begun", ["fed-scan", "ccfc++", "k-fed"])
@pytest.mark.parametrize("method", METHODS.own())
def test_the_configuration_of_a_run_may_be_taken_for_another(begun: str, method: str) -> None:
    own: Tree = {"scan": {"steps": 7}, "loss": {"eta": 0.5}, "kfed": {"local_clusters": 2}}
    whole = resolve(ClusterConfig, "cluster", own, {"method": begun}).model_dump(mode="json")
    if method == "ccfc":
        whole["loss"] = {"eta": 0.0, "pretrain_eta": 0.0}
    checked([method], whole)


def test_a_flag_is_called_by_its_name_and_so_is_what_would_turn_it_on() -> None:
    values: Tree = {"privacy": {"epsilon": 4}}
    assert complaint(["fed-scan"], values=values, flags=True) == (
        "--epsilon 4 has no effect: it needs --privacy client or image; give that, or leave it out"
    )
    values = {"privacy": {"threshold": 4}}
    assert "it needs --secure-sums; give" in complaint(["fed-scan"], values=values, flags=True)


def test_in_a_comparison_a_value_counts_where_one_system_heeds_it() -> None:
    local: Tree = {"training": {"steps": "local"}}
    values: Tree = {"loss": {"lam": 0.5}}
    checked(["km", "ccfc++"], values=merge(local, values))
    assert "has no effect on km, k-fed: leave" in complaint(["km", "k-fed"], values=values)
    assert "it needs training.steps = local" in complaint(["km", "ccfc++"], values=values)


def test_classification_has_the_same_check() -> None:
    values: Tree = {"decorrelation": {"kind": "none", "beta": 0.5}}
    made = resolve(ClassifyConfig, "classify", values)
    with pytest.raises(UsageError, match=r"it needs decorrelation.kind = feddecorr or decov or"):
        refuse_unused([made], "classify", [values])
    values = {"decorrelation": {"beta": 0.0, "log_epochs": True}}
    made = resolve(ClassifyConfig, "classify", values)
    with pytest.raises(UsageError, match=r"it needs decorrelation.beta other than 0"):
        refuse_unused([made], "classify", [values])
    values = {"moon": {"mu": 0.5}}
    made = resolve(ClassifyConfig, "classify", values)
    with pytest.raises(UsageError, match=r"moon.mu = 0.5 has no effect on fedavg: .* of moon$"):
        refuse_unused([made], "classify", [values])


@pytest.mark.parametrize(
    "name", [name for name in preset_names() if name.startswith(("private/", "feddecorr/"))]
)
def test_what_is_shipped_holds_nothing_idle(name: str) -> None:
    tree = read_yaml(preset_file(name))
    tree.pop("grid", None)
    if name.startswith("private/"):
        checked([tree.get("method", "fed-scan")], tree)
    else:
        refuse_unused([resolve(ClassifyConfig, "classify", tree)], "classify", [tree, {}])


class OwnConfig(Section):
    rule: str = "mean"
    weight: Positive = 3

    def unused(self) -> Unused:
        if self.rule != "bound":
            yield from unused_without("own.weight", require("own.rule", "bound"))


def test_a_strangers_section_has_rules_too(monkeypatch: pytest.MonkeyPatch) -> None:
    add_system(monkeypatch, own=OwnConfig)
    checked(["stranger"], values={"own": {"rule": "bound", "weight": 2}})
    assert complaint(["stranger"], values={"own": {"weight": 2}}) == (
        "own.weight = 2 has no effect: it needs own.rule = bound; give that, or leave it out"
    )
    assert "compute.precision = bfloat16 has no effect on stranger" in complaint(
        ["stranger"], values={"compute": {"precision": "bfloat16"}}
    )
