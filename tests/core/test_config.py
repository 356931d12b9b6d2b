"""Configurations whose sections come from methods."""

import pickle
from typing import Any

import pytest

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.kmeans.config import CentroidConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.systems.ccfc.config import LossConfig, TrainingConfig
from ccfcpp.core.config import Positive, Section
from ccfcpp.core.config_layers import merge, resolve, validate
from ccfcpp.core.errors import UsageError
from supervised.classifiers import CLASSIFIERS
from supervised.config import ClassifyConfig
from tests.support.plugin import add_system


class OwnConfig(Section):
    rounds: Positive = 3


@pytest.mark.parametrize(
    ("kind", "methods"), [(ClusterConfig, METHODS), (ClassifyConfig, CLASSIFIERS)]
)
def test_it_has_the_sections_of_its_method_alone(kind: type[Any], methods: Any) -> None:
    every = {section for name in methods.own() for section in methods[name].sections}
    for name in methods.own():
        made = validate(kind, merge(methods[name].fixed, {"method": name}))
        assert every & type(made).model_fields.keys() <= {*methods[name].sections, "compute"}
        for section, of_kind in methods[name].sections.items():
            assert type(getattr(made, section)) is of_kind
            assert made.section(of_kind) is getattr(made, section)


def test_a_strangers_section_is_there_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    add_system(monkeypatch, own=OwnConfig)
    made = validate(ClusterConfig, {"method": "stranger", "own": {"rounds": 5}})
    assert made.section(OwnConfig).rounds == 5
    assert "own" not in validate(ClusterConfig, {"own": {"rounds": 5}}).model_dump()
    with pytest.raises(UsageError, match="unknown key 'one'"):
        validate(ClusterConfig, {"one": {"rounds": 5}})


@pytest.mark.parametrize("name", ["data", "seed"])
def test_a_strangers_section_takes_no_others_place(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    add_system(monkeypatch, **{name: OwnConfig})
    with pytest.raises(UsageError, match=f"brings a section '{name}' of the configuration"):
        validate(ClusterConfig, {"method": "stranger"})
    assert validate(ClusterConfig, {}).method == "ccfc++"


def test_a_section_of_ours_may_be_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    add_system(monkeypatch, centroids=CentroidConfig)
    made = validate(ClusterConfig, {"method": "stranger", "centroids": {"restarts": 7}})
    assert made.section(CentroidConfig).restarts == 7


def test_another_process_has_the_same_configuration() -> None:
    for made in (resolve(ClusterConfig, "cluster", {"seed": 3}), ClusterConfig()):
        again = pickle.loads(pickle.dumps(made))  # noqa: S301 - our own
        assert isinstance(again, ClusterConfig)
        assert again.section(TrainingConfig) == made.section(TrainingConfig)
        assert again.seed == made.seed


def test_a_configuration_made_by_hand_has_the_defaults() -> None:
    assert ClusterConfig(method="km").section(LossConfig) == LossConfig()


def test_a_method_brings_what_it_fixes() -> None:
    made = resolve(ClusterConfig, "cluster", {"method": "ccfc"})
    assert made.section(LossConfig).eta == 0
    with pytest.raises(UsageError, match="method = 'ccfc'"):
        resolve(ClusterConfig, "cluster", {"method": "ccfc", "loss": {"eta": 1}})
