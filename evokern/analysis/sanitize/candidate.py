"""Sanitizer for a candidate of a kernel folder, with the report types and single launches.

`sanitize_file` runs kernels of plain CUDA files. Results are not compared with a reference, so a kernel without
findings may still compute wrong numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evokern import simt
from evokern.compile.module_state import state_evidence
from evokern.compile.records import CompileFailure
from evokern.declaration.feasibility import check, launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Launch, Problem
from evokern.declaration.render import render
from evokern.declaration.tensor import State
from evokern.device.sim.program import Arguments, SimulatedProgram, compile_simulated
from evokern.errors import DeviceError, SourceError, UsageError, suggestion
from evokern.hardware.profiles import CHIPS, Profile
from evokern.simt import (
    ERROR,
    NO_PATHS,
    REPEATS,
    UNFINISHED,
    Finding,
    Paths,
    WriteRecord,
    few_rounds,
    recording,
)

INSTRUCTION_LIMIT = 20_000_000
"""Number of warp instructions after which a launch is stopped, as in a study's `[simulation]`."""
MOST_BLOCKS = 1 << 20
"""Maximum number of blocks of a launch; more would take hours, and smaller grids show the same bugs."""
UNWRITTEN = "unwritten_output"
"""Kind of a finding about output elements that the launch did not write."""
KEPT_STATE = "kept_state"
"""Kind of a finding about module variables that a call changes."""
_UNWRITTEN_HINT = "No thread writes these elements: check the grid size, its rounding, and early returns."
_CHIPS = {"sm_80": "a100", "sm_89": "l4", "sm_90": "h200", "sm_90a": "h200"}


def chip_for_architecture(name: str) -> Profile:
    """Return a chip with the limits of an architecture.

    Args:
        name: `sm_80`, `sm_86`, `sm_89`, `sm_90` or `sm_90a`.

    Raises:
        DeviceError: the simulator does not support the architecture.
    """
    word = name.strip().lower()
    if word in _CHIPS:
        return CHIPS[_CHIPS[word]]
    if word == "sm_86":  # consumer Ampere: L4's limits except for resident blocks (CUDA Programming Guide)
        return replace(CHIPS["l4"], model="a GPU of sm_86", compute_capability=(8, 6), blocks_per_sm=16)
    known = (*_CHIPS, "sm_86")
    raise DeviceError(
        f"--arch {name!r} is not supported by the simulator: {suggestion(word, sorted(known))}; for an older or newer "
        "architecture, try the nearest supported architecture"
    )


@dataclass(frozen=True)
class SanitizedRun:
    """Result of the launches on one problem, or of the launch of a plain file."""

    title: str
    """Description of the run in one line."""
    findings: tuple[Finding, ...]
    """Findings, in order of occurrence."""
    completed: bool
    """Whether every thread finished."""
    printed: str = ""
    """Output of device printf."""
    paths: Paths = NO_PATHS
    """Paths that the threads took."""


