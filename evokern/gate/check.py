"""The gate itself: which runs a candidate must survive, and what the findings say about it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from evokern.declaration.kernel import Kernel, Launch, Problem, Role, Tensor
from evokern.gate.bench import Bench
from evokern.gate.comparison import tolerances
from evokern.gate.own_kernels import OwnKernels
from evokern.gate.tail_risk import MARGINAL, fault, tail_risk
from evokern.gate.verdict import Verdict, judge
from evokern.study.settings import GateSettings, InputSet
from evokern.study.trial import Outcome

TOUCHED = 1 / 16
"""Share of the inputs that changes between two calls, for candidates that recognise inputs by a sample of them."""
MOST_DRAWS = 8
"""Draws of inputs, the first one too, on which a candidate whose errors come near the tolerance may be run."""
_BENCHES_KEPT = 4


@dataclass(frozen=True)
class Repetition:
    """How a call is repeated."""

    share: float
    """Share of the inputs' elements that are new."""
    poisoned: bool
    """Whether outputs are poisoned before; they hold the right answer to the call before otherwise."""
    when: str
    """For messages."""


REPETITIONS = (
    Repetition(1.0, False, "when the call was repeated on other inputs"),
    Repetition(TOUCHED, True, "when the call was repeated on nearly the same inputs"),
)
"""What a candidate that was right must still be right in: one that leaves an output alone that looks finished, counts
its calls, or remembers an answer for these addresses or for inputs that look like these, is found out."""


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

    @property
    def message(self) -> str:
        """What a person reads of it, the diagnosis before the message; empty where the runner gave neither."""
        return str(self.evidence.get("diagnosis") or self.evidence.get("message") or "")


class Runner(Protocol):
    """Executes launch sequences: a GPU, the PTX machine, or a test's stand-in."""

    def run(self, calls: Sequence[Call]) -> None:
        """Execute every call (in order, or as a batch) and wait until all have finished.

        Raises:
            RunFailed: the candidate crashed, hung, or cannot be executed.
        """


