"""What the sanitizer costs: the same launches with and without its checks, run as a script.

    python tests/scripts/sanitizer_cost.py [REPEATS]

Four launches of a small problem side by side, as the gate runs them, with their checks of races, unwritten data and
unwaited copies on and off in turn; bounds and alignment are checked either way. Times are the least of all repeats, of
the processor alone, so that a busy machine disturbs them little.
"""

from __future__ import annotations

import gc
import sys
import time
from typing import Any

import helpers_path  # noqa: F401 (finds the helpers)
from parity_candidates import FOLDERS

from evokern import simt
from evokern.compile.build import tensors_of
from evokern.declaration.feasibility import launches_of
from evokern.declaration.render import render
from evokern.device.sim.arguments import draw_buffers
from evokern.device.sim.program import SimulatedProgram, compile_simulated
from evokern.hardware.profiles import chip
from evokern.study.discovery import load_kernel
from evokern.study.settings import SimulationSettings

CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("attention", "1,2,72,64", {}),
    ("attention", "1,1,192,64", {}),
    ("attention", "1,2,72,64", {"TENSOR_CORES": "none", "BLOCK_M": 32, "SOFTMAX": "shared", "STAGES": 1}),
    ("matmul", "144,160,96", {}),
    ("rmsnorm", "5,264", {}),
)
"""Kernel, problem, changes to the default candidate."""
SETS = 4
"""Launches side by side: the gate's input sets."""
REPEATS = 20
LIMIT = SimulationSettings().instruction_limit


def cost(name: str, problem_text: str, changes: dict[str, Any], repeats: int) -> tuple[float, float]:
    """Return the least seconds of one launch without and with checks."""
    kernel = load_kernel(FOLDERS[name])
    config = kernel.space.canonical({**kernel.space.default(), **changes})
    problem = kernel.problem(problem_text)
    program = compile_simulated(render(kernel, config, problem), chip("l4"))
    assert isinstance(program, SimulatedProgram), program
    (launch,) = launches_of(kernel, config, problem)

    def once(sanitize: bool) -> float:
        memory = simt.Memory()
        buffers = [draw_buffers(memory, tensors_of(kernel, config, problem)) for _ in range(SETS)]
        gc.collect()
        gc.disable()
        began = time.process_time()
        results = program.launch_many(launch, buffers, memory, instruction_limit=LIMIT, sanitize=sanitize)
        seconds = time.process_time() - began
        gc.enable()
        assert all(result.findings == () for result in results)
        return seconds

    pairs = [(once(False), once(True)) for _ in range(repeats + 1)][1:]
    return min(plain for plain, _ in pairs), min(checked for _, checked in pairs)


if __name__ == "__main__":
    for case in CASES:
        without, checked = cost(*case, int(sys.argv[1]) if len(sys.argv) > 1 else REPEATS)
        share = 1 - without / checked
        print(f"{case[0]} {case[1]} {case[2] or ''}: {without * 1e3:.1f} ms, checked {checked * 1e3:.1f}: {share:.0%}")
