"""Why a candidate crashes or hangs on a GPU: the same launch on the simulated device, where every access is checked.

A GPU says "misaligned address" and no more. The small problems of the kernel are run whole with every check on; where
they are clean, a sample of the blocks of the problem itself follows, of which only what would end a launch counts,
since the other blocks' work is missing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evokern import simt
from evokern.analysis.sanitize.candidate import run_launch, sanitize_kernel
from evokern.compile.records import CompileFailure
from evokern.declaration.feasibility import launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.render import render
from evokern.declaration.small_problems import gate_problems
from evokern.device.sim.program import compile_simulated
from evokern.errors import UsageError
from evokern.hardware.profiles import Profile
from evokern.search.diagnosis import DiagnosisJob
from evokern.simt import Finding
from evokern.simt.sanitizer.findings import FATAL
from evokern.simt.sanitizer.hang import REPEATS
from evokern.study.discovery import WorkerContext

INSTRUCTION_LIMIT = 5_000_000
"""Warp instructions of a launch: about a second, and the next trial is worth more than a longer search for a cause."""
SAMPLED_BLOCKS = 6
"""Blocks of the problem itself that are run: the first, the last, and some between."""


@dataclass(frozen=True)
class Diagnosis:
    """What a candidate does wrong."""

    sentence: str
    """Kind, line with its text, block and thread, memory, usual cause: for the trial's record."""
    finding: dict[str, Any]
    """The finding as `sanitize --json` prints it."""
    problem: str
    """The key of the problem at which it showed."""
    certain: bool
    """Whether it is a defect that ends a launch on a GPU; otherwise it may only be related."""


class DiagnosisWorker:
    """Diagnoses candidates of a study in a process of its own, whenever nothing else wants the CPU."""

    def __init__(self, context: WorkerContext) -> None:
        os.nice(19)
        import torch  # imported after the line above, and kept to one core: both before the kernel's own import of it

        torch.set_num_threads(1)
        self._context, self._kernel = context, context.kernel()
        self.ready_report: dict[str, Any] = {}

    def handle(self, job: DiagnosisJob) -> Mapping[str, Any]:
        """Return the evidence that belongs on the candidate's record."""
        found: Diagnosis | None = None
        for problem in self._context.problems:
            here = diagnose(self._kernel, job.config, problem, self._context.profile, hung=job.hung)
            found = here if found is None or (here is not None and here.certain) else found
            if found is not None and found.certain:
                break
        if found is None:
            return {"undiagnosed": "the simulated device finds nothing wrong with it, or cannot run it"}
        text = found.sentence if found.certain else f"perhaps {found.sentence}"
        return {"diagnosis": text, "finding": found.finding, "finding_problem": found.problem}


def diagnose(
    kernel: Kernel,
    config: Config,
    problem: Problem,
    profile: Profile,
    limit: int = INSTRUCTION_LIMIT,
    *,
    hung: bool = False,
) -> Diagnosis | None:
    """Return what a candidate that failed does wrong, None where the PTX machine finds nothing or cannot run it.

    Args:
        kernel: the kernel.
        config: the candidate.
        problem: the problem at which it failed.
        profile: the chip.
        limit: warp instructions of a launch after which the search for a cause is given up.
        hung: it never ended, so a launch that does not end here either is an answer; otherwise it crashed.
    """
    # Where a crash is looked for, a limit that was hit says nothing.
    ignored = () if hung else ("instruction_limit",)
    ends = FATAL.difference(ignored)
    seen: list[tuple[Finding, Problem]] = []
    for small in gate_problems(kernel, config, [problem], profile):
        try:
            found = sanitize_kernel(kernel, config, [small], profile, limit).findings
        except UsageError:  # an instruction that the PTX machine does not execute, a compile that fails
            return None
        seen += [(finding, small) for finding in found if finding.matters and finding.kind not in ignored]
        if any(finding.kind in ends for finding in found):
            break
    if not any(finding.kind in ends for finding, _ in seen):
        seen += [(finding, problem) for finding in _sampled(kernel, config, problem, profile, limit)]
    if not seen:
        return None
    finding, where = next(((f, p) for f, p in seen if f.kind in ends), seen[0])
    # A launch may pass the limit because it is long.
    certain = finding.kind in ends and (finding.kind != "instruction_limit" or REPEATS in finding.hint)
    return Diagnosis(sentence(finding), finding.as_dict(), where.key, certain)


def sentence(finding: Finding) -> str:
    """Return a finding in one sentence."""
    text = f" ({finding.source})" if finding.source else ""
    block, thread = (",".join(map(str, at)) for at in (finding.block, finding.thread))
    memory = f", {finding.allocation} byte {finding.offset}" if finding.allocation else ""
    return (
        f"{finding.kind.replace('_', ' ')} at {finding.place}{text}, first in block {block}, thread {thread}{memory}. "
        f"{finding.hint}"
    )


def _sampled(kernel: Kernel, config: Config, problem: Problem, profile: Profile, limit: int) -> list[Finding]:
    """Run a sample of the blocks of the first launch of the problem itself; return what would end the launch.

    That a block does not end where others are missing says nothing: it may wait for them.
    """
    from evokern.compile.build import tensors_of
    from evokern.device.sim.arguments import draw_buffers

    launch = launches_of(kernel, config, problem)[0]
    rendered = render(kernel, config, problem)
    try:
        program = compile_simulated(rendered, profile)
        if isinstance(program, CompileFailure):
            return []
        memory = simt.Memory()
        buffers = draw_buffers(memory, tensors_of(kernel, config, problem))
        blocks = program.sample_blocks(launch, SAMPLED_BLOCKS)
        result = run_launch(program, launch, buffers, memory, limit, blocks)
    except UsageError:
        return []
    return [finding for finding in result.findings if finding.kind in FATAL - {"instruction_limit"}]
