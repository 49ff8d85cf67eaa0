"""The parity kernels as a GPU runs them; run as a script on a machine with an H200, it records what they answer there.

    PYTHONPATH=tests/helpers python tests/simt/record_parity.py

writes `data/parity/h200.json`: a hash of every row that a GPU must reproduce bit by bit.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from gpu_launcher import Job, launch_all
from parity_tools import PARITY, Case, cases, fingerprint, program_of

from evokern.hardware.driver import probe


def architecture() -> str:
    """Return the first GPU's architecture, for example ``sm_90``."""
    major, minor = probe().gpus[0].compute_capability
    return f"sm_{major}{minor}"


def job_of(case: Case) -> Job:
    """Return a case for the GPU: the machine code of the same compile whose PTX is simulated."""
    program = program_of(case.file, architecture())
    symbol = program.lowered[case.entry]
    return Job(case.name, program.cubin, symbol, (case.grid, 1, 1), (case.block, 1, 1), tuple(case.buffers()))


def record(folder: Path) -> dict[str, dict[str, str]]:
    """Return the hashes of every exactly defined row, as this GPU gives them."""
    known = cases()
    given, _ = launch_all([job_of(case) for case in known], folder)
    found: dict[str, dict[str, str]] = {}
    for case, answer in zip(known, given, strict=True):
        marks = {name: fingerprint(case, name, kind, row) for name, kind, row in case.results(list(answer.buffers))}
        found[case.name] = {name: mark for name, mark in marks.items() if mark}
    return {name: marks for name, marks in found.items() if marks}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (PARITY / "h200.json").write_text(json.dumps(record(Path(folder)), indent=1) + "\n")


if __name__ == "__main__":
    main()
