"""Do the bounds of the packaged kernels hold at shapes that nobody named, and do they find planted errors? Needs a GPU.

    python tests/scripts/bounds_breadth.py [--kernel NAME ...] [--problems 40] [--errors 75] [--candidates 13]

Draws problems log-uniformly. At each one, the default candidate, other feasible candidates and every baseline must
pass the gate; then errors are planted into the results of the default candidate, at random elements, and must be found.
Prints one line for each kernel, and each result that breaks a rule. Exits with 1 if a rule is broken. The defaults
check over 2,000 candidates. Candidates are compiled on all cores while earlier ones run on the GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import helpers_path  # noqa: F401 (finds the helpers)
import torch
from paths import KERNELS

from evokern.compile.build import Target, build, tensors_of
from evokern.compile.cache import CompileCache
from evokern.compile.records import Built
from evokern.declaration.feasibility import check, feasible_space, launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.space import Space
from evokern.device.gpu.baselines import BaselineRunner
from evokern.device.gpu.cuda import Candidate, GpuRunner
from evokern.device.gpu.gate_kernels import GateKernels
from evokern.device.gpu.profile import live_gpu
from evokern.gate.buffer_set import BufferSet
from evokern.gate.check import Call, Gate, RunFailed, Runner
from evokern.hardware.profiles import Profile
from evokern.study.discovery import load_kernel
from evokern.study.settings import GateSettings

HANG_S = 20.0
MOST_ELEMENTS = 1 << 27
MOST_FLOPS = 1 << 38
STRIDE = 8
"""Feasible changes between two candidates of a random walk."""


def log_uniform(rng: random.Random, low: int, high: int, multiple: int = 1) -> int:
    """Return a multiple between two bounds, log-uniformly distributed."""
    drawn = math.exp(rng.uniform(math.log(low), math.log(high)))
    return max(multiple, round(drawn / multiple) * multiple)


def drawn_text(name: str, rng: random.Random) -> str:
    """Return a random problem of a kernel as text."""
    dtype = rng.choice(("f16", "bf16"))
    if name == "matmul":
        m, n = log_uniform(rng, 1, 8192), log_uniform(rng, 8, 8192, 8)
        return f"{m},{n},{log_uniform(rng, 16, 65536, 8)},dtype={dtype},layout={rng.choice(('nn', 'nt'))}"
    if name == "rmsnorm":
        rows, columns = log_uniform(rng, 1, 65536), log_uniform(rng, 8, 65536, 8)
        return f"{rows},{columns},dtype={dtype},residual={rng.choice(('none', 'add'))}"
    dtype = rng.choice(("e4m3", "u8")) if name == "attention_fp8" else dtype
    heads, depth = log_uniform(rng, 1, 16), rng.choice((64, 128))
    length, causal = log_uniform(rng, 16, 16384), rng.choice((0, 1))
    return f"{log_uniform(rng, 1, 4)},{heads},{length},{depth},causal={causal},dtype={dtype}"


def problems(kernel: Kernel, count: int, rng: random.Random, profile: Profile) -> list[Problem]:
    """Return different problems that the default candidate supports and whose references are affordable."""
    config = kernel.space.default()
    found: dict[str, Problem] = {}
    while len(found) < count:
        problem = kernel.problem(drawn_text(kernel.name, rng))
        tensors = kernel.workload.buffers(problem, config)
        large = sum(t.elements for t in tensors.values()) > MOST_ELEMENTS or kernel.workload.flops(problem) > MOST_FLOPS
        if not large and check(kernel, config, [problem], profile) is None:
            found[problem.key] = problem
    return list(found.values())


@dataclass(frozen=True)
class WithError:
    """Runner that plants an error into the results of another one."""

    runner: Runner
    bench: BufferSet
    output: str
    plant: Callable[[Mapping[str, torch.Tensor], torch.Tensor], None]

    def run(self, calls: Sequence[Call]) -> None:
        """Run the calls, and plant the error into each."""
        self.runner.run(calls)
        rule = self.bench.rule(self.output)
        for call, (_, index) in zip(calls, self.bench.calls, strict=True):
            answers = self.bench.reference(index)
            expected = rule.clamp_reference(answers[self.output]).nan_to_num()
            allowed = rule.allowed(expected, answers.errors.get(self.output)).nan_to_num()
            self.plant(call.arguments, allowed)
        torch.cuda.synchronize()


@dataclass
class Counts:
    """Results of one kernel."""

    passed: int = 0
    rejected: list[str] = field(default_factory=list)
    caught: int = 0
    missed: list[str] = field(default_factory=list)
    infeasible: int = 0


def planted(kernel: Kernel, problem: Problem, output: str, rng: random.Random) -> tuple[str, Callable[..., None]]:
    """Return a random error with its description: a function of the buffers and of the bound of each element."""
    kind = rng.choice(("element", "element", "term", "stale row", "half of the grid", "precision"))
    place, times = rng.random(), rng.uniform(2, 10)

    def element(buffers: Mapping[str, torch.Tensor], allowed: torch.Tensor) -> None:
        flat, at = buffers[output].view(-1), int(place * buffers[output].numel())
        value = flat[at].double() + times * allowed.reshape(-1)[at]
        flat[at] = value.clamp(-torch.finfo(flat.dtype).max, torch.finfo(flat.dtype).max)

    def term(buffers: Mapping[str, torch.Tensor], allowed: torch.Tensor) -> None:
        c, a = buffers[output], buffers["a"]
        b = buffers["b"].T if problem["layout"] == "nt" else buffers["b"]
        products = (a != 0).double() @ (b != 0).double()
        row, column = divmod(int(place * c.numel()), c.shape[1])
        if not bool(products[row, column]):
            row, column = divmod(int(products.argmax()), c.shape[1])
        terms = a[row].double() * b[:, column].double()
        last = int(terms.nonzero()[-1]) if bool(terms.any()) else 0
        c[row, column] = c[row, column].double() - terms[last]

    def stale_row(buffers: Mapping[str, torch.Tensor], allowed: torch.Tensor) -> None:
        rows = buffers[output].view(-1, buffers[output].shape[-1])
        rows[int(place * len(rows))] = rows[int(place * len(rows)) - 1] if len(rows) > 1 else 0

    def half(buffers: Mapping[str, torch.Tensor], allowed: torch.Tensor) -> None:
        flat = buffers[output].view(-1)
        flat[len(flat) // 2 :] = 0

    def precision(buffers: Mapping[str, torch.Tensor], allowed: torch.Tensor) -> None:
        out = buffers[output]
        limit = torch.finfo(out.dtype).max
        out.copy_((out.double() + times * allowed * torch.randn_like(allowed).sign()).clamp(-limit, limit))

    if kind == "term" and kernel.name == "matmul":
        return kind, term
    return {
        "stale row": (kind, stale_row), "half of the grid": (kind, half), "precision": (kind, precision)
    }.get(kind, (f"element changed by {times:.1f} bounds", element))  # fmt: skip


def other_candidates(space: Space, count: int, rng: random.Random) -> list[Config]:
    """Return different feasible candidates of a random walk from the default candidate.

    One in a thousand random combinations is feasible, but one in three random changes of a feasible candidate.
    """
    here, moves = space.default(), 0
    found: dict[Config, None] = {}
    for _ in range(3000):
        genes = rng.sample(space.genes, min(len(space.genes), rng.choice((1, 2, 3))))
        there = space.canonical({**here, **{gene.name: rng.choice(gene.values) for gene in genes}})
        if there == here or not space.feasible(there):
            continue
        here, moves = there, moves + 1
        if moves % STRIDE == 0 and here != space.default():
            found[here] = None
        if len(found) == count:
            break
    return list(found)


def built(job: tuple[str, str, Config, Profile, str]) -> object:
    """Compile a candidate, in another process."""
    name, problem, config, profile, cache = job
    kernel = load_kernel(KERNELS / name)
    return build(kernel, config, [kernel.problem(problem)], Target(profile, CompileCache(Path(cache))))


def compiled(
    name: str, jobs: Sequence[tuple[Problem, Config]], profile: Profile
) -> Iterator[tuple[Problem, Config, object]]:
    """Yield each candidate with its program, while later ones are compiled."""
    with tempfile.TemporaryDirectory() as cache, ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        made = pool.map(built, ((name, problem.key, config, profile, cache) for problem, config in jobs), chunksize=2)
        for (problem, config), program in zip(jobs, made, strict=True):
            yield problem, config, program


def examine(name: str, arguments: argparse.Namespace) -> tuple[int, int]:
    """Check one kernel, print the counts, and return how many candidates were checked and how many rules broken."""
    rng, kernel, device = (
        random.Random(f"{arguments.seed} {name}"),
        load_kernel(KERNELS / name),
        torch.device("cuda", 0),
    )
    profile = live_gpu(0).profile
    own = GateKernels(profile)
    candidates, baselines, errors = Counts(), Counts(), Counts()
    drawn, began = problems(kernel, arguments.problems, rng, profile), time.monotonic()
    jobs: list[tuple[Problem, Config]] = []
    for problem in drawn:
        others = other_candidates(feasible_space(kernel, [problem], profile, {}), arguments.candidates, rng)
        jobs += [(problem, config) for config in (kernel.space.default(), *others)]
    print(f"{name}: {len(jobs)} candidates drawn in {time.monotonic() - began:.0f} s", flush=True)
    gates: dict[str, Gate] = {}
    for problem, config, made in compiled(name, jobs, profile):
        if not isinstance(made, Built):
            candidates.infeasible += 1
            continue
        first = problem.key not in gates
        if first:
            gates.clear()
            torch.cuda.empty_cache()
            gates[problem.key] = Gate(kernel, problem, GateSettings(), device, own=own)
        gate = gates[problem.key]
        tensors, launches = tensors_of(kernel, config, problem), launches_of(kernel, config, problem)
        candidate = Candidate(made)
        runner = GpuRunner(candidate, made.build(problem).program, HANG_S)
        try:
            verdict = gate.check(runner, launches, tensors)
        except RunFailed as failed:
            candidates.rejected.append(f"{problem} {failed} {dict(config)}")
            continue
        if verdict.passed:
            candidates.passed += 1
        else:
            candidates.rejected.append(f"{problem} {verdict.evidence['message']} {dict(config)}")
        if first and verdict.passed:
            plant_errors(kernel, problem, gate, runner, rng, max(1, arguments.errors // len(drawn)), errors)
        candidate.unload()
        if not first:
            continue
        for baseline in kernel.workload.baselines:
            with contextlib.suppress(RuntimeError):
                own_bounds = tensors_of(kernel, config, problem, baseline)
                found = gate.check(BaselineRunner(baseline, problem, HANG_S), launches, own_bounds)
                if found.passed or found.evidence["check"] == "deterministic":
                    baselines.passed += 1
                else:
                    baselines.rejected.append(f"{problem} {baseline.name} {found.evidence['message']}")
    for what, counts in (("candidates", candidates), ("baselines", baselines)):
        print(f"{name}: {what}: {counts.passed} passed, {len(counts.rejected)} rejected, {counts.infeasible} not built")
    print(f"{name}: errors: {errors.caught} found, {len(errors.missed)} missed; {time.monotonic() - began:.0f} s")
    for line in (*candidates.rejected, *baselines.rejected, *errors.missed):
        print("  ", line[:600])
    broken = len(candidates.rejected) + len(baselines.rejected) + len(errors.missed)
    return candidates.passed + len(candidates.rejected), broken


def plant_errors(
    kernel: Kernel, problem: Problem, gate: Gate, runner: Runner, rng: random.Random, count: int, counts: Counts
) -> None:
    """Plant errors into results of the default candidate and count those that the gate finds."""
    config = kernel.space.default()
    tensors, launches = tensors_of(kernel, config, problem), launches_of(kernel, config, problem)
    bench = gate.bench(tensors, gate.kinds(tensors), gate.settings.runs)
    outputs = [name for name, tensor in bench.results.items() if tensor.factors]
    for _ in range(count):
        output = rng.choice(outputs)
        text, plant = planted(kernel, problem, output, rng)
        if gate.check(WithError(runner, bench, output, plant), launches, tensors).passed:
            counts.missed.append(f"{problem} {text}")
        else:
            counts.caught += 1


def main() -> int:
    """Check the requested kernels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("matmul", "attention", "rmsnorm", "attention_fp8")
    parser.add_argument("--kernel", nargs="*", choices=names, default=list(names))
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--errors", type=int, default=75, help="planted errors per kernel")
    parser.add_argument("--candidates", type=int, default=13, help="other candidates per problem")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.cuda.set_device(0)
    matmul = torch.backends.cuda.matmul
    matmul.allow_fp16_reduced_precision_reduction = matmul.allow_bf16_reduced_precision_reduction = False
    found = [examine(name, arguments) for name in arguments.kernel]
    print(f"{sum(count for count, _ in found)} candidates checked, {sum(broken for _, broken in found)} rules broken")
    return 1 if any(broken for _, broken in found) else 0


if __name__ == "__main__":
    raise SystemExit(main())
