"""A candidate's program on the PTX machine: rendered, compiled for a chip with its lines named, parsed, launched.

Everything that runs a kernel without a GPU runs it through here: the gate of a simulated device, predicted times,
sampled blocks, `sanitize`, `diagnose`, `fuzz`, `profile`. Buffers come from elsewhere, since they need torch
(`evokern.device.sim.arguments`) or a user's words (`evokern.analysis.sanitize.arguments`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from evokern import simt
from evokern.compile.build import compile_to_ptx
from evokern.compile.module_state import HEAP, restored_state
from evokern.compile.records import CompileFailure, Program
from evokern.compile.symbols import variable_name
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Launch, Scalar, bfloat16_bits
from evokern.declaration.render import Rendered, source_of
from evokern.declaration.state import State
from evokern.hardware.profiles import Profile
from evokern.ptx.layout import used_symbols
from evokern.ptx.program import PtxProgram
from evokern.simt.clusters.layout import Cluster, cluster_of
from evokern.simt.time_model.prediction import sample_blocks

Arguments: TypeAlias = "Mapping[str, simt.Buffer | np.generic[Any]]"
"""What a launch is given, by the names in its `args`; a `Scalar` among them stands for itself."""

_NUMPY: Mapping[str, Any] = {
    "i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64, "f32": np.float32, "f64": np.float64,
    "f16": np.float16, "bool": np.bool_,
}  # fmt: skip


@dataclass(frozen=True)
class SimulatedProgram:
    """A compiled translation unit that the PTX machine can launch."""

    module: simt.Module
    """The parsed PTX."""
    symbols: Mapping[str, str]
    """Entry point as a `Launch` names it → its name in the PTX."""
    source: str
    """Text of the source file, which findings quote."""
    headers: Mapping[str, str]
    """Texts of the user's own headers, by the name an `#include` uses."""
    architecture: str
    """The chip that runs it, for example `sm_89`; PTX made for a later one is refused."""
    chip: Profile | None = None
    """The chip that special registers show; None for one of the architecture."""

    @property
    def texts(self) -> dict[str, str]:
        """The user's files by header name as included, the source itself under the empty name."""
        return {"": self.source, **self.headers}

    @property
    def capability(self) -> int:
        """Compute capability × 10 of the chip that runs it."""
        return int(re.sub(r"\D", "", self.architecture))

    def entry(self, launch: Launch) -> PtxProgram:
        """Return the instructions of the entry point that a launch starts."""
        return self.module.program(self.symbols[launch.entry])

    def cluster(self, launch: Launch) -> Cluster:
        """Return the clusters that a launch runs in, of one block each where nobody asks for any.

        Raises:
            UsageError: launch and kernel contradict each other, or no chip takes such a cluster or grid.
        """
        function = self.entry(launch).entry
        cluster = cluster_of(function, launch.cluster, self.capability)
        cluster.require_whole(launch.grid, function.name)
        return cluster

    def sample_blocks(self, launch: Launch, wanted: int) -> tuple[int, ...]:
        """Return blocks spread evenly over a launch's grid, whole clusters: about so many, of two clusters at least."""
        cluster = self.cluster(launch)
        numbers = sample_blocks(launch.blocks // cluster.blocks, max(-(-wanted // cluster.blocks), min(wanted, 2)))
        return cluster.members(launch.grid, numbers)

    def restore(self, memory: simt.Memory, *, every: bool = False) -> None:
        """Give the module's variables what they begin a call with: those whose state is declared, or every one.

        What runs only some blocks of a call leaves it unfinished: before the next one, every variable is restored.
        """
        simt.restore(self.module, memory, every=every)

    def changed(self, memory: simt.Memory) -> list[str]:
        """Return the variables that a call left changed and whose state is not declared, as the source names them."""
        left = simt.changed(self.module, memory) - self.module.restored.keys()
        return sorted(variable_name(symbol) for symbol in left)

    def initial(self, name: str) -> bytes:
        """Return what a variable that the source names so begins with."""
        symbol = next(symbol for symbol in self.module.variables if variable_name(symbol) == name)
        variable = self.module.variables[symbol]
        return self.module.restored.get(symbol) or variable.data or bytes(variable.size)

    def keeps_state(self, memory: simt.Memory) -> bool:
        """Tell whether a call changed variables whose state is declared."""
        declared = self.module.restored.keys()
        return bool(declared and simt.changed(self.module, memory) & declared)

    @property
    def variables(self) -> list[str]:
        """The module's variables in global memory that its entries reach, as the source names them."""
        found = {
            variable.name
            for symbol in self.symbols.values()
            for variable in self.module.program(symbol).data_symbols
            if variable.space == "global"
        }
        return sorted(variable_name(symbol) for symbol in found)

    def heap_calls(self, launch: Launch) -> dict[str, int]:
        """Return the functions of the device's heap that a launch can call, each with a line of the source."""
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
        count: bool = False,
        enough: Callable[[simt.Counters], bool] | None = None,
    ) -> simt.LaunchResult:
        """Run one launch.

        Args:
            launch: entry point, grid, block, dynamic shared memory and the names of its arguments.
            arguments: what the names stand for.
            memory: where the buffers live.
            instruction_limit: warp instructions of a batch of blocks after which it counts as a hang.
            blocks: linear ids of the blocks to run, with the others of their clusters; None for all.
            sanitize: check for races, uninitialised data and unwaited copies; bounds and alignment always are.
            past_misaligned: go on after a misaligned access, without it.
            until_fatal: end at the first finding for which a GPU would end the launch.
            count: count wavefronts, sectors and instructions.
            enough: asked now and then with what was counted so far; True ends the launch.

        Raises:
            SourceError: the entry uses what the machine does not execute.
            UsageError: the arguments do not match the entry, or the shape is impossible.
        """
        return simt.launch(
            self.module, self.symbols[launch.entry], launch.grid, launch.block, _ordered(launch, arguments),
            memory=memory, dynamic_shared=launch.shared_bytes, cluster=launch.cluster, source=self.source,
            architecture=self.architecture, instruction_limit=instruction_limit, blocks=blocks, sanitize=sanitize,
            past_misaligned=past_misaligned, until_fatal=until_fatal, count=count, enough=enough,
            constants=[_constants(arguments)], chip=self.chip,
        )  # fmt: skip

    def launch_many(
        self,
        launch: Launch,
        arguments: Sequence[Arguments],
        memory: simt.Memory,
        *,
        instruction_limit: int,
        blocks: Sequence[int] | None = None,
        sanitize: bool = True,
    ) -> list[simt.LaunchResult]:
        """Run a launch once for each set of arguments, side by side; nothing is counted.

        Args:
            launch: as for `launch`.
            arguments: one set per run.
            memory: where all their buffers live.
            instruction_limit: as for `launch`.
            blocks: as for `launch`.
            sanitize: as for `launch`.

        Returns:
            One result per set.

        Raises:
            SourceError: the entry uses what the machine does not execute.
            UsageError: the arguments do not match the entry, or the shape is impossible.
        """
        return simt.launch_many(
            self.module, self.symbols[launch.entry], launch.grid, launch.block,
            [_ordered(launch, named) for named in arguments], memory=memory, dynamic_shared=launch.shared_bytes,
            cluster=launch.cluster, source=self.source, architecture=self.architecture,
            instruction_limit=instruction_limit, blocks=blocks, sanitize=sanitize, count=False, chip=self.chip,
            constants=[_constants(named) for named in arguments],
        )  # fmt: skip


