"""Whether a search was worth it, in words: its control beside it, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TIE = 0.01
"""Share of a time within which neither arm is said to be better: the playoff's margin of equivalence."""


def verdict(control: Mapping[str, Any], unit: str) -> str:
    """Return what the control says of the sampler.

    Args:
        control: the object `control` of `show --json`.
        unit: of times, as text.
    """
    searched, drawn = control["arms"]
    sampler, ratio = searched["sampler"], control["advantage"]
    if ratio is None:
        silent = [arm["sampler"] for arm in (searched, drawn) if arm["best_us"] is None]
        return f"control: {' and '.join(silent)} measured nothing yet, so the two cannot be compared"
    ours, theirs = f"{searched['best_us']:.4g} {unit}", f"{drawn['best_us']:.4g} {unit}"
    if ratio > 1 + TIE:
        matched = searched["matched_after"]
        earlier = f"which {sampler} had reached after {matched['evaluated']}"
        return (
            f"control: {sampler} earned its keep: {ours} is {ratio:.2f}× as fast as random search's {theirs} "
            f"after {drawn['evaluated']} evaluated trials, {earlier}"
        )
    if ratio < 1 - TIE:
        return f"control: {sampler} did not earn its keep: random search found {theirs}, {sampler} {ours}"
    when = f"after {searched['best_after']['evaluated']} and {drawn['best_after']['evaluated']} evaluated trials"
    return f"control: a tie: {sampler} found {ours}, random search {theirs}, {when}"


def price(cost: Mapping[str, Any]) -> str:
    """Return what a search cost.

    Args:
        cost: the object `cost` of `show --json`.
    """
    unit = f" {cost['unit']}" if cost["unit"] else ""
    return f"{cost['total']:.2f}{unit} at {cost['per_hour']:g}{unit} an hour of the device"
