"""Verdicts of the exact proof on the four kernels: random candidates and random mutants, run as a script.

    python tests/scripts/proof_numbers.py RESULTS.jsonl [--kernel NAME] [--part candidates|mutants|cost] [--count N]
        [--seed N] [--seconds N] [--summary]

Candidates are drawn until every value of every gene has occurred; each must be the same as the default candidate. A
mutant is a random candidate with one change of its source: an index, bound, mask, constant, stage or term. It should be
different, or fail before. Each result is one line of the file; a further run continues it.
"""

from __future__ import annotations

import json
import random
import re
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import helpers_path  # noqa: F401 (finds the helpers)
from exact_mutants import EARLIER, Change, changed_in_one_candidate, instructions, is_changed, judged_mutant
from paths import KERNELS

from evokern import simt
from evokern.analysis.check.folder import studies_of
from evokern.analysis.sanitize.candidate import few_rounds_remarks
from evokern.analysis.verify.under_test import CandidateUnderTest
from evokern.compile.build import tensors_of
from evokern.declaration.feasibility import check, launches_of
from evokern.declaration.genes import Config, Value
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.render import Rendered, render
from evokern.declaration.small_problems import gate_problems, problem_with
from evokern.device.sim.algebra import DIFFERENT, FAULT, NOT_FINISHED, SAME
from evokern.device.sim.algebra.comparison import compared
from evokern.device.sim.algebra.runs import LIMIT, ExactRun, exact_run
from evokern.device.sim.arguments import draw_buffers
from evokern.device.sim.program import SimulatedProgram, compile_simulated
from evokern.errors import EvokernError, SourceError
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import load_kernel, remember_trust
from evokern.study.settings import Study

CHIP = CHIPS["h200"]
PROBLEMS = {
    "attention": (
        "1,2,75,64", "1,2,75,64,causal=1", "2,1,139,64,dtype=bf16", "1,2,267,64", "1,2,139,128", "1,2,651,64",
    ),
    "attention_fp8": ("1,2,75,64", "1,2,75,64,causal=1", "2,1,139,64,dtype=u8", "1,2,267,64", "1,2,139,128,dtype=u8"),
    "matmul": (
        "75,48,200", "75,80,96,layout=nt", "77,48,104,dtype=bf16", "5,136,1000", "1,72,520,layout=nt",
        "16,72,264", "137,152,88", "267,64,64,layout=nt",
    ),
    "rmsnorm": (
        "5,264", "3,1024", "4,2048,dtype=bf16", "3,264,residual=add", "71,48", "2,4096,residual=add,dtype=bf16", "9,36",
    ),
}  # fmt: skip
"""Kernel → small problems with tails and two heads; a candidate runs at the first feasible one after a random one."""
REPEATS = 10
PATIENCE = 150
"""CPU seconds after which a mutant is left open."""
EVERYWHERE = 0.15
"""Probability that the place of a change may be a line without instructions, as that of a constant."""
UNCHANGED, UNCOMPILED = "unchanged", "does not compile"
FOUND = (DIFFERENT, FAULT, EARLIER)
"""Verdicts on mutants that are found; a fault is a finding of the machine, for example an access out of bounds."""
IDLE = (UNCHANGED, UNCOMPILED)
"""Verdicts on changes that are not mutants: no program, or the same instructions."""
OPERATORS: tuple[tuple[str, str, str], ...] = (
    ("bound", r"(?<![<>=!-])<=(?![<=])", "<"),
    ("bound", r"(?<![<>=-])>=", ">"),
    ("bound", r"(?<= )<(?= )", "<="),
    ("bound", r"(?<= )>(?= )", ">="),
    ("mask", r"==", "!="),
    ("mask", r"!=", "=="),
    ("mask", r"&&", "||"),
    ("mask", r"\|\|", "&&"),
    ("mask", r"(?<![&\w])& (?!&)", "| "),
    ("index", r"(?<= )\+(?= )", "-"),
    ("index", r"(?<= )-(?= )", "+"),
    ("index", r"(?<= )\*(?= )", "+"),
    ("index", r"(?<= )/(?= )", "*"),
    ("index", r"(?<= )%(?= )", "/"),
    ("index", r"(?<= )\^(?= )", "+"),
    ("index", r"\bmin\(", "max("),
    ("index", r"\bmax\(", "min("),
    ("term", r"\+=", "="),
    ("term", r"\bfmaf\(", "__fmul_rn(0.5f, 1.f) + fmaf("),
    ("term", r"(?<= )\+ [\w.]+(\[[^\]]*\])*(?=[,;)])", ""),
    ("term", r"(?<= )\* [\w.]+(\[[^\]]*\])*(?=[,;)])", ""),
    ("constant", r"(?<![\w.#\"])\d+\.\d*f\b", "#float"),
    ("constant", r"(?<![\w.#\"%{<])[1-9]\d*\b(?![.f\w])", "#up"),
    ("constant", r"(?<![\w.#\"%{<])[1-9]\d*\b(?![.f\w])", "#down"),
    ("stage", r"^ *[\w:]+(\([^;{}=]*\)|<[^;{}=]*>\([^;{}=]*\));$", "#drop"),
)
"""Kind of change, place, replacement."""
SKIPPED = re.compile(r"^\s*(//|#|static_assert|template|struct|using|__device__|extern|asm|:|\"|/\*)|__syncwarp|unroll")


