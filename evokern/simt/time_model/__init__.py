"""Model of the execution time of launches on a chip, from the events that the PTX machine counted."""

from evokern.simt.time_model.latencies import latencies_of
from evokern.simt.time_model.pipes import PipeUse, demands, holds
from evokern.simt.time_model.placement import (
    EQUAL_WORK_RATIO,
    are_equal,
    block_runs,
    extrapolated,
    line_blocks,
    predicts_samples,
)
from evokern.simt.time_model.prediction import (
    CAUSES,
    DRAM_REACH,
    ISSUE_PER_CLOCK,
    LaunchFacts,
    Prediction,
    block_clocks,
    contention_factor,
    predict,
    predict_memset,
    sample_blocks,
    total,
    work_of,
)
from evokern.simt.time_model.timeline import Timeline

__all__ = [
    "CAUSES", "DRAM_REACH", "EQUAL_WORK_RATIO", "ISSUE_PER_CLOCK", "LaunchFacts", "PipeUse", "Prediction", "Timeline",
    "are_equal", "block_clocks", "block_runs", "contention_factor", "demands", "extrapolated", "holds", "latencies_of",
    "line_blocks", "predict", "predict_memset", "predicts_samples", "sample_blocks", "total", "work_of",
]  # fmt: skip