def compile_simulated(rendered: Rendered, chip: Profile) -> SimulatedProgram | CompileFailure:
    """Compile a rendered program for a chip, with line information, and parse it.

    Returns:
        The program, or why the compiler refused it.

    Raises:
        DeviceError: the compiler cannot be loaded.
        SourceError: the PTX holds what the machine does not know.
        KernelError: the kernel's declared state does not fit a variable.
    """
    program = compile_to_ptx(rendered, chip)
    if isinstance(program, CompileFailure):
        return program
    return _parsed(program, rendered.source, rendered.name, rendered.headers, chip, rendered.state)


class BuiltPrograms:
    """Parses programs of one kernel that are built already, for one chip; the last one is kept."""

    def __init__(self, kernel: Kernel, chip: Profile) -> None:
        self._kernel, self._chip = kernel, chip
        self._last: tuple[tuple[str, str], SimulatedProgram] | None = None

    def parsed(self, program: Program, config: Config) -> SimulatedProgram:
        """Return a program that can be launched.

        Args:
            program: what was compiled.
            config: the candidate that it was compiled from, whose source findings quote.

        Raises:
            SourceError: its PTX holds what the machine does not know.
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
    """Tell a module what its variables begin a call with, as far as that is declared.

    Raises:
        KernelError: a variable is declared with another number of bytes than it has.
    """
    if state:
        sizes = {name: one.size for name, one in module.variables.items() if one.space == "global"}
        for symbol, value in restored_state(state, sizes).items():
            module.restored[symbol] = value if isinstance(value, bytes) else bytes([value]) * sizes[symbol]


def _constants(arguments: Arguments) -> dict[str, simt.Buffer]:
    """Return what goes into `__constant__` arrays, by the array's name."""
    return {
        name: value for name, value in arguments.items() if isinstance(value, simt.Buffer) and value.space == "const"
    }


def _ordered(launch: Launch, arguments: Arguments) -> list[simt.Buffer | np.generic[Any]]:
    """Return a launch's arguments in the entry's order."""
    return [arguments[item] if isinstance(item, str) else _number(item) for item in launch.args]


def _number(value: Scalar) -> np.generic[Any]:
    """Return a by-value argument as a NumPy scalar of its C type."""
    if value.dtype == "bf16":
        return np.uint16(bfloat16_bits(value.value))
    made: np.generic[Any] = _NUMPY[value.dtype](value.value)
    return made
