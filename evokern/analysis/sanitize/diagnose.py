"""Diagnosis of crashes and hangs: repeat the launch on the simulated device and check every memory access.

A GPU reports only "misaligned address". The diagnosis first runs the kernel's small problems completely with all
checks. If they have no findings, it runs some blocks of the full-size problem. There, only findings that end a launch
count, because the results of other blocks are missing.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
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
from evokern.simt import FATAL, UNFINISHED, Finding
from evokern.study.discovery import WorkerContext

INSTRUCTION_LIMIT = 5_000_000
"""Maximum number of warp instructions of a launch, about a second; longer diagnoses would delay the search."""
SAMPLED_BLOCKS = 6
"""Number of blocks of the full-size problem to run: the first, the last and some in between."""


@dataclass(frozen=True)
class Diagnosis:
    """Cause of a candidate's crash or hang."""

    sentence: str
    """Text for the trial's record: kind, source line, block and thread, memory, usual cause."""
    finding: dict[str, Any]
    """The finding as printed by `sanitize --json`."""
    problem: str
    """Key of the problem with the finding."""
    certain: bool
    """Whether the finding ends a launch on a GPU; otherwise it may be unrelated."""


class DiagnosisWorker:
    """Worker process that diagnoses a study's candidates at the lowest CPU priority."""

    def __init__(self, context: WorkerContext) -> None:
        os.nice(19)
        import torch  # after lowering the priority, and before the kernel imports it; limited to one core

        torch.set_num_threads(1)
        self._context, self._kernel = context, context.kernel()
        self.ready_report: dict[str, Any] = {}

    def handle(self, job: DiagnosisJob) -> Mapping[str, Any]:
        """Diagnose a candidate and return the evidence for its trial."""
        found: Diagnosis | None = None
        for problem in self._context.problems:
            here = diagnose(self._kernel, job.config, problem, self._context.profile, hung=job.hung)
            found = here if found is None or (here is not None and here.certain) else found
            if found is not None and found.certain:
                break
        if found is None:
            return {"undiagnosed": "the simulated device has no findings, or cannot run the candidate"}
        text = found.sentence if found.certain else f"possibly {found.sentence}"
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
    """Return the cause of a crash or hang, or None if the simulator finds none or cannot run the candidate.

    Args:
        kernel: the kernel.
        config: the failed candidate.
        problem: the problem on which the candidate failed.
        profile: the chip.
        limit: warp instructions after which a launch is stopped.
        hung: whether the candidate hung; then reaching the limit is a finding. Otherwise it crashed.
    """
    # Reaching the instruction limit does not explain a crash.
    ignored = () if hung else (UNFINISHED, "instruction_limit")
    ends = FATAL.difference(ignored)
    seen: list[tuple[Finding, Problem]] = []
    for small in gate_problems(kernel, config, [problem], profile):
        try:
            found = sanitize_kernel(kernel, config, [small], profile, limit).findings
        except UsageError:  # an unsupported instruction or a failed compile
            return None
        seen += [(finding, small) for finding in found if _explains(finding, ignored)]
        if any(finding.kind in ends for finding in found):
            break
    if not any(finding.kind in ends for finding, _ in seen):
        seen += [(finding, problem) for finding in _sampled(kernel, config, problem, profile, limit)]
    if not seen:
        return None
    finding, where = next(((f, p) for f, p in seen if f.kind in ends), seen[0])
    certain = finding.kind in ends - {UNFINISHED}
    return Diagnosis(finding_text(finding), finding.as_dict(), where.key, certain)


def _explains(finding: Finding, ignored: Collection[str]) -> bool:
    """Return whether a finding may explain a failed launch."""
    return (finding.matters or finding.kind == UNFINISHED) and finding.kind not in ignored


def finding_text(finding: Finding) -> str:
    """Return a finding as text for a trial's record."""
    text = f" ({finding.source})" if finding.source else ""
    block, thread = (",".join(map(str, at)) for at in (finding.block, finding.thread))
    memory = f", {finding.allocation} byte {finding.offset}" if finding.allocation else ""
    return (
        f"{finding.kind.replace('_', ' ')} at {finding.place}{text}, first in block {block}, thread {thread}{memory}. "
        f"{finding.hint}"
    )


def _sampled(kernel: Kernel, config: Config, problem: Problem, profile: Profile, limit: int) -> list[Finding]:
    """Run some blocks of the full-size problem's first launch and return the findings that end a launch.

    Endless and long loops do not count, because a block may wait for blocks that do not run.
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
    return [finding for finding in result.findings if finding.kind in FATAL - {UNFINISHED, "instruction_limit"}]
