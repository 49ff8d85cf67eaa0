"""A prediction held against what ran at the study's own problem: work outside of the counted blocks counts too.

The blocks that a prediction counts stand at places that anybody can work out, so that a source could leave its work to
the others. Blocks that the check at the study's own problem runs are drawn from the study's secret, or are all there
are, and how many instructions they issue is known without counting them one by one. Where that is more than the
prediction says, blocks at drawn places are counted, with the inputs of that check, and the slower prediction holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evokern.device.sim.predict import Predicted
from evokern.simt.time_model.placement import EVEN
from evokern.simt.time_model.prediction import Prediction, total

RECOUNTED = 32
"""Blocks of a launch that are counted once more: a quarter of a grid that does all the work is missed with a chance of
0.75^32 = 1e-4."""


@dataclass(frozen=True)
class Ran:
    """What blocks of a launch took at the study's own problem."""

    launch: int
    """Which launch of the call."""
    blocks: tuple[int, ...] | None
    """Which blocks; None for all."""
    warp_instructions: int
    """What they issued together."""

    def surplus(self, predicted: Predicted) -> float:
        """Return what they issued ÷ what a prediction takes them to issue."""
        return self.warp_instructions / max(predicted.launches[self.launch].expected(self.blocks), 1.0)


def is_short(predicted: Predicted, ran: Sequence[Ran]) -> bool:
    """Tell whether blocks did more than a prediction takes them to do, by more than equal blocks differ."""
    return any(one.surplus(predicted) > EVEN for one in ran)


def slower(predicted: Predicted, recounted: Predicted, ran: Sequence[Ran]) -> Predicted:
    """Return the prediction that holds, with what is wrong with the results of the blocks at drawn places.

    Args:
        predicted: from the blocks at known places.
        recounted: from blocks at drawn places.
        ran: what blocks did; launches of which all ran are not predicted faster than in proportion to their work.
    """
    launches = []
    for number, (before, after) in enumerate(zip(predicted.launches, recounted.launches, strict=True)):
        whole = [one for one in ran if one.launch == number and one.blocks is None]
        held = before.prediction
        if after.expected(None) > EVEN * before.expected(None) or is_short(predicted, whole):
            scale = max([1.0, *(one.surplus(recounted) for one in whole)])
            held = max(held, _scaled(after.prediction, scale), key=lambda one: one.time_us)
        launches.append(replace(after, prediction=held))
    times = [one.prediction for one in launches]
    if times == [one.prediction for one in predicted.launches]:
        return replace(predicted, sampled=recounted.sampled)
    return replace(recounted, total=total((*times, *recounted.fills)), launches=tuple(launches))


def _scaled(prediction: Prediction, scale: float) -> Prediction:
    """Return the prediction of a launch that works so many times as long."""
    terms = {name: time if name == "launch" else time * scale for name, time in prediction.terms_us.items()}
    return Prediction(prediction.time_us * scale, terms)
