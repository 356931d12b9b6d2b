"""What keys mean and which values they take, as their fields say it."""

import pytest

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.settings_reference import describe_keys
from ccfcpp.deployment.client.rules import Rules
from supervised.config import ClassifyConfig

KEYS = describe_keys(ClusterConfig, Rules) | {
    f"classify {key}": found for key, found in describe_keys(ClassifyConfig).items()
}


@pytest.mark.parametrize(
    ("key", "values", "placeholder"),
    [
        ("partition.kind", "skew, classes, dirichlet, iid or folders", "NAME"),
        ("partition.p", "0 to 1", "NUMBER"),
        ("partition.clients", "at least 1", "N"),
        ("availability.dropout_rate", "at least 0 and below 1", "NUMBER"),
        ("privacy.epsilon", "above 0", "NUMBER"),
        ("privacy.secure_sums", "", ""),
        ("seed", "", "N"),
        ("honest", "at least 2", "N"),
        ("classify compute.cohort", "auto or at least 1", "auto|N"),
    ],
)
def test_values_follow_from_types(key: str, values: str, placeholder: str) -> None:
    assert (KEYS[key].values, KEYS[key].placeholder) == (values, placeholder)


def test_a_key_of_several_kinds_is_described_by_all_of_them() -> None:
    said = KEYS["attack.kind"].description
    assert said.startswith("Simulated attack: false updates of some clients")
    assert "sign-flip: what was learned" in said
    assert "false-sizes: scale times" in said
