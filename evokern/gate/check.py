"""The gate: the runs that a candidate must pass, and the verdict on the candidate.

Before a search, the gate must distinguish correct from wrong results. Three trivial kernels must fail: one does
nothing, one writes zeros, one copies an input. They are operations on the buffers and need no compiler.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from evokern.declaration.as_data.words import call_words
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Launch, Problem, Role, Tensor
from evokern.errors import KernelError
from evokern.gate.buffer_set import BufferSet
from evokern.gate.comparison import tolerances
from evokern.gate.data import exact_kinds
from evokern.gate.device_kernels import DeviceKernels
from evokern.gate.renewal import ZERO_TURNS
from evokern.gate.verdict import MARGINAL, Verdict, judge, margin_evidence, tail_risk
from evokern.study.settings import GateSettings, InputSet
from evokern.study.trial import Outcome

CHANGED_SHARE = 1 / 16
"""Share of the inputs that changes between two calls; catches candidates that recognise inputs by a few elements."""
MAX_DRAWS = 8
"""Maximum number of input draws, including the first, for a candidate whose errors are close to the tolerance."""
_BENCHES_KEPT = 4


@dataclass(frozen=True)
class Repetition:
    """A way in which the gate repeats a call."""

    share: float
    """Share of the input elements that are new."""
    poisoned: bool
    """Whether outputs are poisoned first; otherwise they hold the correct result of the previous call."""
    when: str
    """Clause for messages."""


REPETITIONS = (
    Repetition(1.0, False, "when the call was repeated on other inputs"),
    Repetition(CHANGED_SHARE, True, "when the call was repeated on nearly the same inputs"),
)
"""Repetitions that a correct candidate must also pass.

They catch candidates that skip an output that looks finished, count calls, or remember results by address or input."""


@dataclass(frozen=True)
class Call:
    """One launch sequence with its buffers."""

    launches: tuple[Launch, ...]
    """The launches, in order."""
    arguments: Mapping[str, torch.Tensor]
    """Buffers by name, each contiguous."""
    zeroed: tuple[str, ...] = ()
    """Workspaces that the call sets to zero before the launches."""
    roles: Mapping[str, Role] = field(default_factory=dict)
    """Role of each buffer."""


class RunFailed(Exception):  # noqa: N818 (an outcome that a runner reports)
    """A candidate crashed, hung, or could not be executed."""

    def __init__(self, outcome: Outcome, evidence: Mapping[str, Any]) -> None:
        super().__init__(f"{outcome}: {dict(evidence)}")
        self.outcome = outcome
        self.evidence = dict(evidence)

    @property
    def message(self) -> str:
        """The diagnosis or, without a diagnosis, the runner's message; empty if both are missing."""
        return str(self.evidence.get("diagnosis") or self.evidence.get("message") or "")


class Runner(Protocol):
    """Executor of launch sequences: a GPU, the PTX machine, or a test double."""

    def run(self, calls: Sequence[Call]) -> None:
        """Execute all calls, in order or as a batch, and wait until they finish.

        Raises:
            RunFailed: the candidate crashed, hung, or cannot be executed.
        """


