"""How well the time model predicts what a GPU measured: run as a script on databases of searches on that GPU.

    python tests/scripts/model_accuracy.py runs.db                        # every study in it that was measured
    python tests/scripts/model_accuracy.py runs.db:attention-s512 b.db --chip h200 --json
    python tests/scripts/model_accuracy.py runs.db --within KV_LOAD=cp_async --blocks 3

Every candidate that a study measured to the end is predicted for the chip, on all cores; neither the gate nor a GPU
takes part. For each study it prints the rank correlation over all candidates and among those of one value of a gene,
the median error, and how far the best of the five predicted fastest stays behind the best measured. Candidates are
fair where they were drawn at random and no race cut the slow ones short; some of them take a minute to count, for
which a study's own limit on instructions is too low (`INSTRUCTIONS`):

    evokern search attention-s512 --fresh --trials 200 --db runs.db    # with sampler.name = "random", timing.race = 0

Exit code 1 when a bar is missed (`BARS`), 0 when all are held.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import helpers_path  # noqa: F401 (finds the helpers)
import numpy as np
from ranking import Ranking
from scipy.stats import spearmanr

from evokern.analysis.candidates import chip_of
from evokern.hardware.profiles import chip
from evokern.search.identity import problems_of, study_of
from evokern.search.stored_kernel import stored_kernel
from evokern.store import Reader, StudyRecord, open_readonly
from evokern.study.trial import Outcome, Trial

WITHIN = "TENSOR_CORES=mma_sync"
"""Gene and value among whose candidates the model has to rank as well."""
INSTRUCTIONS = 600_000_000
"""Warp instructions of a launch after which a candidate is given up: thousands of µs on a GPU stay below."""
TOP = 5
"""Predicted fastest candidates, the best of which is compared with the best measured."""
FEWEST = 3
"""Candidates below which a rank correlation says nothing."""
BARS = {"spearman": 0.80, "spearman_within": 0.65, "median_error": 0.35, "top_behind": 0.03}
"""What is asked of the model: at least, at least, at most, at most."""


@dataclass(frozen=True)
class Accuracy:
    """Predicted against measured times of some candidates."""

    candidates: int
    """How many were measured."""
    unpredicted: int
    """How many of them the PTX machine did not run to the end."""
    spearman: float
    """Rank correlation over all."""
    within: int
    """Candidates with the value asked for."""
    spearman_within: float
    """Rank correlation among them."""
    median_error: float
    """Median of |predicted / measured - 1|."""
    top_behind: float
    """Best measured time of the `TOP` predicted fastest over the best measured, less 1."""

    def missed(self) -> list[str]:
        """Return the bars that are not held; what could not be computed is none of them."""
        least = [name for name in ("spearman", "spearman_within") if getattr(self, name) < BARS[name]]
        return least + [name for name in ("median_error", "top_behind") if getattr(self, name) > BARS[name]]


def accuracy(measured: Sequence[float], predicted: Sequence[float | None], inside: Sequence[bool]) -> Accuracy:
    """Compare times.

    Args:
        measured: one time per candidate.
        predicted: the same, None where there is none.
        inside: whether each candidate belongs to those that are ranked by themselves too.
    """
    known = np.array([time is not None for time in predicted], np.bool_)
    real = np.array(measured, np.float64)[known]
    model = np.array([time for time in predicted if time is not None], np.float64)
    chosen = np.array(inside, np.bool_)[known]
    fastest = np.argsort(model, kind="stable")[:TOP]
    return Accuracy(
        len(measured),
        int(np.count_nonzero(~known)),
        _rank(real, model),
        int(np.count_nonzero(chosen)),
        _rank(real[chosen], model[chosen]),
        float(np.median(np.abs(model / real - 1))) if real.size else math.nan,
        float(real[fastest].min() / min(measured) - 1) if real.size else math.nan,
    )


def _rank(real: np.ndarray, model: np.ndarray) -> float:
    return float(spearmanr(real, model).statistic) if real.size >= FEWEST else math.nan


def measured_trials(reader: Reader, record: StudyRecord) -> list[Trial]:
    """Return the trials of a study that were timed to the end, one per program."""
    return [trial for trial in reader.trials(record) if trial.evaluation.outcome is Outcome.MEASURED]


def judged(
    path: Path, name: str | None, chip_name: str | None, within: str, blocks: int | None
) -> Iterator[tuple[StudyRecord, Accuracy]]:
    """Yield the accuracy at each study of a database that a GPU measured.

    Raises:
        UsageError: there is no such study or chip, or the kernel's code is not to be had.
    """
    gene, _, value = within.partition("=")
    with open_readonly(path) as reader:
        for record in [reader.study(name)] if name else [one for one in reader.studies() if not one.predicted]:
            trials = measured_trials(reader, record)
            study = study_of(record)
            counting = replace(
                study.simulation, instruction_limit=INSTRUCTIONS, blocks=blocks or study.simulation.blocks
            )
            study = replace(study, simulation=counting)
            profile = chip(chip_name) if chip_name else chip_of(record.device, reader.sessions(record))
            with tempfile.TemporaryDirectory(prefix="evokern-") as scratch:
                kernel = stored_kernel(reader, record, record.kernel_digest, Path(scratch), trust=True)
                with Ranking(kernel, problems_of(study, kernel), study, profile) as ranking:
                    predicted = ranking.predict([trial.config for trial in trials])
            inside = [str(trial.config.get(gene)) == value for trial in trials]
            yield record, accuracy([trial.evaluation.time_us or math.nan for trial in trials], predicted, inside)


def main(arguments: Sequence[str]) -> int:
    """Print one line, or one JSON object, per study; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("databases", nargs="+", metavar="DB[:STUDY]")
    parser.add_argument("--chip", help="chip to predict for (default: the one each study ran on)")
    parser.add_argument("--within", default=WITHIN, metavar="GENE=VALUE", help="(default: %(default)s)")
    parser.add_argument("--blocks", type=int, help="blocks counted of each candidate (default: the study's)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    missed = False
    for word in options.databases:
        path, _, name = word.partition(":")
        began = time.monotonic()
        for record, found in judged(Path(path), name or None, options.chip, options.within, options.blocks):
            missed |= bool(found.missed())
            seconds, began = time.monotonic() - began, time.monotonic()
            where = {"study": record.name, "problems": list(record.problems), "seconds": round(seconds, 1)}
            if options.json:
                print(json.dumps({**where, **asdict(found), "missed": found.missed()}), flush=True)
                continue
            print(
                f"{record.name} at {'; '.join(record.problems)}: {found.candidates} candidates "
                f"({found.unpredicted} not predicted) in {seconds:.0f} s\n"
                f"  Spearman {found.spearman:.3f} over all, {found.spearman_within:.3f} among {found.within} with "
                f"{options.within}\n"
                f"  median error {found.median_error:.1%}; best of the {TOP} predicted fastest {found.top_behind:+.1%} "
                f"behind the best measured\n"
                f"  {'missed: ' + ', '.join(found.missed()) if found.missed() else 'all bars held'}",
                flush=True,
            )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
