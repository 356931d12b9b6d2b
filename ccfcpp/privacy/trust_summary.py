"""Rows of a run's summary on its privacy protection, attackers and defence."""

from collections.abc import Mapping
from typing import Any

from ccfcpp.core.units import list_first


def trust_rows(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return texts, by title, on the protection, attackers and defence in ``summary.json``."""
    privacy = summary.get("privacy", {})
    rows = {"secure sums": "yes"} if privacy.get("secure_sums") else {}
    if "epsilon" in privacy:
        level = f"{privacy['level']} level: ε = {privacy['epsilon']:.3g} of {privacy['budget']:g}, "
        rows["privacy"] = f"{level}δ = {privacy['delta']:g}; it hides {privacy['hides']}"
        if privacy.get("noise_at") == "clients":
            rows["privacy"] += "; the clients added the noise"
        if privacy["budget_ended_the_run"]:
            rows["privacy"] += "; the budget ended the run before its last round"
        if privacy["reproducible_noise"]:
            rows["privacy"] += "; the noise can be drawn again, and protects NOTHING"
    if attack := summary.get("attack"):
        share = f"{attack['share']:.0%} of the clients"
        rows["attack"] = f"{attack['kind']} by {share} ({list_first(attack['attackers'])})"
    if "defence" in summary:
        rows["defence"] = summary["defence"]
    return rows
