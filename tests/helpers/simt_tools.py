"""Compiling CUDA C++ for the tests of the PTX machine, and reading the seeded defects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from paths import DATA

from evokern import simt
from evokern.compile.headers import include_directories

DEFECTS = DATA / "defects"
DTYPES = {
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "i32": np.int32, "u32": np.uint32, "i64": np.int64,
    "u64": np.uint64, "u16": np.uint16, "u8": np.uint8, "i8": np.int8,
}  # fmt: skip


@lru_cache(maxsize=256)
def ptx_of(source: str, options: tuple[str, ...] = (), architecture: str = "compute_89") -> str:
    """Return the PTX of CUDA C++, compiled with line information under the name ``kernel.cu``."""
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(source, "kernel.cu", (), ())
    paths = tuple(f"-I{path}" for path in include_directories())
    try:
        nvrtc.compileProgram(program, (f"--gpu-architecture={architecture}", "-lineinfo", *options, *paths))
    except nvrtc.NVRTCError as error:
        raise AssertionError(nvrtc.getProgramLog(program)) from error
    text = nvrtc.getPTX(program)
    return (text.decode() if isinstance(text, bytes) else text).rstrip("\0")


@lru_cache(maxsize=256)
def module_of(source: str, options: tuple[str, ...] = (), architecture: str = "compute_89") -> simt.Module:
    """Return the parsed module of CUDA C++."""
    return simt.parse(ptx_of(source, options, architecture))


@dataclass(frozen=True)
class Defect:
    """One seeded defect, as its comment header describes it."""

    name: str
    source: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    args: str
    kind: str
    tool: str
    lines: tuple[int, ...]
    architecture: str = "compute_89"

    def runs_on(self, chip: str) -> bool:
        """Say whether a chip such as ``sm_89`` has its instructions: those of ``compute_90a`` are of sm_90 alone."""
        return not self.architecture.endswith("a") or self.architecture == f"compute_{chip[3:]}a"

    def arguments(self, memory: simt.Memory) -> list[object]:
        """Allocate buffers and make scalars: ``name=f32[64]``; r: input, u: not initialised, iota: 0, 1, 2 …."""
        found: list[object] = []
        rng = np.random.default_rng(7)
        for word in self.args.split():
            name, _, rest = word.partition("=")
            array = re.match(r"(\w+)\[(\d+)\](r?)(u?)(:iota)?$", rest)
            if array is None:
                kind, _, value = rest.partition(":")
                found.append(DTYPES[kind](value))
                continue
            dtype, count = DTYPES[array[1]], int(array[2])
            random = name == "in" or name == "data"
            data = (
                np.arange(count).astype(dtype)
                if array[5]
                else (rng.random(count) if random else np.zeros(count)).astype(dtype)
            )
            found.append(memory.allocate(name, data, writable=not array[3], initialised=not array[4]))
        return found

    def run(self, *, fixed: bool = False, **options: object) -> simt.LaunchResult:
        """Run the defect, or its clean twin, on the machine."""
        module = module_of(self.source, ("-DFIXED",) if fixed else (), self.architecture)
        memory = simt.Memory()
        spec = simt.LaunchSpec("kernel", self.grid, self.block, dynamic_shared=self.shared)
        given = {"source": self.source, "instruction_limit": 2_000_000, **options}
        return launch(module, spec, self.arguments(memory), memory, **given)


def launch(
    module: simt.Module, spec: simt.LaunchSpec, args: Sequence[Any], memory: simt.Memory, **mixed: Any
) -> simt.LaunchResult:
    """Run a launch with settings of `simt.LaunchSpec` and of `simt.LaunchOptions`, in any order."""
    own = {name: mixed.pop(name) for name in ("dynamic_shared", "cluster", "blocks") if name in mixed}
    return simt.launch(module, replace(spec, **own), args, memory, simt.LaunchOptions(**mixed))


def _three(text: str) -> tuple[int, int, int]:
    x, y, z = (int(number) for number in text.split(","))
    return x, y, z


def defects() -> list[Defect]:
    """Return all seeded defects, by name."""
    found = []
    for path in sorted(DEFECTS.glob("*.cu")):
        source = path.read_text()
        header = dict(re.findall(r"^// (\w+): (.*)$", source, re.MULTILINE))
        launch = dict(part.split("=") for part in header["launch"].split())
        kind, _, tool = header["expect"].partition(" ")
        lines = tuple(number for number, line in enumerate(source.splitlines(), 1) if line.rstrip().endswith("// BUG"))
        found.append(
            Defect(
                path.stem,
                source,
                _three(launch["grid"]),
                _three(launch["block"]),
                int(launch["shared"]),
                header["args"],
                kind,
                tool,
                lines,
                header.get("arch", "compute_89"),
            )
        )
    return found