class TooLongError(BaseException):
    """The mutant does not end."""


# ---- candidates


def feasible_problem(kernel: Kernel, config: Config, start: int) -> Problem | None:
    """Return a small problem at which a candidate can run: the first feasible one, from a place on."""
    names = PROBLEMS[kernel.name]
    for number in range(len(names)):
        problem = kernel.problem(names[(start + number) % len(names)])
        if all(check(kernel, one, [problem], CHIP, essential=True) is None for one in (config, kernel.space.default())):
            return problem
    return None


def drawn(kernel: Kernel, rng: random.Random, wanted: tuple[str, Value] | None) -> tuple[Config, Problem] | None:
    """Return a random candidate, with a wanted value of a gene if a feasible one is found."""
    for _ in range(3000):
        config = kernel.space.draw(rng)
        if wanted is not None:
            changes: dict[str, Value] = {}
            name: str | None = wanted[0]
            changes[wanted[0]] = wanted[1]
            stack = [name]
            while stack:
                gene = kernel.space.gene(stack.pop() or "")
                for other, allowed in gene.when.items():
                    if changes.get(other, config[other]) not in allowed:
                        changes[other] = rng.choice(tuple(allowed))
                    stack.append(other)
            config = kernel.space.canonical({**config, **changes})
            if config[wanted[0]] != wanted[1]:
                continue
        problem = feasible_problem(kernel, config, rng.randrange(len(PROBLEMS[kernel.name])))
        if problem is not None:
            return config, problem
    return None


def missing_value(kernel: Kernel, rows: list[dict[str, Any]], failed: set[tuple[str, Value]]) -> Any:
    """Return a value of a gene that no candidate has had yet."""
    for gene in kernel.genes:
        for value in gene.values:
            if (gene.name, value) not in failed and not any(row["config"][gene.name] == value for row in rows):
                return gene.name, value
    return None


class Runs:
    """Runs of one kernel; default candidates run once for each problem."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._defaults: dict[Problem, ExactRun] = {}

    def default(self, problem: Problem) -> ExactRun:
        """Return the run of the default candidate."""
        if problem not in self._defaults:
            config = self.kernel.space.default()
            program = self.program(render(self.kernel, config, problem))
            assert isinstance(program, SimulatedProgram)
            self._defaults[problem] = exact_run(self.kernel, config, problem, program)
        return self._defaults[problem]

    def program(self, rendered: Rendered) -> SimulatedProgram | None:
        """Return a program; None if it does not compile."""
        program = compile_simulated(rendered, CHIP)
        return program if isinstance(program, SimulatedProgram) else None

    def verdict(self, config: Config, problem: Problem, program: SimulatedProgram) -> dict[str, Any]:
        """Compare a program with the default candidate."""
        default = self.default(problem)
        began = time.process_time()
        run = exact_run(self.kernel, config, problem, program)
        seconds = time.process_time() - began
        found = compared(run, default)
        worst = next((one for one in found if one.verdict != SAME), found[0])
        remarks = list(few_rounds_remarks(run.paths, self.kernel.source))
        return {"verdict": worst.verdict, "detail": str(worst), "seconds": seconds, "remarks": remarks}


def candidates(runs: Runs, options: Namespace, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the verdict on random candidates."""
    kernel, failed = runs.kernel, set[tuple[str, Value]]()
    while len(rows) < options.count:
        rng = random.Random(f"{options.seed} {kernel.name} {len(rows)}")
        wanted = missing_value(kernel, rows, failed)
        found = drawn(kernel, rng, wanted)
        if found is None:
            failed.add(wanted)
            print(f"{kernel.name}: no feasible candidate with {wanted}", flush=True)
            continue
        config, problem = found
        row = {"problem": str(problem), "config": dict(config)}
        program = runs.program(render(kernel, config, problem))
        row |= runs.verdict(config, problem, program) if program else {"verdict": "does not compile"}
        rows.append(row)
        yield row


