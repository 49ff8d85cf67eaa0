"""Sanitizer for a kernel in a plain CUDA file, with a launch given by the user."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from evokern import simt
from evokern.analysis.sanitize.arguments import Argument, allocate_arguments, check_arguments, names
from evokern.analysis.sanitize.candidate import (
    INSTRUCTION_LIMIT,
    SanitizedRun,
    SanitizeReport,
    assembler_text,
    check_grid_size,
    extent_text,
    few_rounds_remarks,
    geometry_text,
    run_launch,
    unwritten,
)
from evokern.compile.build import active_includes, assembler_error
from evokern.compile.headers import header_report
from evokern.compile.records import CompileFailure, needs_later_architecture
from evokern.cuda_source import CudaSource, EntryPoint, Include, KernelFunction, read
from evokern.cuda_source.reader.finders import dynamic_arrays
from evokern.cuda_source.reader.known_headers import toolkit_header
from evokern.cuda_source.specialize.conditionals import inline_headers
from evokern.cuda_source.specialize.unreferenced import drop_unreferenced
from evokern.declaration.kernel import Launch
from evokern.declaration.render import Rendered
from evokern.device.sim.program import SimulatedProgram, compile_simulated
from evokern.errors import SourceError, UsageError
from evokern.files import is_folder
from evokern.hardware.profiles import MIN_CLUSTER_CAPABILITY, Profile
from evokern.simt import NO_PATHS, WARNING, WriteRecord, cluster_of, recording

LONG_RUN = 1 << 21
"""Number of threads above which a note warns about a long run."""
MOST_LISTED = 6
"""Maximum number of headers that a message lists."""
_LOGGER = logging.getLogger("evokern")
_DEFINITION = re.compile(r"[A-Za-z_]\w*(\(.*\))?(=.*)?", re.DOTALL)


@dataclass(frozen=True)
class FileLaunch:
    """Launch of a kernel in a CUDA file."""

    path: Path
    """The CUDA file."""
    entry: str | None = None
    """Name of the kernel; None if the file has only one."""
    grid: tuple[int, int, int] | None = None
    """Number of blocks along x, y and z; None for one thread per element of the largest writable buffer."""
    block: tuple[int, int, int] | None = None
    """Number of threads per block along x, y and z; required."""
    shared_bytes: int = 0
    """Number of bytes of dynamic shared memory per block."""
    arguments: tuple[Argument, ...] = ()
    """Arguments, one per parameter, in order."""
    defines: tuple[str, ...] = ()
    """Macros, as `NAME` or `NAME=VALUE`."""
    include_dirs: tuple[Path, ...] = ()
    """Folders with the file's headers, searched after the file's folder."""
    limit: int = INSTRUCTION_LIMIT
    """Number of warp instructions after which the launch counts as a hang."""
    seed: int = 0
    """Seed of the random inputs."""
    suffix: str = ""
    """Architecture suffix; `a` enables architecture-specific features."""
    cluster: tuple[int, int, int] | None = None
    """Number of blocks per cluster along x, y and z; None for the kernel's `__cluster_dims__`, or no cluster."""

    def __post_init__(self) -> None:
        for text in self.defines:
            if not _DEFINITION.fullmatch(text):
                raise UsageError(f"-D {text!r} is not a macro definition; use -D NAME or -D NAME=VALUE")
        for folder in self.include_dirs:
            if not is_folder(folder):
                raise UsageError(f"-I {folder} is not a folder; use an existing folder")


