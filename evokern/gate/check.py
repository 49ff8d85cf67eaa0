"""The gate itself: which runs a candidate must survive, and what the findings say about it."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from evokern.gate.bench import Bench, Findings, Worst, tolerances
from evokern.kernel import Kernel, Launch, Problem, Role, Tensor
from evokern.study import GateSettings, InputSet
from evokern.trial import Outcome

SPENT_LIMIT = 0.6
"""Largest root mean square of error over allowed error. Rounding to the nearest value uses at most 1/sqrt(3) of a
tolerance that just covers it, all other honest error far less; a candidate above spends the tolerance on purpose."""
TOUCHED = 1 / 16
"""Share of the inputs that changes between two calls, for candidates that recognise inputs by a sample of them."""
_BENCHES_KEPT = 4


@dataclass(frozen=True)
class Call:
    """One launch sequence with its buffers."""

    launches: tuple[Launch, ...]
    """The launches, in order."""
    arguments: Mapping[str, torch.Tensor]
    """Buffers by name, each contiguous."""
    zeroed: tuple[str, ...] = ()
    """Workspaces that are set to zero before the launches, as part of the call."""
    roles: Mapping[str, Role] = field(default_factory=dict)
    """What each buffer is for."""


class RunFailed(Exception):  # noqa: N818 (an outcome that a runner reports)
    """A candidate could not be run to its end."""

    def __init__(self, outcome: Outcome, evidence: Mapping[str, Any]) -> None:
        super().__init__(f"{outcome}: {dict(evidence)}")
        self.outcome = outcome
        self.evidence = dict(evidence)


class Runner(Protocol):
    """Executes launch sequences: a GPU, a simulator, or a test's stand-in."""

    def run(self, calls: Sequence[Call]) -> None:
        """Execute every call (in order, or as a batch) and wait until all have finished.

        Raises:
            RunFailed: the candidate crashed, hung, or cannot be executed.
        """


@dataclass(frozen=True)
class Verdict:
    """What the gate says."""

    passed: bool
    """Whether everything held."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Of a wrong candidate: check, message and numbers."""
    report: Mapping[str, Any] = field(default_factory=dict)
    """Of every candidate: relative Frobenius error and worst element of each output."""


class Gate:
    """Checks candidates of one problem; keeps its buffers from one candidate to the next."""

    def __init__(
        self, kernel: Kernel, problem: Problem, settings: GateSettings, device: torch.device, seed: int | None = None
    ) -> None:
        """Make a gate.

        Args:
            kernel: whose candidates.
            problem: at which problem.
            settings: input sets, runs, tolerances, guard size.
            device: where buffers live.
            seed: for tests; None draws a private one that no candidate can know.
        """
        self.kernel = kernel
        self.problem = problem
        self.settings = settings
        self.generator = torch.Generator(device)
        self.generator.manual_seed(random.SystemRandom().getrandbits(62) if seed is None else seed)
        self._benches: dict[tuple[Any, ...], Bench] = {}

    def bench(
        self, tensors: Mapping[str, Tensor], kinds: Sequence[InputSet], runs: int, *, fresh: bool = False
    ) -> Bench:
        """Return buffers for these tensors, the same ones as before where nothing changed, or new ones if `fresh`."""
        key = (tuple(tensors.items()), tuple(kinds), runs)
        bench = None if fresh else self._benches.pop(key, None)
        if bench is None:
            while not fresh and len(self._benches) >= _BENCHES_KEPT:
                self._benches.pop(next(iter(self._benches)))
            bench = Bench(
                self.kernel,
                self.problem,
                tensors,
                kinds=kinds,
                runs=runs,
                tolerance=tolerances(self.kernel, self.settings.atol, self.settings.rtol),
                guard_bytes=self.settings.guard_bytes,
                generator=self.generator,
            )
        if not fresh:
            self._benches[key] = bench
        return bench

    def check(self, runner: Runner, launches: Sequence[Launch], tensors: Mapping[str, Tensor]) -> Verdict:
        """Run a candidate on fresh inputs of every kind and judge it.

        Raises:
            RunFailed: it crashed or hung.
            KernelError: the reference is unsound.
        """
        bench = self.bench(tensors, self.settings.input_sets, self.settings.runs)
        bench.refresh()
        bench.poison()
        runner.run(calls(bench, launches))
        return judge(bench, bench.verify(), deterministic=self.kernel.deterministic, problem=self.problem)

    def repeat(self, runner: Runner, launches: Sequence[Launch], tensors: Mapping[str, Tensor]) -> Verdict:
        """Run a checked candidate again in the same buffers, on new inputs and then on inputs with a few new elements.

        For candidates that keep state from one call to the next: an answer remembered for these addresses, or for
        inputs that look like these, is the answer to the wrong question now.

        Raises:
            RunFailed: it crashed or hung.
        """
        bench = self.bench(tensors, self.settings.input_sets, self.settings.runs)
        for share in (1.0, TOUCHED, TOUCHED):
            bench.refresh(share)
            bench.poison()
            runner.run(calls(bench, launches))
            when = "when the call was repeated on other inputs"
            verdict = judge(
                bench, bench.verify(), deterministic=self.kernel.deterministic, problem=self.problem, when=when
            )
            if not verdict.passed:
                return replace(verdict, evidence={**verdict.evidence, "check": "repeat"})
        return verdict

    def again(self, runner: Runner, launches: Sequence[Launch], tensors: Mapping[str, Tensor]) -> None:
        """Run a checked candidate once more on the same inputs, in the same buffers.

        Raises:
            RunFailed: it crashed or hung.
        """
        bench = self.bench(tensors, self.settings.input_sets, self.settings.runs)
        bench.poison()
        runner.run(calls(bench, launches))

    def sane(self, tensors: Mapping[str, Tensor]) -> bool:
        """Tell whether the gate itself is intact: the reference, written into the outputs, must pass.

        A candidate that writes far outside its buffers can change the gate's own state, and every later candidate would
        be turned away.
        """
        bench = self.bench(tensors, self.settings.input_sets, self.settings.runs)
        bench.refresh()
        bench.poison()
        bench.answer_by_reference()
        return judge(bench, bench.verify(), deterministic=True, problem=self.problem).passed