# ---- mutants


def changes_of(text: str, file: str, lines: set[int]) -> list[Change]:
    """Return all changes of a source; `lines` are those with instructions."""
    found = []
    for number, whole in enumerate(text.splitlines(), 1):
        if SKIPPED.search(whole) or (lines and number not in lines):
            continue
        line = whole.split("//")[0].rstrip()
        for kind, pattern, by in OPERATORS:
            for match in re.finditer(pattern, line):
                new = {"#float": "({}*1.0009765625f)", "#up": "({}+1)", "#down": "({}-1)", "#drop": ";"}.get(by, by)
                changed = line[: match.start()] + new.format(match[0]) + line[match.end() :]
                found.append(Change(file, line.strip(), changed.strip(), number, kind))
    return found


def studied(kernel: Kernel, rng: random.Random) -> tuple[Study, Problem, Config, tuple[Problem, ...]]:
    """Return a study of a kernel, a problem with other choices, a random candidate, and the problems of its gate."""
    studies = list(studies_of(kernel))
    while True:
        study = rng.choice(studies)
        given = kernel.problem(rng.choice(study.problems))
        changes = {entry.name: rng.choice(entry.choices) for entry in kernel.fields if entry.choices}
        problem = problem_with(kernel, given, changes)
        config = kernel.space.draw(rng)
        if problem is None or config == kernel.space.default():
            continue
        if any(check(kernel, one, [problem], CHIP, essential=True) for one in (config, kernel.space.default())):
            continue
        if small := gate_problems(kernel, config, (problem,), CHIP):
            return study, problem, config, small


def drawn_change(kernel: Kernel, config: Config, problem: Problem, rng: random.Random) -> Change:
    """Return a random change: first its kind, then its place, which mostly is a line with instructions."""
    rendered = render(kernel, config, problem)
    program = compile_simulated(rendered, CHIP)
    assert isinstance(program, SimulatedProgram)
    places = defaultdict(set)
    for _, file, line in instructions(kernel, config, problem, program):
        places[file].add(line)
    everywhere = rng.random() < EVERYWHERE
    files = {"": rendered.source} | {name: text for name, text in rendered.headers.items() if "genes" not in name}
    found = []
    for file, text in files.items():
        lines = places[Path(file or kernel.source).name]
        if everywhere or lines:
            found += changes_of(text, file, set() if everywhere else lines)
    kind = rng.choice(sorted({change.kind for change in found}))
    return rng.choice([one for one in found if one.kind == kind])