@dataclass(frozen=True)
class SanitizeReport:
    """Result of sanitizing a kernel."""

    name: str
    """Name of the kernel."""
    file: str
    """Name of the source file."""
    sources: Mapping[str, str]
    """Source texts by header name as included; the main source under the empty name."""
    runs: tuple[SanitizedRun, ...]
    """Results of the runs."""
    remarks: tuple[str, ...] = field(default=())
    """Notes for the user about the launch."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of all runs, merged by kind, pair of lines and buffer, with summed counts."""
        groups: dict[tuple[object, ...], Finding] = {}
        for finding in (finding for run in self.runs for finding in run.findings):
            line = finding.line or finding.instruction or finding.hint  # for outputs, the hint names the problem
            key = (finding.kind, finding.file, line, finding.other_file, finding.other_line, finding.allocation)
            known = groups.get(key)
            count = finding.count + (known.count if known else 0)
            gravest = finding if known is None or not known.matters else known
            groups[key] = replace(gravest, count=count)
        return tuple(groups.values())

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that are errors, not warnings."""
        return tuple(finding for finding in self.findings if finding.matters)

    @property
    def over_limit(self) -> bool:
        """Whether a launch was stopped at the instruction limit, so that the rest of it was not checked."""
        return any(finding.kind == UNFINISHED for run in self.runs for finding in run.findings)

    @property
    def clean(self) -> bool:
        """Whether there are no findings."""
        return not any(run.findings for run in self.runs)

    def text(self, file: str, line: int) -> str:
        """Return a line of a user's source file without surrounding white space."""
        lines = self.sources.get(file, "").splitlines()
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    def as_dict(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        findings = self.findings
        errors = len(self.errors)
        return {
            "clean": self.clean,
            "errors": errors,
            "warnings": len(findings) - errors,
            "findings": [finding.as_dict() for finding in findings],
        }


def unwritten(record: WriteRecord, buffer: simt.Buffer, itemsize: int, level: str, where: str = "") -> Finding | None:
    """Return a finding about unwritten elements of an output, or None if all were written.

    Args:
        record: record of the writes.
        buffer: the output.
        itemsize: bytes of an element.
        level: level of the finding.
        where: text about the problem for the message.
    """
    missing = np.flatnonzero(~record.written(buffer, itemsize))
    if not missing.size:
        return None
    offset = int(missing[0]) * itemsize
    hint = f"{_UNWRITTEN_HINT} It has {buffer.size // itemsize:,} elements{where}."
    access = simt.Access(address=buffer.address + offset, allocation=buffer.name, offset=offset)
    return Finding(kind=UNWRITTEN, hint=hint, level=level, count=int(missing.size), access=access)


def kept_state(names: Sequence[str], problem: Problem, declared: State) -> Finding:
    """Return a finding about module variables that a call changed without a declaration as state."""
    hint = state_evidence(names, problem, declared)["message"]
    hint = f"{hint[0].upper()}{hint[1:]}."
    return Finding(kind=KEPT_STATE, hint=hint, count=len(names), access=simt.Access(allocation=names[0]))


def run_launch(
    program: SimulatedProgram,
    launch: Launch,
    arguments: Arguments,
    memory: simt.Memory,
    limit: int,
    blocks: Sequence[int] | None = None,
) -> simt.LaunchResult:
    """Run one launch with all checks enabled.

    Args:
        program: the kernel's program.
        launch: entry point, grid, block, dynamic shared memory and argument names.
        arguments: values of the named arguments.
        memory: memory with the buffers.
        limit: warp instructions after which the launch is stopped.
        blocks: linear ids of the blocks to run; None for all.

    Raises:
        UsageError: the grid is too large for the simulator, or the arguments do not match.
        SourceError: the kernel uses an instruction that the simulator does not support.
    """
    if blocks is None:
        check_grid_size(launch)
    result = program.launch(
        launch, arguments, memory, instruction_limit=limit, blocks=blocks, past_misaligned=True, record_paths=True
    )
    return replace(result, findings=tuple(_readable(finding, limit) for finding in result.findings))


def check_grid_size(launch: Launch) -> None:
    """Reject a grid that is too large for the simulator.

    Raises:
        UsageError: the grid has more than `MOST_BLOCKS` blocks.
    """
    if launch.blocks > MOST_BLOCKS:
        raise UsageError(
            f"a grid of {launch.blocks:,} blocks exceeds the simulator's limit of {MOST_BLOCKS:,}; use a smaller grid "
            "or smaller shapes, which show the same bugs"
        )


def _readable(finding: Finding, limit: int) -> Finding:
    """Return a finding with the value of --limit added to its hint if the limit was reached."""
    if finding.kind == UNFINISHED and REPEATS not in finding.hint:
        return replace(finding, hint=f"{finding.hint} (set --limit above {limit})")
    return finding


def sanitize_kernel(
    kernel: Kernel,
    config: Config,
    problems: Sequence[Problem],
    chip: Profile,
    limit: int = INSTRUCTION_LIMIT,
    studied: Sequence[Problem] | None = None,
) -> SanitizeReport:
    """Run a candidate's launches on each problem, with random inputs.

    If nothing is wrong there, blocks of the studied problems run, and of problems that are made so that loops repeat.

    Args:
        kernel: the kernel.
        config: the candidate.
        problems: problems to run completely.
        chip: target chip; its limits apply.
        limit: warp instructions after which a launch is stopped.
        studied: problems of the kernel's studies; None for no further problems.

    Raises:
        UsageError: the candidate is infeasible, does not compile, or uses an unsupported instruction.
        DeviceError: the buffers do not fit into the machine's free memory.
    """
    runs: list[SanitizedRun] = []
    sources: Mapping[str, str] = {}
    for problem in problems:
        violation = check(kernel, config, [problem], chip, essential=True)
        if violation:
            which = "the default" if config == kernel.space.default() else "this"
            raise UsageError(f"{which} candidate of {kernel.name} cannot run at {problem} on {chip.model}: {violation}")
        run, sources = _run(kernel, config, problem, chip, limit)
        runs.append(run)
    paths = NO_PATHS.merged(*(run.paths for run in runs))
    if studied is None or any(finding.matters for run in runs for finding in run.findings):
        return SanitizeReport(kernel.name, kernel.source, sources, tuple(runs))
    return _with_repeats(SanitizeReport(kernel.name, kernel.source, sources, tuple(runs)), kernel, config, problems,
                         chip, limit, studied, paths)  # fmt: skip


def few_rounds_remarks(paths: Paths, source: str) -> tuple[str, ...]:
    """Return a note about loops that did not repeat, if there are any."""
    texts = "; ".join(loop.text(source) for loop in few_rounds(paths))
    remedy = "which hides faults between rounds; run a problem or a grid at which it takes three"
    return (f"{texts}, {remedy}",) if texts else ()


def _with_repeats(
    report: SanitizeReport, kernel: Kernel, config: Config, problems: Sequence[Problem], chip: Profile, limit: int,
    studied: Sequence[Problem], paths: Paths,
) -> SanitizeReport:  # fmt: skip
    """Return the report together with runs of blocks of problems at which loops repeat."""
    from evokern.analysis.sanitize.repeats import RepeatSearch, open_text, races_text
    from evokern.device.sim.full_size_runs import OwnProblemRuns
    from evokern.gate import RunFailed
    from evokern.gate.comparison import tolerances
    from evokern.study.settings import SimulationSettings

    settings = SimulationSettings(instruction_limit=limit)
    runs = OwnProblemRuns(kernel, chip, settings, tolerances(kernel, None, None), 0)
    able = [problem for problem in studied if check(kernel, config, [problem], chip, essential=True) is None]
    try:
        found = RepeatSearch(kernel, config, runs, compare=False).run(problems, able, paths)
    except RunFailed as failed:
        finding = failed.evidence.get("finding")
        if finding is None:
            raise SourceError(f"{kernel.name}: {failed.message}") from None
        title = f"{kernel.name} at {kernel.problem(failed.evidence['problem'])}: some blocks"
        return replace(report, runs=(*report.runs, SanitizedRun(title, (Finding.from_dict(finding),), completed=False)))
    remarks = [races_text(found.races.values())] if found.races else []
    if found.grown:
        remarks.append(f"loops repeat at {' and '.join(map(str, found.grown))}: no findings in some blocks")
    if found.open:
        remarks.append(open_text(found.open, kernel.source))
    return replace(report, remarks=tuple(remarks))


def _run(
    kernel: Kernel, config: Config, problem: Problem, chip: Profile, limit: int
) -> tuple[SanitizedRun, dict[str, str]]:
    # These imports need torch; sanitizing a plain file does not.
    from evokern.compile.build import assembler_error, tensors_of
    from evokern.device.sim.arguments import draw_buffers
    from evokern.device.sim.host_memory import workers_that_fit

    workers_that_fit(kernel, config, [problem], remedy="use a smaller one, which shows the same bugs")
    rendered = render(kernel, config, problem)
    program = compile_simulated(rendered, chip)
    if isinstance(program, CompileFailure):
        raise SourceError(f"{kernel.name} does not compile at {problem}: {program.message}")
    if refused := assembler_error(rendered, chip):
        raise SourceError(assembler_text(kernel.name, refused, f"{chip.architecture}{rendered.architecture_suffix}"))
    memory = simt.Memory()
    tensors = tensors_of(kernel, config, problem)
    buffers = draw_buffers(memory, tensors)
    launches = launches_of(kernel, config, problem)
    results = []
    with recording(memory, WriteRecord(memory, by_block=False)) as record:
        for launch in launches:
            results.append(run_launch(program, launch, buffers, memory, limit))
            if results[-1].fatal is not None:
                break  # a GPU would not start the next launch
            for name in launch.tensor_names:
                buffers[name].initialised = True  # the next launch may read the outputs
    findings = [finding for result in results for finding in result.findings]
    completed = all(result.finished for result in results) and len(results) == len(launches)
    if completed:  # launches that ended early may not have written everything
        findings += [
            finding
            for name, tensor in tensors.items()
            if tensor.role == "output"
            and (finding := unwritten(record, buffers[name], tensor.bytes // tensor.elements, ERROR, f" at {problem}"))
        ]
        if left := program.changed(memory):
            findings.append(kept_state(left, problem, kernel.state))
    title = f"{kernel.name} at {problem}: " + ", then ".join(geometry_text(launch) for launch in launches)
    paths = NO_PATHS.merged(*(result.paths or NO_PATHS for result in results))
    run = SanitizedRun(title, tuple(findings), completed, "".join(result.printed for result in results), paths)
    return run, program.texts


def assembler_text(name: str, message: str, target: str) -> str:
    """Return a message about instructions that the assembler rejects for a target."""
    return (
        f"{name}: the assembler rejects the code for {target}, so no GPU of this architecture can run it: {message}; "
        "choose another --arch, correct the instruction, or exclude it with #if"
    )


def geometry_text(launch: Launch) -> str:
    """Return a short description of a launch's geometry."""
    shared = f", {launch.shared_bytes} bytes of dynamic shared memory" if launch.shared_bytes else ""
    cluster = f", clusters of {extent_text(launch.clustered)}" if launch.clustered else ""
    return f"grid {extent_text(launch.grid)}, block {extent_text(launch.block)}{cluster}{shared}"


def extent_text(extent: tuple[int, int, int]) -> str:
    """Return an extent in the format of the options, such as `4,2`; extents of 1 at the end are omitted."""
    x, y, z = extent
    return f"{x},{y},{z}" if z > 1 else f"{x},{y}" if y > 1 else str(x)
