"""Variants of an operator: machine code of one candidate, and its launches as numbers computed from the shape."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from evokern.compile.build import Target, build
from evokern.compile.cache import default_cache
from evokern.compile.records import Built
from evokern.declaration.genes import Config
from evokern.declaration.kernel import DTYPE_BYTES, Kernel, Launch, Problem, Scalar, TileMap, bfloat16_bits
from evokern.errors import KernelError
from evokern.export.formula import Formula, simplified
from evokern.export.launcher import pointer_alignment
from evokern.export.trace import Traces, trace
from evokern.export.traced import formula_of
from evokern.hardware.profiles import PORTABLE_CLUSTER_BLOCKS, Profile
from evokern.hardware.tensor_map import DTYPE_BYTES as MAP_DTYPE_BYTES
from evokern.hardware.tensor_map import SWIZZLES

MOST_ARGUMENTS, MOST_MAPS = 128, 8
"""Largest number of arguments of a launch, as in `operator.h`."""
_FORMATS = {"f32": "<f", "f64": "<d", "f16": "<e"}


@dataclass(frozen=True)
class Variant:
    """One variant: a compiled candidate, and the shapes that it takes."""

    title: str
    """Study, trial and problem, for people."""
    chip: Profile
    """Chip for which it was compiled."""
    problem: Problem
    """Problem whose macros the machine code contains."""
    config: Config
    """The candidate."""
    traces: Traces
    """Launches, buffers and conditions as formulas."""
    built: Built
    """Machine code."""
    alignment: int
    """Required alignment of pointers in bytes."""

    @property
    def capability(self) -> int:
        """Ten times the major plus the minor number of the compute capability."""
        major, minor = self.chip.compute_capability
        return 10 * major + minor

    @property
    def cubin(self) -> bytes:
        """Machine code."""
        return self.built.programs[0].cubin

    @property
    def entries(self) -> tuple[str, ...]:
        """Launched entry points."""
        return tuple(dict.fromkeys(launch.entry for launch in self.traces.launches))

    @property
    def symbols(self) -> tuple[str, ...]:
        """Symbols of the entry points in the machine code."""
        return tuple(self.built.programs[0].lowered[entry] for entry in self.entries)

    @property
    def workspaces(self) -> tuple[str, ...]:
        """Names of the workspaces."""
        return tuple(name for name, tensor in self.traces.tensors.items() if tensor.role == "workspace")

    @property
    def keeps_state(self) -> bool:
        """Whether the machine code uses module variables, so that each stream needs its own copy of the code.

        Calls leave the variables unchanged, as the gate of a search checks, but calls at the same time would not.
        """
        constants = self.built.programs[0].constants
        return any(one.used and one.symbol not in constants for one in self.built.variables[0])

    @property
    def large_cluster(self) -> bool:
        """Whether a launch has clusters that are larger than every GPU can run."""
        return any(math.prod(one.clustered or (1,)) > PORTABLE_CLUSTER_BLOCKS for one in self.traces.launches)

    def numbers(self) -> Iterator[tuple[str, Formula]]:
        """Yield the numbers of the launches with their meaning, in the order in which the launching code reads them.

        For each launch: three extents of the grid, three of the block, the dynamic shared memory in bytes, and the
        arguments. An integer is one number. A tensor map is its sizes, strides in bytes and box sizes. After the
        launches: the size of each workspace in bytes.
        """
        for launch in self.traces.launches:
            for axis, extent in zip("xyz", launch.grid, strict=True):
                yield f"grid {axis}", simplified(formula_of(extent), {})
            for axis, extent in zip("xyz", launch.block, strict=True):
                yield f"block {axis}", simplified(formula_of(extent), {})
            yield "shared bytes", simplified(formula_of(launch.shared_bytes), {})
            for place, argument in enumerate(launch.args):
                if isinstance(argument, TileMap):
                    of = argument.described
                    for what, extents in (("size", of.shape), ("stride", of.strides), ("box size", of.box)):
                        for number, extent in enumerate(extents):
                            yield f"{what} {number} of the map {place}", simplified(formula_of(extent), {})
                elif isinstance(argument, Scalar) and (value := _integer(argument)) is not None:
                    yield f"argument {place}", simplified(formula_of(value), {})
        for name in self.workspaces:
            tensor = self.traces.tensors[name]
            size: Formula = ("number", DTYPE_BYTES[tensor.dtype])
            for extent in tensor.shape:
                size = ("*", size, formula_of(extent))
            yield f"bytes of {name}", simplified(size, {})

    def table(self, buffers: Mapping[str, int]) -> dict[str, Any]:
        """Return the launches as plain data, which the launching code interprets.

        Args:
            buffers: name of a buffer in the workload → its index among inputs, results and workspaces.
        """
        number, launches = 0, []
        for launch in self.traces.launches:
            first, number = number, number + 7
            arguments: list[tuple[str, int]] = []
            maps: list[dict[str, int]] = []
            for argument in launch.args:
                if isinstance(argument, str):
                    arguments.append(("buffer", buffers[argument]))
                elif isinstance(argument, TileMap):
                    arguments.append(("map", len(maps)))
                    maps.append(_map(argument, buffers) | {"number": number})
                    number += 3 * argument.described.rank - 1
                elif _integer(argument) is not None:
                    arguments.append(("number", number))
                    number += 1
                else:
                    arguments.append(("constant", _bits(argument)))
            launches.append(self._launch(launch, buffers) | {"first": first, "arguments": arguments, "maps": maps})
        return {
            "title": self.title, "capability": self.capability, "alignment": self.alignment,
            "large_cluster": self.large_cluster, "keeps_state": self.keeps_state,
            "symbols": list(self.symbols), "launches": launches,
            "workspaces": [
                {"number": number + index, "zero": self.traces.tensors[name].initial == "zero"}
                for index, name in enumerate(self.workspaces)
            ],
        }  # fmt: skip

    def _launch(self, launch: Launch, buffers: Mapping[str, int]) -> dict[str, Any]:
        window = launch.l2_window
        return {
            "entry": self.entries.index(launch.entry),
            "cooperative": (0, launch.entry) in self.built.cooperative,
            "cluster": list(launch.clustered or ()),
            "window": None if window is None else [buffers[window.tensor], float(window.hit_ratio)],
        }


def variant_of(kernel: Kernel, config: Config, problem: Problem, chip: Profile, title: str) -> Variant:
    """Compile a candidate as a variant.

    Raises:
        KernelError: the candidate does not compile any more, or cannot be part of an operator.
        DeviceError: the compiler cannot be loaded.
    """
    traces = trace(kernel, config, problem, chip)
    built = build(kernel, config, [problem], Target(chip, default_cache()))
    if not isinstance(built, Built):
        why = built.reason or built.outcome.value
        raise KernelError(f"{title} does not compile any more for {chip.model}: {why}; search again, or choose another")
    restored = [one.name for one in built.variables[0] if one.used and one.restored is not None]
    if restored:
        raise KernelError(
            f"{title} uses the module variable {restored[0]!r}, which the kernel declares as state to restore before "
            "each call; an operator cannot restore it. Choose a trial without it, or use a workspace instead"
        )
    if any(len(launch.args) > MOST_ARGUMENTS for launch in traces.launches):
        raise KernelError(f"{title} has a launch with more than {MOST_ARGUMENTS} arguments, which is not supported")
    if any(len(launch.maps) > MOST_MAPS for launch in traces.launches):
        raise KernelError(f"{title} has a launch with more than {MOST_MAPS} tensor maps, which is not supported")
    return Variant(title, chip, problem, config, traces, built, pointer_alignment(kernel, config, problem))


def _map(argument: TileMap, buffers: Mapping[str, int]) -> dict[str, int]:
    """Return the constants of a tensor map, in the driver's numbers."""
    of = argument.described
    return {
        "buffer": buffers[argument.tensor], "dtype": [*MAP_DTYPE_BYTES].index(of.dtype), "rank": of.rank,
        "swizzle": [*SWIZZLES].index(of.swizzle),
    }  # fmt: skip


def _integer(argument: Scalar) -> int | None:
    """Return the value of an integer argument with its formula, which may depend on the shape; None for others."""
    return (
        argument.value if argument.dtype in ("i32", "u32", "i64", "u64") and isinstance(argument.value, int) else None
    )


def _bits(argument: Scalar) -> int:
    """Return the bits of an argument that does not depend on the shape, in the lower bytes of eight."""
    if argument.dtype == "bf16":
        return bfloat16_bits(float(argument.value))
    if argument.dtype in _FORMATS:
        return int.from_bytes(struct.pack(_FORMATS[argument.dtype], float(argument.value)), "little")
    return int(argument.value) & (2**64 - 1)