def sanitize_file(wanted: FileLaunch, chip: Profile) -> SanitizeReport:
    """Run one kernel of a CUDA file and check every memory access.

    Args:
        wanted: the kernel and its launch.
        chip: target chip; its limits apply.

    Raises:
        SourceError: the file or the kernel cannot be read, compiled or executed.
        UsageError: the launch or its arguments do not match the kernel or the chip.
    """
    if wanted.cluster and prod(wanted.cluster) > 1 and chip.compute_capability < MIN_CLUSTER_CAPABILITY:
        cluster = extent_text(wanted.cluster)
        raise UsageError(f"--cluster {cluster} needs --arch sm_90; {chip.architecture} does not support clusters")
    source = read(wanted.path, wanted.include_dirs)
    point = source.entry(wanted.entry)
    if point.expression:  # the template arguments may name types of the host code
        source = read(wanted.path, wanted.include_dirs, re.findall(r"\w+", point.expression))
    program, symbol = _compiled(source, point, wanted, chip)
    missing = active_includes(source, source.missing_includes, _rendered(source, point, wanted), chip)
    entry, compiled = point.entry, program.module.entries[symbol]
    remarks = check_arguments(wanted.arguments, entry, compiled.params)
    launch = _clustered(_launch(wanted, entry, compiled, chip), wanted, entry, program)
    if missing:
        remarks.append(f"skipped missing headers: {_listed(missing)}; add the folder with -I")
    remarks += _remarks(wanted, source, entry, launch)
    memory = simt.Memory()
    labels = names(entry, compiled.params)
    placed = allocate_arguments(wanted.arguments, labels, memory, wanted.seed)
    launch = replace(launch, args=tuple(labels))
    with recording(memory, WriteRecord(memory, by_block=False)) as record:
        result = run_launch(program, launch, dict(zip(labels, placed.values, strict=True)), memory, wanted.limit)
    findings = [*result.findings]
    for argument, buffer in placed.buffers:
        if argument.role == "out" and result.finished:
            found = unwritten(record, buffer, argument.bytes // argument.elements, WARNING)
            if found is not None and found.count == argument.elements:
                findings.append(found)
            elif found is not None:  # the buffer may be larger than the kernel's output
                first = found.offset * argument.elements // argument.bytes
                remarks.append(f"no thread writes {found.count:,} of {argument.elements:,} elements of {buffer.name}, "
                               f"the first at index {first:,}")  # fmt: skip
    run = SanitizedRun(
        f"{wanted.entry or entry.qualified} of {source.name}: {geometry_text(launch)}, "
        f"{chip.architecture}{wanted.suffix}",
        tuple(findings),
        result.finished,
        result.printed,
    )
    remarks += few_rounds_remarks(result.paths or NO_PATHS, source.name)
    return SanitizeReport(entry.qualified, source.name, program.texts, (run,), tuple(remarks))


def _compiled(source: CudaSource, point: EntryPoint, wanted: FileLaunch, chip: Profile) -> tuple[SimulatedProgram, str]:
    """Return the compiled device code, and the kernel's symbol in it."""
    rendered = _rendered(source, point, wanted)
    program = compile_simulated(rendered, chip)
    if isinstance(program, CompileFailure):
        _LOGGER.info("%s", program.log)
        raise SourceError(_explained(program, source, wanted, rendered, chip))
    own = drop_unreferenced(inline_headers(source.device_text, source.headers), [point.entry.name])
    if refused := assembler_error(replace(rendered, source=own, headers={}), chip):
        raise SourceError(assembler_text(source.name, refused, f"{chip.architecture}{wanted.suffix}"))
    symbol = program.symbols[point.expression] if point.expression else point.symbol or ""
    if symbol not in program.module.entries:
        raise SourceError(
            f"{source.name}: kernel {point.entry.qualified} (line {point.entry.line}) is not in the compiled code; "
            f"if an #if excludes it, define its macro with -D (compiled: {', '.join(program.module.entries) or 'none'})"
        )
    # Findings quote the original file, not the extracted device code.
    return replace(program, symbols={symbol: symbol}, source=source.text), symbol


def _rendered(source: CudaSource, point: EntryPoint, wanted: FileLaunch) -> Rendered:
    expressions = (point.expression,) if point.expression else ()
    options = (*(f"-D{text}" for text in wanted.defines), *(f"--include-path={path}" for path in wanted.include_dirs))
    return Rendered(source.device_text, source.name, source.headers, options, expressions, wanted.suffix)


def _is_condition(source: CudaSource, failure: CompileFailure) -> bool:
    """Return whether the first error is in a condition of the preprocessor."""
    if failure.line is None or failure.file not in (None, source.name):
        return False
    lines = source.text.split("\n")[failure.line - 1 : failure.line]
    return bool(lines) and re.match(r"\s*#\s*(?:el)?if\b", lines[0]) is not None


def _explained(
    failure: CompileFailure, source: CudaSource, wanted: FileLaunch, rendered: Rendered, chip: Profile
) -> str:
    """Return why a compile failed; missing headers come first, because they may cause the first error."""
    message, hints = failure.message, []
    missing = active_includes(source, source.missing_includes, rendered, chip)
    skipped = source.suspicious_includes
    if _is_condition(source, failure):  # it may use a macro of any skipped header
        skipped = tuple(include for include in source.includes if include.status == "host")
    suspicious = () if missing else active_includes(source, skipped, rendered, chip)
    if suspicious:
        hints.append(
            f"treated as host headers and skipped: {_listed(suspicious)}; if the kernel needs one, give its folder "
            "with -I"
        )
    undefined = dict.fromkeys(re.findall(r'identifier "(\w+)" is undefined', failure.log))
    needed = [f"{name} needs <{header}>" for name in undefined if (header := toolkit_header(name))]
    if needed:
        hints.append(f"the file lacks an include: {', '.join(needed)}")
    if absent := re.search(r'cannot open source file "([^"]+)"', message):
        remedy = next((header.remedy for header in header_report() if header.name == absent[1] and header.remedy), "")
        hints.append(f"{remedy}, or add its folder with -I" if remedy else "add the header's folder with -I")
    given = {re.split(r"[=(]", text)[0] for text in wanted.defines}
    lacking = [macro.name for macro in source.macros if macro.kind == "required" and macro.name not in given]
    if lacking:
        hints.append("the file needs " + " ".join(f"-D {name}=…" for name in lacking))
    if needs_later_architecture(message):
        hints.append("a later architecture has this feature: clusters, for example, need --arch sm_90")
    explained = f"{message} ({'; '.join(hints)})" if hints else message
    if not missing:
        return explained
    return f"not found: {_listed(missing)}; add the folder with -I. Compiler error: {explained}"


def _listed(includes: Sequence[Include]) -> str:
    """Return each header with the first line that includes it; at most `MOST_LISTED` headers."""
    first = {include.name: include for include in reversed(includes)}
    ordered = [include for include in includes if first[include.name] is include]
    more = f" and {len(ordered) - MOST_LISTED} more" if len(ordered) > MOST_LISTED else ""
    return (
        ", ".join(
            f'"{include.name}" (line {include.line}{f" of {include.file}" if include.file else ""})'
            for include in ordered[:MOST_LISTED]
        )
        + more
    )


def _launch(wanted: FileLaunch, entry: KernelFunction, compiled: simt.Entry, chip: Profile) -> Launch:
    """Return the launch after checking the limits of the kernel and the chip.

    Raises:
        UsageError: the block is missing, or a limit is exceeded.
    """
    if wanted.block is None:
        bounds = compiled.reqntid or compiled.maxntid
        threads = extent_text(bounds) if bounds else "128"
        known = "its bound is" if bounds else "for example"
        raise UsageError(f"--block is missing; set the threads per block of {entry.qualified} ({known} {threads})")
    grid = wanted.grid or (_blocks(wanted.arguments, wanted.block), 1, 1)
    static = compiled.static_shared
    launch = Launch(compiled.name, grid, wanted.block, (), wanted.shared_bytes, static, cluster=wanted.cluster)
    for what, number, limit, who in _limits(launch, compiled, chip):
        if number > limit:
            raise UsageError(f"{entry.qualified}: {number} {what} exceeds the limit of {limit} ({who})")
    check_grid_size(launch)
    if compiled.reqntid and compiled.reqntid != launch.block:
        raise UsageError(f"{entry.qualified} requires blocks of {compiled.reqntid}, not {launch.block}; change --block")
    return launch


def _clustered(launch: Launch, wanted: FileLaunch, entry: KernelFunction, program: SimulatedProgram) -> Launch:
    """Return a launch with its clusters; a default grid is rounded up to whole clusters.

    Raises:
        UsageError: the launch contradicts the kernel, or no chip supports such a cluster.
    """
    function, called = program.entry(launch).entry, entry.qualified
    cluster = cluster_of(function, launch.cluster, program.capability, called, "set one with --cluster")
    if wanted.grid is None:
        launch = replace(launch, grid=cluster.whole_grid(launch.grid))
    cluster.require_whole(launch.grid, called)
    return replace(launch, cluster=cluster.extent) if cluster.blocks > 1 else launch


def _limits(launch: Launch, compiled: simt.Entry, chip: Profile) -> Iterator[tuple[str, int, int, str]]:
    """Yield the limits of a launch as (resource, amount, limit, origin of the limit)."""
    bound = prod(compiled.maxntid) if compiled.maxntid else chip.threads_per_block
    yield "threads of a block", launch.threads, min(bound, chip.threads_per_block), "__launch_bounds__ or the chip"
    for axis, extent, limit in zip("xyz", launch.block, chip.block_limit, strict=True):
        yield f"threads along {axis}", extent, limit, "the chip"
    for axis, extent, limit in zip("xyz", launch.grid, chip.grid_limit, strict=True):
        yield f"blocks along {axis}", extent, limit, "the chip"
    static = launch.static_shared_bytes
    yield "bytes of static shared memory", static, chip.shared_bytes_static, "more must be dynamic"
    total = static + launch.shared_bytes
    yield "bytes of shared memory", total, chip.shared_bytes_per_block, f"{chip.model}; {static} are static"


def _blocks(arguments: Sequence[Argument], block: tuple[int, int, int]) -> int:
    largest = _largest(arguments)
    return -(-largest.elements // (block[0] * block[1] * block[2])) if largest else 1


def _largest(arguments: Sequence[Argument]) -> Argument | None:
    """Return the largest writable buffer, which determines the default grid."""
    written = [buffer for argument in arguments for buffer in argument.buffers if buffer.role != "in"]
    return max(written, key=lambda argument: argument.elements, default=None)


def _remarks(wanted: FileLaunch, source: CudaSource, entry: KernelFunction, launch: Launch) -> list[str]:
    """Return notes for the user about the launch."""
    remarks = []
    largest = _largest(wanted.arguments)
    if wanted.grid is None:
        why = f"one thread for each element of {largest.text}" if largest else "no output"
        remarks.append(f"--grid not given; using {launch.grid[0]} block{'' if launch.grid[0] == 1 else 's'}, {why}")
    own = drop_unreferenced(inline_headers(source.device_text, source.headers), [entry.name])
    if not wanted.shared_bytes and (dynamic := dynamic_arrays(own)):
        remarks.append(f"dynamic shared memory ({', '.join(dynamic)}) has a size of 0 bytes; set its size with --smem")
    threads = launch.blocks * launch.threads
    if threads > LONG_RUN:
        remarks.append(f"{threads:,} threads run on the CPU; smaller shapes show the same bugs sooner")
    return remarks
