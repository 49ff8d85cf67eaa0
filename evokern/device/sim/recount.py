"""Correction of a prediction if uncounted blocks of the full-size problem do more work than the counted blocks.

The blocks that a prediction counts are at predictable places, so a source could do its work in other blocks. The check
on the full-size problem runs random blocks or all blocks, and reports their total number of instructions. If they
exceed the prediction, blocks at random places are counted with the inputs of that check. The slower prediction then
counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evokern.device.sim.predict import Predicted
from evokern.simt.time_model import EQUAL_WORK_RATIO, Prediction, total

RECOUNTED = 32
"""Number of blocks of a launch to recount. If a quarter of a grid does all the work, the sample misses it with a
probability of 0.75^32 = 1e-4."""


@dataclass(frozen=True)
class Ran:
    """Instructions that some blocks of a launch executed on the full-size problem."""

    launch: int
    """Index of the launch in the call."""
    blocks: tuple[int, ...] | None
    """The blocks; None for all."""
    warp_instructions: int
    """Warp instructions of all these blocks together."""

    def surplus(self, predicted: Predicted) -> float:
        """Return the ratio of issued to predicted instructions."""
        return self.warp_instructions / max(predicted.launches[self.launch].expected(self.blocks), 1.0)


def is_short(predicted: Predicted, ran: Sequence[Ran]) -> bool:
    """Return whether blocks did more work than predicted, beyond the variation of equal blocks."""
    return any(one.surplus(predicted) > EQUAL_WORK_RATIO for one in ran)


def slower(predicted: Predicted, recounted: Predicted, ran: Sequence[Ran]) -> Predicted:
    """Return the slower of two predictions, together with any error in the results of the randomly chosen blocks.

    Args:
        predicted: prediction from blocks at known places.
        recounted: prediction from blocks at random places.
        ran: work of the blocks. If all blocks of a launch ran, its time grows at least in proportion to its work.
    """
    launches = []
    for number, (before, after) in enumerate(zip(predicted.launches, recounted.launches, strict=True)):
        whole = [one for one in ran if one.launch == number and one.blocks is None]
        held = before.prediction
        if after.expected(None) > EQUAL_WORK_RATIO * before.expected(None) or is_short(predicted, whole):
            scale = max([1.0, *(one.surplus(recounted) for one in whole)])
            held = max(held, _scaled(after.prediction, scale), key=lambda one: one.time_us)
        launches.append(replace(after, prediction=held))
    times = [one.prediction for one in launches]
    if times == [one.prediction for one in predicted.launches]:
        return replace(predicted, sampled=recounted.sampled)
    return replace(recounted, total=total((*times, *recounted.fills)), launches=tuple(launches))


def _scaled(prediction: Prediction, scale: float) -> Prediction:
    """Return the prediction of a launch with `scale` times the work."""
    terms = {name: time if name == "launch" else time * scale for name, time in prediction.terms_us.items()}
    return Prediction(prediction.time_us * scale, terms)