class Gate:
    """Correctness check for candidates on one problem; candidates share its buffers."""

    def __init__(
        self,
        kernel: Kernel,
        problem: Problem,
        settings: GateSettings,
        device: torch.device,
        seed: int | None = None,
        own: DeviceKernels | None = None,
    ) -> None:
        """Create a gate.

        Args:
            kernel: the kernel whose candidates are checked.
            problem: the problem on which they are checked.
            settings: input sets, runs, tolerances, guard size.
            device: device of the buffers.
            seed: seed for tests; None uses a secret random seed, unknown to candidates.
            own: evokern's kernels for this device; None uses torch.
        """
        self.kernel = kernel
        self.problem = problem
        self.settings = settings
        self.generator = torch.Generator(device)
        seed = random.SystemRandom().getrandbits(62) if seed is None else seed
        self.generator.manual_seed(seed)
        self._secret = random.Random(seed)
        self._own = own
        self._benches: dict[tuple[Any, ...], BufferSet] = {}

    def reseed(self, seed: int) -> None:
        """Draw the following inputs from a seed, so that a search with the same seed reaches the same verdicts.

        Keys that seal values from candidates stay random.
        """
        self.generator.manual_seed(seed)

    def kinds(self, tensors: Mapping[str, Tensor]) -> tuple[InputSet, ...]:
        """Return the kinds of inputs of a check: those of the settings, and exact inputs if the bounds support them."""
        return exact_kinds(self.settings.input_sets, tensors)

    def bench(
        self, tensors: Mapping[str, Tensor], kinds: Sequence[InputSet], runs: int, *, fresh: bool = False
    ) -> BufferSet:
        """Return a buffer set for these tensors: a new one if `fresh` or if no existing one fits."""
        key = (tuple(tensors.items()), tuple(kinds), runs)
        bench = None if fresh else self._benches.pop(key, None)
        if bench is None:
            while not fresh and len(self._benches) >= _BENCHES_KEPT:
                self._benches.pop(next(iter(self._benches)))
            with contextlib.suppress(torch.OutOfMemoryError):
                bench = self._new_bench(tensors, kinds, runs)
            if bench is None:
                # Free the buffer sets kept for candidates with other workspaces. The exception held the memory of the
                # first attempt, and it is gone by now.
                self.release_buffers()
                torch.cuda.empty_cache()
                bench = self._new_bench(tensors, kinds, runs)
        if not fresh:
            self._benches[key] = bench
        bench.judge_as(tensors)
        return bench

    def release_buffers(self) -> None:
        """Release all buffers; the next candidate gets new ones."""
        self._benches.clear()

    def _new_bench(self, tensors: Mapping[str, Tensor], kinds: Sequence[InputSet], runs: int) -> BufferSet:
        return BufferSet(
            self.kernel,
            self.problem,
            tensors,
            kinds=kinds,
            runs=runs,
            tolerance=tolerances(self.kernel, self.settings.atol, self.settings.rtol),
            guard_bytes=self.settings.guard_bytes,
            generator=self.generator,
            secret=self._secret,
            renew_every=self.settings.renew_every,
            own=self._own,
        )

    def check(
        self, runner: Runner, launches: Sequence[Launch], tensors: Mapping[str, Tensor], *, whole: bool = False
    ) -> Verdict:
        """Run a candidate on new inputs of every kind and return the verdict.

        Args:
            runner: executor of the launches.
            launches: the candidate's launches.
            tensors: the candidate's buffers.
            whole: renew all inputs and references, even for a large problem.

        Raises:
            RunFailed: the candidate crashed or hung.
            KernelError: the reference raised, or is not finite.
        """
        bench = self.bench(tensors, self.kinds(tensors), self.settings.runs)
        bench.refresh(whole=whole)
        bench.poison()
        runner.run(calls(bench, launches))
        return judge(bench, bench.verify(), deterministic=self.kernel.deterministic, problem=self.problem)

    def keeps_inputs(self, tensors: Mapping[str, Tensor]) -> bool:
        """Return whether the problem is so large that candidates share inputs."""
        return self.bench(tensors, self.kinds(tensors), self.settings.runs).large

    def prove_slices(self, tensors: Mapping[str, Tensor]) -> None:
        """Check that each declared slice changes only its own outputs and that its reference is correct.

        Raises:
            KernelError: a slice fails the check.
        """
        if self.kernel.workload.slices_at(self.problem):
            self.bench(tensors, ("normal",), 1, fresh=True).prove_slices()

    def repeat(self, runner: Runner, launches: Sequence[Launch], tensors: Mapping[str, Tensor]) -> Verdict:
        """Run a checked candidate again in the same buffers, on new inputs and then on inputs with a few new elements.

        This catches candidates that keep state between calls: a result remembered by address or input is now wrong.

        Raises:
            RunFailed: the candidate crashed or hung.
        """
        bench = self.bench(tensors, self.kinds(tensors), self.settings.runs)
        return repeated(bench, lambda _: runner.run(calls(bench, launches)), problem=self.problem)

    def errors(self, tensors: Mapping[str, Tensor]) -> dict[tuple[InputSet, str], torch.Tensor]:
        """Return the errors of the last check, divided by the tolerance, by input set and output (`BufferSet.errors`).

        `edges` inputs are omitted: sums of zeros are exact, so their errors do not predict errors on other inputs.
        Outputs with a bound are omitted too: no correct result exceeds it on any inputs.
        """
        bench = self.bench(tensors, self.kinds(tensors), self.settings.runs)
        return {
            (kind, name): bench.errors(name, n)
            for n, kind in enumerate(bench.kinds)
            for name in bench.results
            if kind != "edges" and bench.rule(name).tolerance.bound is None
        }

    def retest(
        self, verdict: Verdict, runner: Runner, launches: Sequence[Launch], tensors: Mapping[str, Tensor]
    ) -> Verdict:
        """Decide on a candidate whose largest error in `check` is close to a tolerance, by its errors on fresh inputs.

        The candidate is rejected if it would probably fail on other inputs. If one draw is inconclusive, it runs on
        more draws. Inputs that candidates share depend on earlier candidates, so they do not count: neither their
        errors nor an error slightly above the tolerance.

        Args:
            verdict: verdict of `check`; nothing else may have run in its buffers since.
            runner: executor of the launches.
            launches: the candidate's launches.
            tensors: the buffers used by `check`.

        Raises:
            RunFailed: the candidate crashed or hung.
        """
        bench = self.bench(tensors, self.kinds(tensors), self.settings.runs)
        if not _is_marginal(bench, verdict):
            return verdict
        seen = self.errors(tensors)
        of = {key: errors.numel() for key, errors in seen.items()}
        if bench.large:
            seen = self._fresh_errors(bench, runner, launches, tensors)
        for left in reversed(range(MAX_DRAWS)):
            found = {key: tail_risk(errors, of[key]) for key, errors in seen.items()}
            for key, one in found.items():
                if one is not None and one.excessive and (one.decided or not left):
                    evidence = margin_evidence(one, key[1], key[0], of[key]) | {"problem": self.problem.key}
                    return Verdict(False, evidence, verdict.report, marginal=True)
            if not left or all(one is None or one.decided for one in found.values()):
                break
            drawn = self._fresh_errors(bench, runner, launches, tensors)
            seen = {key: torch.cat([seen[key], errors]) for key, errors in drawn.items()}
        if not verdict.passed:
            verdict = judge(bench, bench.verify(), deterministic=self.kernel.deterministic, problem=self.problem)
        return replace(verdict, marginal=True)

    def _fresh_errors(
        self, bench: BufferSet, runner: Runner, launches: Sequence[Launch], tensors: Mapping[str, Tensor]
    ) -> dict[tuple[InputSet, str], torch.Tensor]:
        """Return the errors of a candidate on new inputs."""
        bench.refresh(whole=True)
        bench.poison()
        runner.run(calls(bench, launches))
        return self.errors(tensors)

    def accepts_reference(self, tensors: Mapping[str, Tensor]) -> bool:
        """Return whether the gate is intact: the reference, written into the outputs, must pass.

        A candidate that writes far outside its buffers can corrupt the gate, which then rejects all later candidates.
        """
        bench = self.bench(tensors, self.kinds(tensors), self.settings.runs)
        if bench.refreshes:
            bench.restore_inputs()
        else:
            bench.refresh()
        bench.write_reference()
        return judge(bench, bench.verify(), deterministic=True, problem=self.problem).passed


