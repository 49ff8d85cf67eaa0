"""The verdict of a search's control on its sampler, in words, and what the search cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

TIE = 0.01
"""Share of a time within which neither arm is said to be better: the playoff's margin of equivalence."""


def control_verdict(control: Mapping[str, Any], unit: str, format_time: Callable[[float], str]) -> str:
    """Return what the control says of the sampler.

    Args:
        control: the object `control` of `show --json`.
        unit: of times, as text.
        format_time: writes a time in µs.
    """
    searched, drawn = control["arms"]
    sampler, ratio = searched["sampler"], control["advantage"]
    if ratio is None:
        if searched["best_us"] is not None and drawn["evaluated"]:
            evaluated = drawn["evaluated"]
            none = f"none of the {evaluated} random trials was" if evaluated > 1 else "the one random trial was not"
            return f"{sampler} is ahead: {none} timed to the end"
        silent = [arm["sampler"] for arm in (searched, drawn) if arm["best_us"] is None]
        return f"{' and '.join(silent)} measured nothing yet, so the two cannot be compared"
    sampler_time, random_time = f"{format_time(searched['best_us'])} {unit}", f"{format_time(drawn['best_us'])} {unit}"
    if ratio > 1 + TIE:
        matched = searched["matched_after"]["evaluated"]
        # The first candidate is the kernel's default or a warm start: somebody's knowledge, not the sampler's work.
        when = "with its first candidate" if matched == 1 else f"after {matched}"
        return (
            f"{sampler} earned its keep: {sampler_time} is {ratio:.2f}× as fast as random search's {random_time} "
            f"after {drawn['evaluated']} evaluated trials; {sampler} had that {when}"
        )
    if ratio < 1 - TIE:
        return f"{sampler} did not earn its keep: random search found {random_time}, {sampler} {sampler_time}"
    when = f"after {searched['best_after']['evaluated']} and {drawn['best_after']['evaluated']} evaluated trials"
    return f"a tie: {sampler} found {sampler_time}, random search {random_time}, {when}"


def price(cost: Mapping[str, Any]) -> str:
    """Return what a search cost.

    Args:
        cost: the object `cost` of `show --json`.
    """
    unit = f" {cost['unit']}" if cost["unit"] else ""
    return f"{cost['total']:.2f}{unit} ({cost['per_hour']:.2f}{unit} an hour)"
