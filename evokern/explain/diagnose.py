"""Why a candidate crashes on a GPU: the same launch on the simulated device, where every access is checked.

A GPU says "misaligned address" and no more. The small problems of the kernel are run whole with every check on; where
they are clean, a sample of the blocks of the problem itself follows, of which only what would end a launch counts,
since the other blocks' work is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evokern import simt
from evokern.compile.nvrtc import compile_ptx
from evokern.compile.records import CompileFailure
from evokern.device._sim_problems import gate_problems
from evokern.errors import UsageError
from evokern.explain.sanitize import draw_buffers, run_launch, sanitize_kernel
from evokern.feasibility import launches_of
from evokern.kernel import Kernel, Problem
from evokern.profiles import Profile
from evokern.render import render
from evokern.simt import Finding
from evokern.simt.findings import FATAL
from evokern.simt.timemodel import sample_blocks
from evokern.space import Config

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
    """The problem at which it showed."""
    certain: bool
    """Whether it is a defect that ends a launch on a GPU; otherwise it may only be related."""


def diagnose(
    kernel: Kernel, config: Config, problem: Problem, profile: Profile, limit: int = INSTRUCTION_LIMIT
) -> Diagnosis | None:
    """Return what a candidate that crashed does wrong, None where the simulator finds nothing or cannot run it.

    Args:
        kernel: the kernel.
        config: the candidate.
        problem: the problem at which it crashed.
        profile: the chip.
        limit: warp instructions of a launch after which the search for a cause is given up.
    """
    seen: list[tuple[Finding, Problem]] = []
    for small in gate_problems(kernel, config, [problem], profile):
        try:
            found = sanitize_kernel(kernel, config, [small], profile, limit).findings
        except UsageError:  # an instruction that the simulator does not execute, a compile that fails
            return None
        seen += [(finding, small) for finding in found]
        if any(finding.kind in FATAL for finding in found):
            break
    if not any(finding.kind in FATAL for finding, _ in seen):
        seen += [(finding, problem) for finding in _sampled(kernel, config, problem, profile, limit)]
    # A limit that was hit says nothing about a crash.
    seen = [(finding, where) for finding, where in seen if finding.kind != "instruction_limit"]
    if not seen:
        return None
    finding, where = next(((f, p) for f, p in seen if f.kind in FATAL), seen[0])
    return Diagnosis(sentence(finding), finding.as_dict(), str(where), finding.kind in FATAL)


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
    """Run a sample of the blocks of the first launch of the problem itself; return what would end the launch."""
    from evokern.compile.build import tensors_of
    from evokern.device._sim_arguments import launch_arguments

    launch = launches_of(kernel, config, problem)[0]
    rendered = render(kernel, config, problem)
    program = compile_ptx(
        rendered.source, rendered.name, rendered.headers, rendered.options, rendered.entries, profile.compute_capability
    )
    if isinstance(program, CompileFailure):
        return []
    try:
        module = simt.parse(program.ptx, source_name=rendered.name, headers=rendered.headers)
        memory = simt.Memory()
        args = launch_arguments(launch, draw_buffers(memory, tensors_of(kernel, config, problem)))
        blocks = sample_blocks(launch.blocks, SAMPLED_BLOCKS)
        result = run_launch(module, program.lowered[launch.entry], launch, args, memory, rendered.source, limit, blocks)
    except UsageError:
        return []
    return [finding for finding in result.findings if finding.kind in FATAL]
