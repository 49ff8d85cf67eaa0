"""Program of a candidate for the PTX machine: rendering, compilation with line information, parsing, launches.

Everything that runs a kernel without a GPU uses this module: the simulated device's gate, predicted times, sampled
blocks, `sanitize`, `diagnose`, `fuzz` and `profile`. Other modules create the buffers, because they need torch
(`evokern.device.sim.arguments`) or user input (`evokern.analysis.sanitize.arguments`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from evokern import simt
from evokern.compile.build import compile_to_ptx
from evokern.compile.elf import variable_name
from evokern.compile.module_state import HEAP, restored_state
from evokern.compile.records import CompileFailure, Program
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Launch, Scalar, TileMap, bfloat16_bits
from evokern.declaration.render import Rendered, source_of
from evokern.declaration.tensor import State
from evokern.events import step
from evokern.hardware.profiles import Profile
from evokern.ptx.layout import used_symbols
from evokern.ptx.program import PtxProgram
from evokern.simt import BATCH_LANES, Cluster, cluster_of, place_data
from evokern.simt.exact import ExactMemory
from evokern.simt.time_model import sample_blocks
from evokern.wording import count_noun

FEWER = (2, 1)
"""Blocks (or clusters) along one axis of a run with fewer blocks."""
Arguments: TypeAlias = "Mapping[str, simt.Buffer | np.generic[Any]]"
"""Arguments of a launch by the names in its `args`; a `Scalar` in `args` needs no entry."""

_NUMPY: Mapping[str, Any] = {
    "i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64, "f32": np.float32, "f64": np.float64,
    "f16": np.float16, "bool": np.bool_,
}  # fmt: skip


@dataclass(frozen=True)
class SimulatedProgram:
    """Compiled translation unit that the PTX machine can launch."""

    module: simt.Module
    """Parsed PTX."""
    symbols: Mapping[str, str]
    """Entry point as named in a `Launch` → its name in the PTX."""
    source: str
    """Text of the source file, quoted in findings."""
    headers: Mapping[str, str]
    """Texts of the user's own headers, by the name in `#include`."""
    architecture: str
    """Architecture of the chip, for example `sm_89`; PTX for a later architecture is rejected."""
    chip: Profile | None = None
    """Chip for the special registers; None for the default chip of the architecture."""

    @property
    def texts(self) -> dict[str, str]:
        """Text of each user file, by header name in `#include`; the source has the empty name."""
        return {"": self.source, **self.headers}

    @property
    def capability(self) -> int:
        """Compute capability of the chip, multiplied by 10."""
        return int(re.sub(r"\D", "", self.architecture))

    def entry(self, launch: Launch) -> PtxProgram:
        """Return the instructions of a launch's entry point."""
        return self.module.program(self.symbols[launch.entry])

    def cluster(self, launch: Launch) -> Cluster:
        """Return the clusters of a launch; by default each has one block.

        Raises:
            UsageError: launch and kernel contradict each other, or no chip supports such a cluster or grid.
        """
        function = self.entry(launch).entry
        cluster = cluster_of(function, launch.cluster, self.capability)
        cluster.require_whole(launch.grid, function.name)
        return cluster

    def reads_grid(self, launch: Launch) -> bool:
        """Return whether the number of blocks decides what a block does, as in a loop with the step `gridDim.x`."""
        texts = (str(operand) for item in self.entry(launch).instructions for operand in item.operands)
        return any("%nctaid" in text or "%nclusterid" in text for text in texts)

    def fewer_blocks(self, launch: Launch) -> Iterator[Launch]:
        """Yield a launch with fewer blocks along one axis, in which a loop over blocks takes more rounds."""
        if self.reads_grid(launch):
            cluster = self.cluster(launch).extent
            for axis, clusters in product(range(3), FEWER):
                if (count := clusters * cluster[axis]) < launch.grid[axis]:
                    x, y, z = (count if at == axis else extent for at, extent in enumerate(launch.grid))
                    yield replace(launch, grid=(x, y, z))

    def needs_whole_grid(self, launch: Launch) -> bool:
        """Return whether the blocks of a launch must all run at once, because they wait for each other."""
        return self.module.needs_whole_grid(self.symbols[launch.entry])

    def whole(self, launch: Launch, blocks: Iterable[int]) -> tuple[int, ...]:
        """Return the blocks that must run so that the given ones end: whole clusters, or the whole grid."""
        everyone = range(launch.blocks) if self.needs_whole_grid(launch) else blocks
        return self.cluster(launch).whole(launch.grid, everyone)

    def sample_blocks(self, launch: Launch, wanted: int) -> tuple[int, ...]:
        """Return about `wanted` blocks spread evenly over a launch's grid: whole clusters, at least two of them.

        If the blocks wait for each other, the sample is the whole grid.
        """
        cluster = self.cluster(launch)
        if self.needs_whole_grid(launch):
            return self.whole(launch, ())
        numbers = sample_blocks(launch.blocks // cluster.blocks, max(-(-wanted // cluster.blocks), min(wanted, 2)))
        return cluster.members(launch.grid, numbers)

    def restore(self, memory: simt.Memory, *, every: bool = False) -> None:
        """Restore the initial values of the variables with declared state or, with `every`, of all module variables.

        A run of only some blocks leaves a call incomplete, so the next call needs all variables restored.
        """
        simt.restore_variables(self.module, memory, every=every)

    def changed(self, memory: simt.Memory) -> list[str]:
        """Return the source names of undeclared variables that a call changed."""
        left = simt.changed_variables(self.module, memory) - self.module.restored.keys()
        return sorted(variable_name(symbol) for symbol in left)

    def initial(self, name: str) -> bytes:
        """Return the initial bytes of the variable with a given source name."""
        symbol = next(symbol for symbol in self.module.variables if variable_name(symbol) == name)
        variable = self.module.variables[symbol]
        return self.module.restored.get(symbol) or variable.data or bytes(variable.size)

    def keeps_state(self, memory: simt.Memory) -> bool:
        """Return whether a call changed variables with declared state."""
        declared = self.module.restored.keys()
        return bool(declared and simt.changed_variables(self.module, memory) & declared)

    @property
    def variables(self) -> list[str]:
        """Source names of the module's global variables that its entry points use."""
        found = {
            variable.name
            for symbol in self.symbols.values()
            for variable in self.module.program(symbol).data_symbols
            if variable.space == "global"
        }
        return sorted(variable_name(symbol) for symbol in found)

    def heap_calls(self, launch: Launch) -> dict[str, int]:
        """Return the device heap functions that a launch can call, each with a source line."""
        program = self.entry(launch)
        found: dict[str, int] = {}
        for instruction in program.instructions:
            if instruction.opcode == "call":
                for name in HEAP.intersection(used_symbols([instruction])):
                    found.setdefault(name, program.lines.source_location(instruction.location).line)
        return found

    def launch(
        self,
        launch: Launch,
        arguments: Arguments,
        memory: simt.Memory,
        *,
        instruction_limit: int,
        blocks: Sequence[int] | None = None,
        sanitize: bool = True,
        past_misaligned: bool = False,
        until_fatal: bool = False,
        until_error: bool = False,
        count: bool = False,
        sample: bool = False,
        enough: Callable[[simt.Counters], bool] | None = None,
        record_paths: bool = False,
        exact: ExactMemory | None = None,
    ) -> simt.LaunchResult:
        """Run one launch.

        Args:
            launch: entry point, grid, block, dynamic shared memory and the names of its arguments.
            arguments: values of the named arguments.
            memory: memory of the buffers.
            instruction_limit: warp instructions of a batch of blocks after which it counts as hung.
            blocks: linear ids of the blocks to run, plus the rest of their clusters; None for all. If they wait for
                other blocks, all blocks run.
            sanitize: check for races, uninitialised data and unwaited copies. Bounds and alignment are always checked.
            past_misaligned: skip a misaligned access and continue.
            until_fatal: stop at the first finding that would stop the launch on a GPU.
            until_error: run no further batch of blocks after a batch with an error.
            count: count wavefronts, sectors and instructions.
            sample: let the blocks stand for the grid, if they are not all of it.
            enough: called from time to time with the counters so far; True stops the launch.
            record_paths: record the rounds of loops and the sides of branches.
            exact: shadow in which to compute in exact arithmetic, too.

        Raises:
            SourceError: the entry point uses an unsupported feature.
            UsageError: the arguments do not match the entry point, or the shape is impossible.
        """
        options = simt.LaunchOptions(
            instruction_limit=instruction_limit, sanitize=sanitize, past_misaligned=past_misaligned,
            until_fatal=until_fatal, until_error=until_error, count=count, architecture=self.architecture,
            chip=self.chip, source=self.source, enough=enough, record_paths=record_paths, exact=exact, sample=sample,
        )  # fmt: skip

        def run(blocks: Sequence[int] | None, limit: int) -> simt.LaunchResult:
            with step(_simulating(launch, blocks)):
                return simt.launch(
                    self.module,
                    self._spec(launch, blocks),
                    ordered(launch, arguments),
                    memory,
                    replace(options, instruction_limit=limit),
                    constants=_constants(arguments),
                )

        if blocks is None or not self.entry(launch).polls:
            return run(blocks, instruction_limit)
        place_data(self.entry(launch), self.module, memory, 1)
        before = [(buffer, buffer.read()) for buffer in memory.buffers if buffer.writable]
        result = run(blocks, instruction_limit)
        if not result.waits_outside:
            return result
        for buffer, data in before:
            buffer.write(data)
        of_batch = min(launch.blocks, max(BATCH_LANES // launch.threads, 1))
        return run(None, instruction_limit * -(-of_batch // max(len(blocks), 1)))

    def _spec(self, launch: Launch, blocks: Sequence[int] | None) -> simt.LaunchSpec:
        entry, shared = self.symbols[launch.entry], launch.shared_bytes
        return simt.LaunchSpec(entry, launch.grid, launch.block, shared, launch.cluster, blocks)

    def launch_many(
        self,
        launch: Launch,
        arguments: Sequence[Arguments],
        memory: simt.Memory,
        *,
        instruction_limit: int,
        blocks: Sequence[int] | None = None,
        sanitize: bool = True,
        until_error: bool = False,
        record_paths: bool = False,
    ) -> list[simt.LaunchResult]:
        """Run a launch once for each set of arguments, concurrently and without counters.

        Args:
            launch: as for `launch`.
            arguments: one set per run.
            memory: memory of all buffers.
            instruction_limit: as for `launch`.
            blocks: as for `launch`.
            sanitize: as for `launch`.
            until_error: as for `launch`.
            record_paths: as for `launch`.

        Returns:
            One result per set.

        Raises:
            SourceError: the entry point uses an unsupported feature.
            UsageError: the arguments do not match the entry point, or the shape is impossible.
        """
        with step(_simulating(launch, blocks)):
            return simt.launch_many(
                self.module,
                self._spec(launch, blocks),
                [ordered(launch, named) for named in arguments],
                memory,
                simt.LaunchOptions(
                    instruction_limit=instruction_limit,
                    sanitize=sanitize,
                    until_error=until_error,
                    count=False,
                    architecture=self.architecture,
                    chip=self.chip,
                    source=self.source,
                    record_paths=record_paths,
                ),
                constants=[_constants(named) for named in arguments],
            )


def compile_simulated(rendered: Rendered, chip: Profile) -> SimulatedProgram | CompileFailure:
    """Compile a rendered program for a chip with line information, and parse it.

    Returns:
        The program, or the compiler's error.

    Raises:
        DeviceError: the compiler cannot be loaded.
        SourceError: the PTX has an unsupported feature.
        KernelError: the kernel's declared state does not fit a variable.
    """
    program = compile_to_ptx(rendered, chip)
    if isinstance(program, CompileFailure):
        return program
    return _parsed(program, rendered.source, rendered.name, rendered.headers, chip, rendered.state)


class BuiltPrograms:
    """Parser for compiled programs of one kernel and chip; it caches the last program."""

    def __init__(self, kernel: Kernel, chip: Profile) -> None:
        self._kernel, self._chip = kernel, chip
        self._last: tuple[tuple[str, str], SimulatedProgram] | None = None

    def parsed(self, program: Program, config: Config) -> SimulatedProgram:
        """Return a parsed program for launching.

        Args:
            program: the compiled program.
            config: its candidate; findings quote the candidate's source.

        Raises:
            SourceError: the PTX has an unsupported feature.
        """
        name, source, headers = source_of(self._kernel, config)
        if self._last is None or self._last[0] != (program.ptx, source):
            made = _parsed(program, source, name, headers, self._chip, self._kernel.state)
            self._last = (program.ptx, source), made
        return self._last[1]


def _parsed(
    program: Program, source: str, name: str, headers: Mapping[str, str], chip: Profile, state: State
) -> SimulatedProgram:
    module = simt.parse(program.ptx, source_name=name, headers=headers)
    _declare_state(module, state)
    return SimulatedProgram(module, program.lowered, source, headers, chip.architecture, chip)


def _declare_state(module: simt.Module, state: State) -> None:
    """Set the declared initial values of a module's variables.

    Raises:
        KernelError: the declared size of a variable differs from its size.
    """
    if state:
        sizes = {name: one.size for name, one in module.variables.items() if one.space == "global"}
        for symbol, value in restored_state(state, sizes).items():
            module.restored[symbol] = value if isinstance(value, bytes) else bytes([value]) * sizes[symbol]


def _constants(arguments: Arguments) -> dict[str, simt.Buffer]:
    """Return the buffers of `__constant__` arrays by array name."""
    return {
        name: value for name, value in arguments.items() if isinstance(value, simt.Buffer) and value.space == "const"
    }


def _simulating(launch: Launch, blocks: Sequence[int] | None) -> str:
    """Return the name of a launch's step."""
    return f"simulating {launch.entry}, {count_noun(launch.blocks if blocks is None else len(blocks), 'block')}"


def ordered(launch: Launch, arguments: Arguments) -> list[simt.Buffer | np.generic[Any]]:
    """Return the launch arguments in the order of the entry point's parameters."""
    return [arguments[item] if isinstance(item, str) else _value(item, arguments) for item in launch.args]


def _value(value: Scalar | TileMap, arguments: Arguments) -> np.generic[Any]:
    """Return a scalar argument as a NumPy scalar of its C type, or the bytes of a tensor map."""
    if isinstance(value, TileMap):
        buffer = arguments[value.tensor]
        assert isinstance(buffer, simt.Buffer)
        return np.void(value.described.packed(buffer.address))
    if value.dtype == "bf16":
        return np.uint16(bfloat16_bits(value.value))
    made: np.generic[Any] = _NUMPY[value.dtype](value.value)
    return made