class Gate:
    """Checks candidates of one problem; keeps its buffers from one candidate to the next."""

    def __init__(
        self,
        kernel: Kernel,
        problem: Problem,
        settings: GateSettings,
        device: torch.device,
        seed: int | None = None,
        own: OwnKernels | None = None,
    ) -> None:
        """Make a gate.

        Args:
            kernel: whose candidates.
            problem: at which problem.
            settings: input sets, runs, tolerances, guard size.
            device: where buffers live.
            seed: for tests; None draws a private one that no candidate can know.
            own: kernels for this device; None for torch.
        """
        self.kernel = kernel
        self.problem = problem
        self.settings = settings
        self.generator = torch.Generator(device)
        seed = random.SystemRandom().getrandbits(62) if seed is None else seed
        self.generator.manual_seed(seed)
        self._secret = random.Random(seed)
        self._own = own
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
            with contextlib.suppress(torch.OutOfMemoryError):
                bench = self._new_bench(tensors, kinds, runs)
            if bench is None:
                # Buffers of candidates with other workspaces wait here for the next one that has the same. What the
                # first attempt had got is held by its error, which is gone by now.
                self.forget()
                torch.cuda.empty_cache()
                bench = self._new_bench(tensors, kinds, runs)
        if not fresh:
            self._benches[key] = bench
        return bench

    def forget(self) -> None:
        """Let go of all buffers: those of the next candidate are new."""
        self._benches.clear()

    def _new_bench(self, tensors: Mapping[str, Tensor], kinds: Sequence[InputSet], runs: int) -> Bench:
        return Bench(
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
        """Run a candidate on fresh inputs of every kind and judge it.

        Args:
            runner: runs it.
            launches: its launches.
            tensors: its buffers.
            whole: renew all inputs of a large problem too, and all references.

        Raises:
            RunFailed: it crashed or hung.
            KernelError: the reference is unsound.
        """
        bench = self.bench(tensors, self.settings.input_sets, self.settings.runs)
        bench.refresh(whole=whole)
        bench.poison()
        runner.run(calls(bench, launches))
        return judge(bench, bench.verify(), deterministic=self.kernel.deterministic, problem=self.problem)

    def keeps_inputs(self, tensors: Mapping[str, Tensor]) -> bool:
        """Tell whether the problem is a large one, of which inputs are kept from one candidate to the next."""
        return self.bench(tensors, self.settings.input_sets, self.settings.runs).large

    def prove_slices(self, tensors: Mapping[str, Tensor]) -> None:
        """Check that the declared slices reach the outputs that they say, and that their references are right.

        Raises:
            KernelError: one does not.
        """
        if self.kernel.workload.slices_at(self.problem):
            self.bench(tensors, ("normal",), 1, fresh=True).prove_slices()

    def repeat(self, runner: Runner, launches: Sequence[Launch], tensors: Mapping[str, Tensor]) -> Verdict:
        """Run a checked candidate again in the same buffers, on new inputs and then on inputs with a few new elements.

        For candidates that keep state from one call to the next: an answer remembered for these addresses, or for
        inputs that look like these, is the answer to the wrong question now.

        Raises:
            RunFailed: it crashed or hung.
        """
        bench = self.bench(tensors, self.settings.input_sets, self.settings.runs)
        return repeated(bench, lambda _: runner.run(calls(bench, launches)), problem=self.problem)

    def errors(self, tensors: Mapping[str, Tensor]) -> dict[tuple[InputSet, str], torch.Tensor]:
        """Return error over tolerance of each input set and output of the last check, as `Bench.errors` has it.

        Not of `edges` inputs: sums of zeros are exact, and what they err by says nothing about other inputs.
        """
        bench = self.bench(tensors, self.settings.input_sets, self.settings.runs)
        return {
            (kind, name): bench.errors(name, n)
            for n, kind in enumerate(bench.kinds)
            for name in bench.results
            if kind != "edges"
        }

    def retest(
        self, verdict: Verdict, runner: Runner, launches: Sequence[Launch], tensors: Mapping[str, Tensor]
    ) -> Verdict:
        """Turn a marginal pass of `check` away whose tail risk is too high: other inputs would show it to be wrong.

        Where one draw cannot tell, others follow.

        Args:
            verdict: what `check` said of it, before anything else ran in its buffers.
            runner: runs it.
            launches: its launches.
            tensors: the buffers it was checked with.

        Raises:
            RunFailed: it crashed or hung.
        """
        reached = verdict.report["checks"]["of_tolerance"] if verdict.passed else {}
        if max((most for kind, most in reached.items() if kind != "edges"), default=0.0) < MARGINAL:
            return verdict
        bench = self.bench(tensors, self.settings.input_sets, self.settings.runs)
        seen = self.errors(tensors)
        of = {key: errors.numel() for key, errors in seen.items()}
        for left in reversed(range(MOST_DRAWS)):
            found = {key: tail_risk(errors, of[key]) for key, errors in seen.items()}
            for key, one in found.items():
                if one is not None and one.excessive and (one.decided or not left):
                    evidence = fault(one, key[1], key[0], of[key]) | {"problem": self.problem.key}
                    return Verdict(False, evidence, verdict.report)
            if not left or all(one is None or one.decided for one in found.values()):
                break
            bench.refresh(whole=True)
            bench.poison()
            runner.run(calls(bench, launches))
            seen = {key: torch.cat([seen[key], errors]) for key, errors in self.errors(tensors).items()}
        return verdict

    def accepts_reference(self, tensors: Mapping[str, Tensor]) -> bool:
        """Tell whether the gate itself is intact: the reference, written into the outputs, must pass.

        A candidate that writes far outside its buffers can change the gate's own state, and every later candidate would
        be turned away.
        """
        bench = self.bench(tensors, self.settings.input_sets, self.settings.runs)
        if bench.refreshes:
            bench.mend()
        else:
            bench.refresh()
        bench.answer_by_reference()
        return judge(bench, bench.verify(), deterministic=True, problem=self.problem).passed


def calls(bench: Bench, launches: Sequence[Launch]) -> list[Call]:
    """Return one call per run and input set that it is of, run after run."""
    zeroed = tuple(n for n, t in bench.tensors.items() if t.role == "workspace" and t.initial == "zero")
    roles = {name: tensor.role for name, tensor in bench.tensors.items()}
    return [Call(tuple(launches), bench.arguments(index, run), zeroed, roles) for run, index in bench.calls]


def repeated(bench: Bench, run: Callable[[Repetition], None], *, problem: Problem) -> Verdict:
    """Repeat a candidate's calls in the same buffers in every way that there is, and judge each time.

    Args:
        bench: the buffers, in which the candidate was right.
        run: runs every call once more, or for a repetition without poison any number of times, and waits.
        problem: for messages.

    Raises:
        RunFailed: it crashed or hung.
    """
    # What is computed in place would be fed its own result: such a call begins anew, once.
    in_place = any(tensor.role == "inout" for tensor in bench.tensors.values())
    verdict = Verdict(True)
    for repetition in (replace(one, poisoned=one.poisoned or in_place) for one in REPETITIONS):
        bench.refresh(repetition.share, repetition=True)
        if repetition.poisoned:
            bench.poison()
        run(repetition)
        verdict = judge(bench, bench.verify(), deterministic=False, problem=problem, when=repetition.when)
        if not verdict.passed:
            return replace(verdict, evidence={**verdict.evidence, "check": "repeat"})
    return verdict
