"""Are candidates that pass every constraint really feasible? Draws some of each space, compiles and launches them.

    python tests/scripts/feasible_space.py [--kernel NAME ...] [--only GENE=VALUE] [--count 2000] [--chip h200]
                                           [--launch] [--seconds 240]

Without `--launch`, no GPU is needed: all candidates are compiled for the chip on all cores, and nothing must be refused
for shared memory or fail to compile. With `--launch`, a live worker also checks each candidate as soon as it is
compiled, until `--seconds` for one kernel have passed or the user presses Ctrl-C: no launch may fail for resources, and
fewer than 2 % may crash. Prints the progress, the counts of each kernel, and each candidate that broke a rule or was
wrong. Exits with 1 if a rule was broken (wrong results break none, because fp16 accumulators may be wrong), and with
130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections import Counter, deque
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from functools import cache

import helpers_path  # noqa: F401 (finds the helpers)
from paths import KERNELS
from ranking import drawn_candidates

from evokern.compile.build import Target, build
from evokern.compile.cache import CompileCache, default_directory
from evokern.compile.records import Built
from evokern.declaration.feasibility import feasible_space
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel
from evokern.device.contract import Request, Task
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import find_study, load_kernel
from evokern.study.settings import GateSettings, TimingSettings
from evokern.study.trial import Evaluation, Outcome

PROBLEMS = {
    "attention": ("2,8,512,64", "attention-s512"),
    "attention_fp8": ("2,8,512,64", "attention-fp8"),
    "matmul": ("1024,1024,1024", "matmul-4096"),
    "rmsnorm": ("8192,8192", "rmsnorm-8192"),
}
"""Kernel → a problem on which every choice can be made, and the study whose other settings hold."""
RESOURCES = ("LAUNCH_OUT_OF_RESOURCES", "INVALID_VALUE", "INVALID_CONFIGURATION", "OUT_OF_MEMORY")
"""Parts of the names of CUDA errors that say that a launch asked for more than there is."""
CRASHES_ALLOWED = 0.02
PROGRESS_S = 5.0
"""Seconds between lines that tell the progress."""
Compiling = Future[tuple[str, str]]


def drawn(kernel: Kernel, problem: str, chip: str, count: int, seed: int, only: str | None = None) -> list[Config]:
    """Return different feasible configurations, drawn at random, with `GENE=VALUE` of a mutation held."""
    genes = dict([only.split("=")]) if only else {}
    space = feasible_space(kernel, [kernel.problem(problem)], CHIPS[chip], {g: (v,) for g, v in genes.items()})
    return drawn_candidates(space, random.Random(seed), count)


@cache
def _kernel(name: str) -> Kernel:
    return load_kernel(KERNELS / name)


def compiled(job: tuple[str, str, str, Config]) -> tuple[str, str]:
    """Return how a candidate's compile ended, and why."""
    name, problem, chip, config = job
    kernel = _kernel(name)
    result = build(kernel, config, [kernel.problem(problem)], Target(CHIPS[chip], CompileCache(default_directory())))
    if isinstance(result, Built):
        return "built", ""
    shared = "shared" in str(result.evidence.get("constraint", ""))
    return "refused for shared memory" if shared else str(result.outcome.value), result.reason


