"""What the PTX machine computes and reports is what a GPU computes and compute-sanitizer reports."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import parity_gate
import pytest
from gpu_launcher import Answer, launch_all
from gpu_tools import Complaint, defect_job, find_tool, sanitize
from parity_candidates import CANDIDATES, RELATIVE_ERROR, Candidate, all_candidates
from parity_tools import Case, cases, described, different, simulate
from record_parity import architecture, job_of
from simt_tools import Defect, defects

from evokern.hardware.driver import probe

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]

CASES = cases()
GATES = int(os.environ.get("EVOKERN_PARITY_CANDIDATES", "24"))
"""Random candidates whose gates are compared."""
SEED = int(os.environ.get("EVOKERN_PARITY_SEED", "0"))


# ----------------------------------------------------------------------------------------------------------- outputs


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """Every parity case on the GPU, in one process."""
    if probe().gpus[0].compute_capability < (9, 0):
        pytest.skip("the parity kernels use stmatrix and conversions that chips before sm_90 lack")
    given, _ = launch_all([job_of(case) for case in CASES], tmp_path_factory.mktemp("parity"))
    return {case.name: answer for case, answer in zip(CASES, given, strict=True)}


@pytest.mark.parametrize("case", [case for case in CASES if case.same != "printed"], ids=lambda case: case.name)
def test_kernels_give_the_same(case: Case, answers: dict[str, Answer]) -> None:
    """Integers and exactly rounded operations agree bit by bit, all others within the ISA's bounds."""
    assert answers[case.name].error == ""
    _, after = simulate(case, case.buffers())
    wrong = []
    rows = zip(case.results(after), case.results(list(answers[case.name].buffers)), strict=True)
    for (name, kind, expected), (_, _, got) in rows:
        places = different(case, name, kind, expected, got)
        if places.size:
            wrong.append(described(case, name, kind, places, expected, got))
    assert wrong == [], "\n".join(wrong)


def test_printf_prints_the_same(tmp_path: Path) -> None:
    """Device printf gives the text that the GPU's driver gives."""
    case = next(case for case in CASES if case.same == "printed")
    _, text = launch_all([job_of(case)], tmp_path)
    result, _ = simulate(case, case.buffers())
    assert result.printed == text


@pytest.fixture(scope="module")
def candidate_answers(tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    """The repository's kernels on the GPU."""
    jobs = [job for candidate in all_candidates(architecture()) for job in candidate.jobs()]
    return launch_all(jobs, tmp_path_factory.mktemp("candidates"))[0]


@pytest.mark.parametrize("number", range(len(CANDIDATES)), ids=lambda n: f"{CANDIDATES[n][0]}-{n}")
def test_own_kernels_give_the_same(number: int, candidate_answers: list[Answer]) -> None:
    """Outputs of attention, matmul, rmsnorm and scale_rows agree within the last bits that summation may change."""
    candidate, answer = all_candidates(architecture())[number], candidate_answers[number]
    assert answer.error == ""
    result, expected = candidate.simulate()
    assert result.findings == ()
    got = candidate.output(answer.buffers)
    for name in (item for item in expected if item in ("o", "c", "y")):
        wide = expected[name].astype(np.float64)
        error = np.linalg.norm(got[name].astype(np.float64) - wide) / np.linalg.norm(wide)
        assert error <= RELATIVE_ERROR[CANDIDATES[number][0]]


# --------------------------------------------------------------------------------------------------------- sanitizer

needs_sanitizer = pytest.mark.skipif(
    find_tool("compute-sanitizer") is None, reason="compute-sanitizer is not installed"
)
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
Runs = dict[str, Future[tuple[list[Complaint], str]]]


@lru_cache(maxsize=1)
def _defects() -> tuple[Defect, ...]:
    return tuple(defects())


COVERED = tuple(defect for defect in _defects() if defect.tool)


def is_misread(candidate: Candidate) -> bool:
    """Tell whether racecheck cannot follow a candidate: it does not see that bar.arrive orders what came before it."""
    config = candidate.config
    return config.get("WARP_ROLES") == "loaders" or config.get("EPILOGUE") == "store_warps"


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """All runs of compute-sanitizer, started at once: a process a defect, one a tool for the clean kernels."""
    folder, chip = tmp_path_factory.mktemp("sanitizer"), architecture()
    twins = [defect_job(d.name, d.source, d, True, chip) for d in _defects() if d.runs_on(chip)]
    own = all_candidates(chip)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        runs: Runs = {}
        for tool in TOOLS:
            jobs = [job for c in own for job in c.jobs() if tool != "racecheck" or not is_misread(c)]
            runs[f"own {tool}"] = pool.submit(sanitize, tool, jobs, folder / f"own-{tool}")
            runs[f"twins {tool}"] = pool.submit(sanitize, tool, twins, folder / f"twins-{tool}")
        for d in COVERED:
            # racecheck sees a race in the order that a run happens to take: of 64 runs of two groups none once had it
            jobs = [defect_job(d.name, d.source, d, False, chip)] * (256 if d.tool == "racecheck" else 1)
            runs[d.name] = pool.submit(sanitize, d.tool, jobs, folder / d.name)
        yield runs


@needs_sanitizer
@pytest.mark.parametrize("defect", COVERED, ids=lambda defect: defect.name)
def test_sanitizer_agrees_on_defects(defect: Defect, verdicts: Runs) -> None:
    """The tool that covers a defect's kind reports it too, at the line where the PTX machine does."""
    found, text = verdicts[defect.name].result()
    simulated = defect.run().findings[0]
    assert found, text
    if defect.kind not in ("trap", "assert"):  # the tool names no line of an assert, and the next one of a trap
        named = {line for complaint in found for line in complaint.lines}
        assert named & {simulated.line, simulated.other_line}, text


@needs_sanitizer
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("kind", ["twins", "own"])
def test_sanitizer_agrees_on_clean_kernels(kind: str, tool: str, verdicts: Runs) -> None:
    """The clean twin of every defect and the repository's kernels, on which the PTX machine is silent, are clean."""
    found, text = verdicts[f"{kind} {tool}"].result()
    assert found == [], text
    assert "0 errors" in text or "0 hazards" in text


# -------------------------------------------------------------------------------------------------------------- gates


@pytest.mark.timeout(480)
def test_gates_agree() -> None:
    """A random feasible candidate that passes the gate on the GPU passes it simulated, and the reverse.

    `EVOKERN_PARITY_CANDIDATES` sets how many are drawn, `EVOKERN_PARITY_SEED` which.
    """
    try:
        rows = parity_gate.compared("attention", "2,8,512,64", GATES, SEED)
    except LookupError as reason:
        pytest.skip(str(reason))
    assert len(rows) == GATES
    apart = [row for row in rows if bool(row["simulated"]) != bool(row["gpu"])]
    # Both draw their own inputs: a candidate that fails on about a third of them is wrong on one side now and then.
    assert [row for row in apart if not row["borderline"]] == []
    assert len(apart) <= max(1, GATES // 50), apart
