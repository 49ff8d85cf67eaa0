"""Texts about the comparison of a sampler with its control, and about the cost of a search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

TIE = 0.01
"""Relative difference of times that counts as a tie, equal to the playoff's margin."""


def control_verdict(control: Mapping[str, Any], unit: str, format_time: Callable[[float], str]) -> str:
    """Return a text that compares a sampler with its control.

    Args:
        control: the object `control` of `show --json`.
        unit: text of the time unit.
        format_time: formats a time given in µs.
    """
    searched, drawn = control["arms"]
    sampler, ratio = searched["sampler"], control["advantage"]
    if ratio is None:
        if searched["best_us"] is not None and drawn["evaluated"]:
            evaluated = drawn["evaluated"]
            none = f"none of the {evaluated} random trials was" if evaluated > 1 else "the one random trial was not"
            return f"{sampler} is ahead: {none} timed to the end"
        silent = [arm["sampler"] for arm in (searched, drawn) if arm["best_us"] is None]
        return f"no comparison yet: no measured trial from {' and '.join(silent)}"
    sampler_time, random_time = f"{format_time(searched['best_us'])} {unit}", f"{format_time(drawn['best_us'])} {unit}"
    if ratio > 1 + TIE:
        matched = searched["matched_after"]["evaluated"]
        # The first candidate is the kernel's default or a warm start, which the sampler did not find itself.
        when = "with its first candidate" if matched == 1 else f"after {matched} trials"
        return (
            f"{sampler} beats random search: {sampler_time} is {ratio:.2f}× as fast as the best of "
            f"{drawn['evaluated']} random trials ({random_time}); {sampler} matched the best random trial {when}"
        )
    if ratio < 1 - TIE:
        return f"{sampler} does not beat random search: random search found {random_time}, {sampler} {sampler_time}"
    when = f"after {searched['best_after']['evaluated']} and {drawn['best_after']['evaluated']} evaluated trials"
    return f"a tie: {sampler} found {sampler_time}, random search {random_time}, {when}"


def cost_text(cost: Mapping[str, Any]) -> str:
    """Return the cost of a search as text.

    Args:
        cost: the object `cost` of `show --json`.
    """
    unit = f" {cost['unit']}" if cost["unit"] else ""
    return f"{cost['total']:.2f}{unit} ({cost['per_hour']:.2f}{unit} per hour)"