def candidate_seed(secret: int, config: Config, problem: Problem | None = None, purpose: str = "") -> int:
    """Return the seed of a candidate's inputs, which depends only on the study's secret and on the arguments."""
    text = " ".join(filter(None, (str(secret), config.key, "" if problem is None else problem.key, purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def begin_candidate(secret: int, config: Config) -> None:
    """Choose the all-zero inputs of a candidate, on all its problems, by the study's secret."""
    ZERO_TURNS.turn = candidate_seed(secret, config)


def calls(bench: BufferSet, launches: Sequence[Launch]) -> list[Call]:
    """Return the calls of a check: one per run and input set, ordered by run."""
    zeroed = tuple(n for n, t in bench.tensors.items() if t.role == "workspace" and t.initial == "zero")
    roles = {name: tensor.role for name, tensor in bench.tensors.items()}
    return [Call(tuple(launches), bench.arguments(index, run), zeroed, roles) for run, index in bench.calls]


def _is_marginal(bench: BufferSet, verdict: Verdict) -> bool:
    """Return whether the largest error is so close to a tolerance that fresh inputs must decide.

    On inputs that candidates share, this includes an error slightly above the tolerance. Bounds hold on all inputs.
    """
    tolerated = [name for name in bench.results if bench.rule(name).tolerance.bound is None]
    reached = {kind: float(most) for kind, most in verdict.report["checks"]["of_tolerance"].items()}
    edges = reached.pop("edges", 0.0)
    if verdict.passed:
        return bool(tolerated) and max(reached.values(), default=0.0) >= MARGINAL
    by_tolerance = verdict.evidence["check"] == "tolerance" and len(tolerated) == len(bench.results) and edges <= 1
    return bench.large and by_tolerance and all(most <= 1 / MARGINAL for most in reached.values())


def repeated(bench: BufferSet, run: Callable[[Repetition], None], *, problem: Problem, whole: bool = False) -> Verdict:
    """Repeat a candidate's calls in the same buffers, once for each entry of `REPETITIONS`, and judge each repetition.

    Args:
        bench: the buffers of a check that the candidate passed.
        run: function that runs every call again and waits; without poison it may run a call several times.
        problem: problem named in messages.
        whole: change all inputs even of a large problem.

    Raises:
        RunFailed: the candidate crashed or hung.
    """
    # A call that computes in place would read its own result, so it starts from its inputs and runs once.
    in_place = any(tensor.role == "inout" for tensor in bench.tensors.values())
    verdict = Verdict(True)
    for repetition in (replace(one, poisoned=one.poisoned or in_place) for one in REPETITIONS):
        bench.refresh(repetition.share, whole=whole, repetition=True)
        if repetition.poisoned:
            bench.poison()
        run(repetition)
        verdict = judge(bench, bench.verify(), deterministic=False, problem=problem, when=repetition.when)
        if not verdict.passed:
            return replace(verdict, evidence={**verdict.evidence, "check": "repeat"})
    return verdict


@dataclass(frozen=True)
class _TrivialKernel:
    """A runner that fills the buffers instead of launching anything."""

    fill: Callable[[Mapping[str, torch.Tensor]], None]

    def run(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self.fill(call.arguments)


def prove_power(gate: Gate, launches: Sequence[Launch], tensors: Mapping[str, Tensor]) -> None:
    """Check that the gate rejects every trivial kernel.

    Raises:
        KernelError: a trivial kernel passes; the message names the tolerance that is too wide.
    """
    for name, degenerate in _degenerate_kernels(tensors):
        verdict = gate.check(degenerate, launches, tensors)
        if not verdict.passed or (name.startswith("copies") and _is_exact(gate, degenerate, launches, tensors)):
            continue
        limits = tolerances(gate.kernel, gate.settings.atol, gate.settings.rtol)
        own = {output: one.for_tensor(tensors[output]) for output, one in limits.items()}
        listed = "; ".join(f"{output}: atol = {t.atol:g}, rtol = {t.rtol:g}" for output, t in own.items())
        message = (
            "the correctness check cannot distinguish correct from wrong results: "
            f"a kernel that {name} passes at {gate.problem} with the tolerance {listed}. "
            "Lower the tolerance (in kernel.py, or gate.atol and gate.rtol in the study file), or generate inputs "
            "whose correct results differ more from that kernel's output"
        )
        raise KernelError(call_words(message, gate.problem))


def _is_exact(
    gate: Gate, degenerate: _TrivialKernel, launches: Sequence[Launch], tensors: Mapping[str, Tensor]
) -> bool:
    """Return whether a trivial kernel's output equals the reference exactly: the workload is then a copy."""
    settings = replace(gate.settings, atol=0.0, rtol=0.0)
    return Gate(gate.kernel, gate.problem, settings, gate.generator.device).check(degenerate, launches, tensors).passed


def _degenerate_kernels(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, _TrivialKernel]]:
    outputs = [name for name, tensor in tensors.items() if tensor.role in ("output", "inout")]
    inputs = [name for name, tensor in tensors.items() if tensor.given]

    def nothing(arguments: Mapping[str, torch.Tensor]) -> None:
        return

    def zeros(arguments: Mapping[str, torch.Tensor]) -> None:
        for name in outputs:
            arguments[name].view(torch.uint8).zero_()

    yield "does nothing", _TrivialKernel(nothing)
    yield "writes zeros", _TrivialKernel(zeros)
    for source in inputs:

        def copy(arguments: Mapping[str, torch.Tensor], source: str = source) -> None:
            given = arguments[source].clone().view(torch.uint8).flatten()
            for name in outputs:
                taken = arguments[name].view(torch.uint8).flatten()
                length = min(len(given), len(taken))
                taken[:length].copy_(given[:length])

        yield f"copies its input {source!r}", _TrivialKernel(copy)
