"""Do two searches with one seed make the same proposals and reach the same outcomes and times? Needs no GPU.

    python tests/scripts/seed_pairs.py [--study attention-s512] [--device sim:l4] [--seeds 1 2 3 4 5] [--trials 30]

Searches twice with each seed. On a simulated chip, all trials must be equal. A GPU measures times, which differ; there,
trials of one configuration must have the same verdict of the gate, so wrong and other trials are compared.
Prints one line for each pair and each difference, and exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import helpers_path  # noqa: F401 (finds the helpers)
from engine_helpers import trials_of

from evokern.study.trial import Outcome, Trial


def searched(arguments: argparse.Namespace, seed: int, folder: Path) -> list[Trial]:
    """Return the trials of one search, by number."""
    database = folder / "runs.db"
    command = [sys.executable, "-m", "evokern", "search", arguments.study, "--device", arguments.device]
    command += ["--seed", str(seed), "--trials", str(arguments.trials), "--budget", "1h", "--warm-start", "none"]
    command += ["--max-in-flight", "4", "--db", str(database), "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return sorted(trials_of(database), key=lambda trial: trial.number)


def as_row(trial: Trial) -> tuple[object, ...]:
    """Return what two searches on a simulated chip must agree on."""
    found = trial.evaluation
    return trial.config.key, trial.outcome.value, found.time_us, found.evidence.get("check"), found.reason


def differences(one: list[Trial], other: list[Trial], *, predicted: bool) -> list[str]:
    """Return a line for each difference."""
    if predicted:
        rows = [(a.number, as_row(a), as_row(b)) for a, b in zip(one, other, strict=False) if as_row(a) != as_row(b)]
        lines = [f"trial {number}: {a} and {b}" for number, a, b in rows]
        return lines + ([f"{len(one)} and {len(other)} trials"] if len(one) != len(other) else [])
    judged = {trial.config.key: trial for trial in one if trial.outcome in (Outcome.WRONG, Outcome.MEASURED)}
    pairs = [(judged[b.config.key], b) for b in other if b.config.key in judged]
    return [
        f"trials {a.number} and {b.number}: {a.outcome.value} ({a.evaluation.reason}) and {b.outcome.value}"
        for a, b in pairs
        if b.outcome in (Outcome.WRONG, Outcome.MEASURED) and a.outcome is not b.outcome
    ]


def main() -> int:
    """Search in pairs, and report differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", default="attention-s512")
    parser.add_argument("--device", default="sim:l4")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--trials", type=int, default=30)
    arguments = parser.parse_args()
    found = 0
    for seed in arguments.seeds:
        began = time.monotonic()
        pair = []
        for _ in range(2):
            with tempfile.TemporaryDirectory() as folder:
                pair.append(searched(arguments, seed, Path(folder)))
        lines = differences(*pair, predicted=arguments.device.startswith("sim:"))
        outcomes = ", ".join(sorted({trial.outcome.value for trial in pair[0]}))
        print(
            f"seed {seed}: {len(pair[0])} and {len(pair[1])} trials ({outcomes}), {len(lines)} differences, "
            f"{time.monotonic() - began:.0f} s",
            flush=True,
        )
        print(*(f"  {line[:400]}" for line in lines), sep="\n", end="\n" if lines else "")
        found += len(lines)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
