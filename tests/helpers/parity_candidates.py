"""The repository's own kernels as parity cases: one candidate at one small problem, on both machines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from gpu_launcher import Job
from paths import DATA, KERNELS

from evokern import simt
from evokern.compile.build import tensors_of
from evokern.compile.nvrtc import compile_program
from evokern.compile.records import Program
from evokern.declaration.feasibility import launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Launch, Problem, Scalar
from evokern.declaration.render import render
from evokern.gate.data import torch_dtype
from evokern.study.discovery import load_kernel

FOLDERS = {name: KERNELS / name for name in ("attention", "matmul", "rmsnorm")}
FOLDERS["scale_rows"] = DATA / "kernels" / "scale_rows"
Array = np.ndarray[Any, Any]

SKINNY: dict[str, Any] = {"PATH": "skinny", "LANES": "row", "WARPS_K": 2, "STAGES": 2}
CANDIDATES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("attention", "1,2,200,64", {}),
    ("attention", "1,1,72,64,causal=1", {"KEY_SPLITS": 4, "WARPS_M": 1, "BLOCK_M": 16, "BLOCK_N": 16, "MERGE": "fp32"}),
    ("attention", "1,1,256,64", {"KV_BUFFERS": "resident", "BLOCK_N": 64, "WARPS_M": 2, "KEY_WALK": "rotated"}),
    ("attention", "1,1,72,128,causal=1", {"KEY_SPLITS": 1, "STAGES": 1, "LOOP_ORDER": "plain", "KV_LOAD": "vector16"}),
    ("attention", "1,1,200,64", {"WARP_ROLES": "loaders", "STAGES": 3, "LOAD_WARPS": 2}),
    ("attention", "1,1,72,64,causal=1", {"TENSOR_CORES": "wmma", "SMEM_LAYOUT": "padded"}),
    ("attention", "1,1,24,64", {"TENSOR_CORES": "none", "BLOCK_M": 32, "SOFTMAX": "shared", "STAGES": 1}),
    ("attention", "1,1,200,64", {"EXP": "f16x2", "QK_ACC": "fp16", "PV_ACC": "fp16"}),
    ("matmul", "144,160,96", {}),
    ("matmul", "72,48,200", {"ACCUMULATOR": "fp16", "BLOCK_M": 32, "BLOCK_N": 32, "LOAD": "registers", "STAGES": 2}),
    ("matmul", "16,72,264,layout=nt", SKINNY | {"WARP_COLUMNS": 16, "DEPTH": 64}),
    ("matmul", "3,40,1032,layout=nt", SKINNY | {"WARP_COLUMNS": 32, "PRODUCTS": "fma", "LOAD": "registers"}),
    ("matmul", "16,72,264", SKINNY | {"WARP_COLUMNS": 32, "DEPTH": 64}),
    ("matmul", "136,152,88", {"BLOCK_M": 64, "BLOCK_N": 64, "TILES": 2, "EPILOGUE": "store_warps"}),
    ("rmsnorm", "5,264", {}),
    ("rmsnorm", "3,1024", {"ROW_STORAGE": "shared", "THREADS_PER_ROW": 64, "VECTOR": 4}),
    ("scale_rows", "3,64", {"WARPS": 1}),
    ("scale_rows", "2,160", {"LOADS": "vector4", "REDUCE": "block"}),
)
"""Kernel, problem, changes to the default candidate."""

RELATIVE_ERROR = {"attention": 1e-3, "matmul": 1e-3, "rmsnorm": 1e-3, "scale_rows": 1e-7}
"""Largest Frobenius norm of the difference over that of the simulated output.

Results in fp16 carry 2^-11 a rounding; where the last bits of an fp32 sum differ (tensor cores align and cut, the
PTX machine rounds once), some of them round to the neighbour. scale_rows divides and multiplies in fp32, each exactly
rounded or within 2 units in the last place."""


@dataclass(frozen=True)
class Candidate:
    """A compiled candidate with its inputs."""

    kernel: Kernel
    config: Config
    problem: Problem
    program: Program
    launches: tuple[Launch, ...]
    tensors: dict[str, Array]

    def jobs(self) -> list[Job]:
        """Return the launches for the GPU; only kernels of one launch are asked for."""
        (launch,) = self.launches
        return [
            Job(
                self.problem.key, self.program.cubin, self.program.lowered[launch.entry], launch.grid, launch.block,
                tuple(self._argument(item) for item in launch.args), shared=launch.shared_bytes,
            )
        ]  # fmt: skip

    def _argument(self, item: str | Scalar) -> Any:
        if isinstance(item, str):
            return self.tensors[item]
        kinds = {
            "i32": np.int32,
            "u32": np.uint32,
            "i64": np.int64,
            "u64": np.uint64,
            "f32": np.float32,
            "f64": np.float64,
        }
        return kinds[item.dtype](item.value)

    def simulate(self, *, count: bool = False) -> tuple[simt.LaunchResult, dict[str, Array]]:
        """Run on the PTX machine; return the result and all buffers by name."""
        memory = simt.Memory()
        roles = {name: tensor.role for name, tensor in tensors_of(self.kernel, self.config, self.problem).items()}
        placed = {
            name: memory.allocate(
                name, data, writable=roles[name] != "input", initialised=roles[name] in ("input", "inout", "workspace")
            )
            for name, data in self.tensors.items()
        }
        (launch,) = self.launches
        arguments = [placed[item] if isinstance(item, str) else self._argument(item) for item in launch.args]
        result = simt.launch(
            simt.parse(self.program.ptx),
            simt.LaunchSpec(
                self.program.lowered[launch.entry], launch.grid, launch.block, dynamic_shared=launch.shared_bytes
            ),
            arguments,
            memory,
            simt.LaunchOptions(count=count),
        )
        return result, {name: buffer.read() for name, buffer in placed.items()}

    def output(self, buffers: tuple[Array, ...]) -> dict[str, Array]:
        """Return the GPU's buffers by name."""
        names = [item for item in self.launches[0].args if isinstance(item, str)]
        return dict(zip(names, buffers, strict=True))


@lru_cache(maxsize=64)
def candidate(name: str, problem: str, changes: tuple[tuple[str, Any], ...], architecture: str) -> Candidate:
    """Compile a candidate and draw its inputs: normal, the same every time."""
    kernel = load_kernel(FOLDERS[name])
    config = kernel.space.canonical({**kernel.space.default(), **dict(changes)})
    at = kernel.problem(problem)
    built = render(kernel, config, at)
    program = compile_program(
        built.source, built.name, built.headers, built.options, built.entries, architecture + built.architecture_suffix,
        line_info=True,
    )  # fmt: skip
    assert isinstance(program, Program), program
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for tensor_name, tensor in tensors_of(kernel, config, at).items():
        drawn = torch.randn(tensor.shape, generator=generator) if tensor.role == "input" else torch.zeros(tensor.shape)
        tensors[tensor_name] = drawn.to(torch_dtype(tensor.dtype)).numpy()
    return Candidate(kernel, config, at, program, launches_of(kernel, config, at), tensors)


def all_candidates(architecture: str) -> list[Candidate]:
    """Return every candidate of the list, compiled."""
    return [candidate(name, problem, tuple(changes.items()), architecture) for name, problem, changes in CANDIDATES]