def mutants(kernel: Kernel, options: Namespace, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the verdict on random changes of random candidates."""
    number = max((row["number"] for row in rows), default=-1)
    while sum(row["verdict"] not in IDLE for row in rows) < options.count:
        number += 1
        rng = random.Random(f"{options.seed} {kernel.name} mutant {number}")
        study, problem, config, small = studied(kernel, rng)
        change = drawn_change(kernel, config, small[0], rng)
        row: dict[str, Any] = {"number": number, "study": study.name, "problem": str(problem), "config": dict(config)}
        began = time.process_time()
        row |= {"change": asdict(change), **judged(kernel, study, problem, config, small, change)}
        row["seconds"] = time.process_time() - began
        rows.append(row)
        yield row


def judged(
    kernel: Kernel, study: Study, problem: Problem, config: Config, small: tuple[Problem, ...], change: Change
) -> dict[str, Any]:
    """Return the verdict on one mutant, and the stage that reached it."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLongError

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        with TemporaryDirectory() as folder:
            mutant = changed_in_one_candidate(kernel.name, config, change, Path(folder))
            subject = CandidateUnderTest(mutant, config, study, (problem,), CHIP, 0)
            if not is_changed(subject, (*small, problem)):
                return {"verdict": UNCHANGED}
            return judged_mutant(subject, small)._asdict()
    except TooLongError:
        return {"verdict": NOT_FINISHED, "stage": "patience", "detail": f"it does not end in {PATIENCE} s"}
    except SourceError as error:
        return {"verdict": UNCOMPILED, "detail": str(error)}
    except EvokernError as error:
        return {"verdict": EARLIER, "stage": "error", "detail": str(error)}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


# ---- cost


def costs(runs: Runs) -> None:
    """Print the median CPU seconds of the default candidate: without checks, sanitized and exact, alternately.

    Set OMP_NUM_THREADS and OPENBLAS_NUM_THREADS to 1, as the workers do.
    """
    kernel, config = runs.kernel, runs.kernel.space.default()
    problem = kernel.problem(PROBLEMS[kernel.name][0])
    program = runs.program(render(kernel, config, problem))
    assert program is not None

    def real(sanitize: bool) -> None:
        memory = simt.Memory()
        buffers = draw_buffers(memory, tensors_of(kernel, config, problem))
        for launch in launches_of(kernel, config, problem):
            program.launch(launch, buffers, memory, instruction_limit=LIMIT, sanitize=sanitize)

    kinds = (lambda: real(False), lambda: real(True), lambda: exact_run(kernel, config, problem, program))
    times: list[list[float]] = [[], [], []]
    for _ in range(REPEATS):
        for run, spent in zip(kinds, times, strict=True):
            began = time.process_time()
            run()
            spent.append(time.process_time() - began)
    plain, checked, exact = map(median, times)
    shown = f"{1e3 * plain:.0f} ms, sanitized {1e3 * checked:.0f} ms, exact {1e3 * exact:.0f} ms"
    print(f"{kernel.name} at {problem}: {shown}, {exact / checked:.1f} times the sanitized run")


# ---- results


def summary(rows: list[dict[str, Any]]) -> None:
    """Print the numbers of each kernel, and everything that is not as it should be."""
    for part in ("candidates", "mutants"):
        for kernel in PROBLEMS:
            mine = [row for row in rows if (row["part"], row["kernel"]) == (part, kernel)]
            counts = Counter(row["verdict"] for row in mine)
            print(f"{part:10} {kernel:13} " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
            for row in mine:
                if row["verdict"] not in ((SAME,) if part == "candidates" else (*FOUND, *IDLE)):
                    shown = row["change"] if part == "mutants" else ""
                    print(f"    {row['problem']}: {row.get('detail', row['verdict'])[:200]} {shown}")


def main() -> int:
    """Run as many as asked for, then print the numbers."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--kernel", choices=PROBLEMS, action="append")
    parser.add_argument("--part", choices=("candidates", "mutants", "cost"), action="append")
    parser.add_argument("--count", type=int, default=200, help="candidates of each kernel; a quarter as many mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--summary", action="store_true", help="only print the numbers of the file")
    options = parser.parse_args()
    text = options.results.read_text() if options.results.exists() else ""
    rows = [json.loads(line) for line in text.splitlines()]
    began = time.monotonic()
    if not options.summary:
        for kernel_name in options.kernel or PROBLEMS:
            remember_trust(KERNELS / kernel_name)
            runs = Runs(load_kernel(KERNELS / kernel_name))
            for part in options.part or ("candidates", "mutants"):
                if part == "cost":
                    costs(runs)
                    continue
                known = {
                    one: [row for row in rows if (row["part"], row["kernel"]) == (one, kernel_name)]
                    for one in ("candidates", "mutants")
                }
                steps = (
                    candidates(runs, options, known[part])
                    if part == "candidates"
                    else mutants(runs.kernel, replace_count(options), known[part])
                )
                with options.results.open("a") as file:
                    for row in steps:
                        row |= {"part": part, "kernel": kernel_name}
                        file.write(json.dumps(row) + "\n")
                        file.flush()
                        rows.append(row)
                        if time.monotonic() - began > options.seconds:
                            break
    summary(rows)
    return 0


def replace_count(options: Namespace) -> Namespace:
    """Return the options of the mutants: a quarter of the candidates' number for each kernel."""
    return Namespace(**{**vars(options), "count": -(-options.count // 4)})


if __name__ == "__main__":
    sys.exit(main())
