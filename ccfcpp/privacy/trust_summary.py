"""Rows of a summary on protection, attacks and defences of a run."""

from collections.abc import Mapping
from typing import Any

from ccfcpp.core.units import list_first


def trust_rows(summary: Mapping[str, Any]) -> dict[str, str]:
    """Describe what a run has protected and revealed, its attackers and its defence.

    The texts come by title from a run's ``summary.json``; there is none if nothing was asked.
    """
    found = summary.get("privacy", {})
    rows = {"secure sums": "yes"} if found.get("secure_sums") else {}
    if "epsilon" in found:
        level = f"{found['level']} level: ε = {found['epsilon']:.3g} of {found['budget']:g}, "
        rows["privacy"] = f"{level}δ = {found['delta']:g}; it hides {found['hides']}"
        if found.get("noise_at") == "clients":
            rows["privacy"] += "; the clients added the noise"
        if found["budget_ended_the_run"]:
            rows["privacy"] += "; the budget ended the run before its last round"
        if found["reproducible_noise"]:
            rows["privacy"] += "; the noise can be drawn again, and protects NOTHING"
    if attack := summary.get("attack"):
        share = f"{attack['share']:.0%} of the clients"
        rows["attack"] = f"{attack['kind']} by {share} ({list_first(attack['attackers'])})"
    if "defence" in summary:
        rows["defence"] = summary["defence"]
    return rows