def launched(
    name: str, problem: str, compiles: Mapping[Compiling, Config], seconds: float
) -> tuple[dict[Config, tuple[str, str]], dict[Config, Evaluation], bool]:
    """Return how the compiles ended, what a live worker says of the candidates in time, and whether Ctrl-C came."""
    from evokern.device.gpu.live import open_live

    kernel = _kernel(name)
    gate = GateSettings(input_sets=("normal",), runs=1)
    timing = TimingSettings(min_samples=3, max_samples=3, sample_us=1.0, warmup_us=0.0)
    study = replace(find_study(PROBLEMS[name][1]), gate=gate, timing=timing, problems=(problem,), genes={})
    device = open_live("auto")
    results: dict[Config, tuple[str, str]] = {}
    answers: dict[Config, Evaluation] = {}
    interrupted = False
    pending, ready, waiting = set(compiles), deque[Config](), dict[int, Config]()

    def poll() -> None:
        for answer in device.poll(0.2):
            answers[waiting.pop(answer.number)] = answer.evaluation

    try:
        device.start(Task(kernel, (kernel.problem(problem),), study))
        began = told = time.monotonic()
        while time.monotonic() < began + seconds and (pending or ready or waiting):
            done, pending = wait(pending, 0.0 if waiting else 0.5, FIRST_COMPLETED)
            results |= {compiles[compiling]: compiling.result() for compiling in done}
            ready += [compiles[compiling] for compiling in done if compiling.result()[0] == "built"]
            while ready and len(waiting) < device.window:
                number = len(answers) + len(waiting)
                waiting[number] = ready.popleft()
                device.submit(Request(number, waiting[number]))
            poll()
            if time.monotonic() > told + PROGRESS_S:
                told = time.monotonic()
                print(f"{name}: {len(results)} compiled, {len(answers)} launched in {told - began:.0f} s", flush=True)
        while waiting and time.monotonic() < began + seconds + 60:
            poll()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        device.close()
    return results, answers, interrupted


def _for_resources(evaluation: Evaluation) -> bool:
    error = str(evaluation.evidence.get("error", ""))
    return evaluation.outcome is Outcome.CRASHED and any(part in error for part in RESOURCES)


def examine(name: str, arguments: argparse.Namespace) -> int:
    """Compile and perhaps launch one kernel's draws, print the counts; return how many rules were broken."""
    problem = arguments.problem or PROBLEMS[name][0]
    configs = drawn(_kernel(name), problem, arguments.chip, arguments.count, arguments.seed, arguments.only)
    began = time.monotonic()
    answers: dict[Config, Evaluation] = {}
    interrupted = False
    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        compiles = {pool.submit(compiled, (name, problem, arguments.chip, config)): config for config in configs}
        if arguments.launch:
            results, answers, interrupted = launched(name, problem, compiles, arguments.seconds)
            pool.shutdown(cancel_futures=True)
        else:
            results = {config: compiling.result() for compiling, config in compiles.items()}
    counts = Counter(how for how, _ in results.values())
    text = ", ".join(f"{count} {how}" for how, count in counts.most_common())
    print(f"{name} at {problem}: {len(configs)} feasible candidates; {text}; {time.monotonic() - began:.0f} s")
    bad = [(config, how, why) for config, (how, why) in results.items() if how != "built"]
    broken = len(bad)
    if arguments.launch:
        ends = Counter(e.outcome.value for e in answers.values())
        resources = sum(map(_for_resources, answers.values()))
        crashes = ends["crashed"] + ends["hung"]
        text = ", ".join(f"{count} {how}" for how, count in ends.most_common())
        print(
            f"{name}: {len(answers)} of {counts['built']} launched; {text}; {resources} launches failed for resources"
        )
        broken += resources + (crashes > CRASHES_ALLOWED * max(1, len(answers)))
        unsound = (Outcome.CRASHED, Outcome.HUNG, Outcome.WRONG)
        bad += [(config, e.outcome.value, e.reason) for config, e in answers.items() if e.outcome in unsound]
    for config, how, why in bad[: arguments.show]:
        print(json.dumps({"kernel": name, "how": how, "why": why, "config": dict(config)}))
    if interrupted:
        raise SystemExit(130)
    return broken


def main() -> int:
    """Examine the kernels that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", nargs="*", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--problem", help="problem instead of the kernel's own, for one --kernel")
    parser.add_argument("--only", metavar="GENE=VALUE", help="hold a mutation: what a rare value makes feasible")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--chip", choices=list(CHIPS), default="h200")
    parser.add_argument("--launch", action="store_true", help="launch each candidate once on the first GPU")
    parser.add_argument("--seconds", type=float, default=240.0, help="for the launches of one kernel")
    parser.add_argument("--show", type=int, default=40, help="candidates to print that broke a rule")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.environ["CUDA_CACHE_DISABLE"] = "1"  # NVRTC's own cache answers without the assembler's report
    return 1 if sum(examine(name, arguments) for name in arguments.kernel) else 0


if __name__ == "__main__":
    raise SystemExit(main())
