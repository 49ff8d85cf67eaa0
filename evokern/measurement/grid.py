"""How well the grid of a launch fills the chip, as part of the verdict on its speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evokern.study.trial import Resources

LOW_SHARE = 0.25
"""Share of the roofline bound below which a time gets a note."""
TAIL_LOSS = 0.2
"""Fraction of the chip's time that is idle because of the last wave, above which a grid gets a note."""


def grid_facts(resources: Sequence[Resources], share: float | None) -> dict[str, Any]:
    """Return how a candidate's largest launch fills the chip, as JSON values.

    Args:
        resources: resources of the candidate's launches.
        share: the roofline bound divided by the candidate's time; None if it is unknown.

    Returns:
        `blocks` of the launch, `sms` of the chip, `resident` blocks that run at once (all None if unknown), and
        `note`: what is wrong with the grid or the time, with the remedy; empty if nothing is.
    """
    largest = max(resources, key=lambda one: one.blocks, default=None)
    known = largest is not None and largest.sms > 0
    notes = [_fill(largest.blocks, largest.sms, largest.resident)] if largest is not None and known else []
    if share is not None and share < LOW_SHARE:
        notes.append(
            f"the time reaches only {100 * share:.2g} % of the roofline bound; `evokern profile` names the bottleneck"
        )
    return {
        "blocks": largest.blocks if largest is not None and known else None,
        "sms": largest.sms if largest is not None and known else None,
        "resident": largest.resident if largest is not None and known else None,
        "note": "; ".join(filter(None, notes)),
    }


def _fill(blocks: int, sms: int, resident: int) -> str:
    """Return why a grid leaves a part of the chip idle, with the remedy; empty if it fills the chip."""
    if blocks < sms:
        count = "1 block uses 1" if blocks == 1 else f"{blocks} blocks use {blocks}"
        return f"{count} of {sms} SMs; raise the grid (smaller tiles, or several blocks for one tile)"
    # Without residency, an SM is the unit: the busiest SM determines the time.
    unit = resident if blocks > resident > 0 else sms
    waves, rest = divmod(blocks, unit)
    if not rest or 1 - blocks / (unit * (waves + 1)) <= TAIL_LOSS or 2 * rest > unit:
        return ""
    remedy = f"choose tiles that make the grid at most {waves * unit} blocks, or nearly {(waves + 1) * unit}"
    if unit == sms:
        return f"{blocks} blocks give {rest} of {sms} SMs {waves + 1} blocks each and the others {waves}; {remedy}"
    return f"{blocks} blocks run in waves of {unit}, and the last wave has only {rest}; {remedy}"
