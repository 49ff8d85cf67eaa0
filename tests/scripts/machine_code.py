"""Did an edit of the kernels keep the machine code? Compiles candidates of two versions of `kernels/`.

    git archive COMMIT kernels | tar x -C DIR
    python tests/scripts/machine_code.py DIR/kernels [--kernel NAME ...] [--count 200] [--seed 0] [--chip h200]

The candidates are drawn from the old version. For each candidate, another value of a gene is fixed, so that all values
occur.
Equal PTX is equal machine code; if the PTX differs, the machine code is compared like that of two candidates of a
search. Prints a line for each kernel and for each candidate that differs; exits with 1 if a candidate differs. Results
of the old version are kept in DIR, so that a second run compiles only the new version.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import cycle
from pathlib import Path

import helpers_path  # noqa: F401 (finds the helpers)
from paths import KERNELS

from evokern.compile.fingerprint import code_digest, variables_in_use
from evokern.compile.nvrtc import compile_program
from evokern.compile.records import Program
from evokern.declaration.feasibility import feasible_space
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.render import render
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import load_kernel, remember_trust

PROBLEMS = {
    "attention": ("2,8,512,64", "1,2,300,128,causal=1,dtype=bf16", "2,4,300,128", "1,2,1024,64,causal=1,dtype=bf16"),
    "attention_fp8": ("2,8,512,64", "1,2,300,128,causal=1,dtype=u8", "2,4,300,128", "1,2,512,64,causal=1,dtype=u8"),
    "matmul": ("4096,4096,4096", "1000,1024,1096,dtype=bf16,layout=nt", "8,4096,4096,layout=nt", "33,2048,4100",
               "4,8192,4096,dtype=bf16", "512,520,4096,layout=nt"),
    "rmsnorm": ("8192,8192", "300,1022,dtype=bf16,residual=add", "5,264", "64,12288,residual=add", "7,33"),
}  # fmt: skip
TRIES = 3000
"""Draws of a candidate with one fixed value, before the value counts as infeasible for a problem."""


@cache
def _kernel(folder: Path) -> Kernel:
    return load_kernel(folder)


def drawn(kernel: Kernel, count: int, seed: int, chip: str) -> Iterator[tuple[str, Config]]:
    """Yield problems and different feasible candidates."""
    rng, seen, problems = random.Random(seed), set(), cycle(PROBLEMS[kernel.name])
    pairs = cycle([(gene.name, value) for gene in kernel.genes for value in gene.values])
    while len(seen) < count:
        (gene, value), text = next(pairs), next(problems)
        space = feasible_space(kernel, [kernel.problem(text)], CHIPS[chip], {gene: (value,)})
        config = space.sample(rng, TRIES)
        if config is not None and (text, config) not in seen:
            seen.add((text, config))
            yield text, config


def compiled(folder: Path, config: Config, problem: Problem, architecture: str) -> tuple[str, str]:
    """Return the PTX of a candidate without comments and unused constants, and the digest of its machine code.

    Args:
        folder: folder of the kernel.
        config: the candidate.
        problem: the problem.
        architecture: `compute_90` for PTX only, `sm_90` for machine code.
    """
    made = render(_kernel(folder), config, problem)
    architecture += made.architecture_suffix
    program = compile_program(made.source, made.name, made.headers, made.options, made.entries, architecture, False)
    if not isinstance(program, Program):
        return "", f"failed: {program.log}"
    used = variables_in_use(program.ptx).values()
    lines = [
        line for line in re.sub(r"//.*", "", program.ptx).splitlines() if not line.startswith((".global", ".const"))
    ]
    return "\n".join([*used, *lines]), code_digest(program, made.entries) if program.cubin else ""


def _compiled_before(old: Path, job: tuple[str, str, Config], architecture: str) -> tuple[str, str]:
    """Return the result for the old version, which a file keeps."""
    name, text, config = job
    key = hashlib.sha256(json.dumps([name, text, dict(config), architecture], sort_keys=True).encode()).hexdigest()[:24]
    kept = old.parent / "compiled" / f"{key}.json"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        problem = _kernel(old / name).problem(text)
        kept.write_text(json.dumps(compiled(old / name, config, problem, architecture)), encoding="utf-8")
    found: tuple[str, str] = tuple(json.loads(kept.read_text(encoding="utf-8")))
    return found


def compared(job: tuple[Path, str, str, Config]) -> str:
    """Return how a candidate's two versions compare."""
    old, name, text, config = job
    kernel = _kernel(KERNELS / name)
    own = Config({**kernel.space.default(), **config})  # with new genes at their defaults
    for architecture, result in (("compute_90", "equal PTX"), ("sm_90", "equal machine code")):
        before = _compiled_before(old, (name, text, config), architecture)
        after = compiled(kernel.folder, own, kernel.problem(text), architecture)
        if before[1].startswith("failed") and after[1].startswith("failed"):
            return "equal failure"
        if after[1].startswith("failed"):
            return after[1]
        if (before[1] == after[1]) if after[1] else (before[0] == after[0]):
            return result
    return "different"


def main() -> int:
    """Compare the kernels that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="folder with the old version of the kernels")
    parser.add_argument("--kernel", nargs="*", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chip", choices=list(CHIPS), default="h200")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    old = arguments.old.resolve()
    worst = 0
    for name in arguments.kernel:
        remember_trust(old / name)
        jobs = [
            (old, name, *one) for one in drawn(_kernel(old / name), arguments.count, arguments.seed, arguments.chip)
        ]
        with ProcessPoolExecutor(max_workers=arguments.workers) as pool:
            results = list(pool.map(compared, jobs, chunksize=4))
        counts = Counter(one if one.startswith("equal") else "different" for one in results)
        print(f"{name}: {', '.join(f'{count} {what}' for what, count in counts.most_common())}", flush=True)
        for (_, _, text, config), result in zip(jobs, results, strict=True):
            if not result.startswith("equal"):
                worst = 1
                print(json.dumps({"problem": text, "result": result, "config": dict(config)}), flush=True)
    return worst


if __name__ == "__main__":
    raise SystemExit(main())