def calls(bench: Bench, launches: Sequence[Launch]) -> list[Call]:
    """Return one call per run and input set, run after run."""
    zeroed = tuple(n for n, t in bench.tensors.items() if t.role == "workspace" and t.initial == "zero")
    roles = {name: tensor.role for name, tensor in bench.tensors.items()}
    return [
        Call(tuple(launches), bench.arguments(index, run), zeroed, roles)
        for run in range(bench.runs)
        for index in range(bench.sets)
    ]


def judge(bench: Bench, findings: Findings, *, deterministic: bool, problem: Problem, when: str = "") -> Verdict:
    """Turn findings into a verdict; the gravest finding is the one reported.

    Args:
        bench: the buffers that the findings are about.
        findings: what was found.
        deterministic: whether two runs must agree bit by bit.
        problem: for messages.
        when: for messages: `in the timed runs`, for example.
    """
    worst = max(findings.worst, key=lambda w: (w.bad > 0, w.over))
    normal = [w for w in findings.worst if bench.kinds[w.set] == "normal"] or findings.worst
    report = {
        "relative_error": _number(max((w.relative_error for w in normal), key=_nan_last)),
        "tolerance_spent": _number(max((w.spent for w in findings.worst), key=_nan_last)),
        "worst": _element(bench, worst),
        "input_sets": list(bench.kinds),
        "runs": bench.runs,
    }
    evidence = _fault(bench, findings, worst, deterministic)
    if evidence is None:
        return Verdict(True, {}, report)
    where = f"{evidence['input_set']} inputs at {problem}" + (f", {when}" if when else "")
    evidence |= {"message": f"{evidence['message']} ({where})", "problem": str(problem)}
    return Verdict(False, evidence, report)


def _fault(bench: Bench, findings: Findings, worst: Worst, deterministic: bool) -> dict[str, Any] | None:
    for pair, count in enumerate(findings.trespassed):
        if count:
            kind = bench.kinds[pair % bench.sets]
            return {"check": "guard", "input_set": kind, "bytes": count, "message": bench.trespass(pair)}
    for index, count in enumerate(findings.inputs_changed):
        if count:
            return {"check": "inputs_unchanged", "input_set": bench.kinds[index], "message": bench.changed_input(index)}
    if worst.bad:
        element = _element(bench, worst)
        name = f"{worst.output}[{', '.join(map(str, worst.index))}]"
        if bench.unwritten(worst):
            message = f"{name} was never written; {worst.bad} elements are wrong"
        else:
            message = (
                f"{name} is {worst.got:.6g}, expected {worst.expected:.6g} within {worst.allowed:.3g}; "
                f"{worst.bad} of {bench.results[worst.output].elements} elements are wrong"
            )
        return {"check": "tolerance", "input_set": bench.kinds[worst.set], "message": message, **element}
    wasteful = max(findings.worst, key=lambda w: w.spent)
    if wasteful.spent > SPENT_LIMIT:
        message = (
            f"the errors of {wasteful.output!r} are {wasteful.spent:.2f} of the tolerance in root mean square, more "
            f"than rounding leaves ({SPENT_LIMIT:g}): the tolerance is spent everywhere"
        )
        kind = bench.kinds[wasteful.set]
        return {"check": "tolerance_spent", "input_set": kind, "spent": wasteful.spent, "message": message}
    if deterministic:
        for name, counts in findings.differing.items():
            for position, count in enumerate(counts):
                if count:
                    message = f"two runs on the same inputs differ in {count} bytes of {name!r}"
                    kind = bench.kinds[position % bench.sets]
                    return {"check": "deterministic", "input_set": kind, "bytes": count, "message": message}
    return None


def _element(bench: Bench, worst: Worst) -> dict[str, Any]:
    return {
        "output": worst.output,
        "index": list(worst.index),
        "got": _number(worst.got),
        "expected": worst.expected,
        "allowed": worst.allowed,
        "over": _number(worst.over),
        "bad": worst.bad,
        "input_set": bench.kinds[worst.set],
    }


def _nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _number(value: float) -> float | str:
    """Return a value that JSON has: `nan` and `inf` as words."""
    return value if math.isfinite(value) else str(value)
