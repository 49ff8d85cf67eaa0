"""One problem's buffers for a number of input sets and runs: fresh inputs, poison, comparison with the references."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from evokern.declaration.kernel import Kernel, Problem, Tensor, Tolerance
from evokern.errors import KernelError
from evokern.gate.comparison import NUMBERS, Findings, Rule, Worst, compare_calls, found_worst, independent_errors
from evokern.gate.data import may_be_zero, poison_byte
from evokern.gate.guarded_buffers import GuardedBuffers
from evokern.gate.own_kernels import OwnKernels
from evokern.gate.references import References
from evokern.gate.renewal import Renewal
from evokern.gate.sealed import Sealed, wipe_free_memory
from evokern.gate.slicing import Indices, SlicedTensors
from evokern.study.settings import InputSet

REPEATED_SETS = 2
"""Input sets that the runs after the first one are of: what differs from run to run does so on any inputs."""

ZERO_SETS = 2
"""Input sets of `edges` at most in which a whole input is zero, another one in each: of three inputs two, in turn."""

REACHED = ("cuda",)
"""Devices whose memory candidates reach: what they must not read lies sealed there."""


def kinds_of_sets(kinds: Sequence[InputSet], tensors: Mapping[str, Tensor]) -> tuple[InputSet, ...]:
    """Return the kind of each input set: `edges` ones are last, up to three of them."""
    able = sum(may_be_zero(tensor) for tensor in tensors.values() if tensor.given)
    expanded = [kind for kind in kinds for _ in range(1 + min(able, ZERO_SETS) if kind == "edges" else 1)]
    return tuple(sorted(expanded, key=lambda kind: kind == "edges"))


def calls_of(runs: int, sets: int) -> list[tuple[int, int]]:
    """Return run and input set of each call: those of the first run, then those of later ones."""
    return [(run, n) for run in range(runs) for n in range(sets) if run == 0 or n < REPEATED_SETS]


class Bench:
    """Buffers of one problem for some input sets and runs.

    `edges` inputs take up to three sets: in those after the first one a whole input is zero.
    """

    def __init__(
        self,
        kernel: Kernel,
        problem: Problem,
        tensors: Mapping[str, Tensor],
        *,
        kinds: Sequence[InputSet],
        runs: int,
        tolerance: Mapping[str, Tolerance],
        guard_bytes: int,
        generator: torch.Generator,
        secret: random.Random | None = None,
        renew_every: int = 1,
        own: OwnKernels | None = None,
    ) -> None:
        """Allocate; `refresh` fills.

        Args:
            kernel: whose workload is checked.
            problem: at which problem.
            tensors: its buffers.
            kinds: kind of each input set.
            runs: runs of the first sets; the others run once.
            tolerance: of each output.
            guard_bytes: guard zone around each buffer.
            generator: private source of the inputs, on the device where the buffers live.
            secret: private source of what stays in host memory.
            renew_every: candidates after which sets of a large problem are renewed whole.
            own: kernels for this device; None for torch.

        Raises:
            KernelError: an output has no tolerance, or a slice does not fit the tensors.
        """
        self.kinds = kinds_of_sets(kinds, tensors)
        self.runs = runs
        self.tensors = dict(tensors)
        self.calls = calls_of(runs, self.sets)
        """Run and input set of each call: those of the first run, then those of later ones."""
        self._kernel, self._problem = kernel, problem
        device, secret = generator.device, secret or random.SystemRandom()
        self._device = device
        given = {n: t for n, t in tensors.items() if t.given}
        written = {n: t for n, t in tensors.items() if not t.kept}
        self._results = {n: t for n, t in written.items() if t.role != "workspace"}
        if not self._results:
            raise KernelError(f"kernel {kernel.name}: the workload has no output")
        for name in self._results:
            if name not in tolerance:
                raise KernelError(f"kernel {kernel.name}: output {name!r} has no tolerance")
        for name in kernel.workload.nonfinite:
            if name not in given:
                raise KernelError(f"kernel {kernel.name}: nonfinite names {name!r}; inputs are {', '.join(given)}")
        declared = bool(kernel.workload.nonfinite)
        self._rules = {n: Rule(t, tolerance[n].holding(t), nonfinite=declared) for n, t in self._results.items()}
        self._inputs = GuardedBuffers(given, self.sets, guard_bytes, device)
        self._scratch = GuardedBuffers(written, len(self.calls), guard_bytes, device)
        sealed = device.type in REACHED
        self._originals = Sealed(self.sets, self._inputs.memory.shape[1] // 8, device, secret, active=sealed,
                                 together=True, own=own)  # fmt: skip
        self._renewal = Renewal(kernel.workload, problem, tensors, self.kinds, generator, secret, renew_every)
        self._references = References(
            kernel, problem, self._results, self._inputs.set, [kind != "edges" for kind in self.kinds], device, secret,
            kept=self._renewal.large, sealed=sealed, own=own,
        )  # fmt: skip
        self._poison = {n: self._poison_bytes(t, declared) for n, t in written.items() if t.role != "inout"}
        self._damage: dict[int, str] = {}
        self._trusted = False
        self._plain = False
        self._wholes = 0
        self._own = own
        self.generator = generator
        """Private source of the inputs, on the device where the buffers live."""
        self.reach: dict[str, int] = {}
        """Input → how much `TimedCalls` changes of it, so that it shows in the outputs: more where less did not."""
        self.changes: dict[int, Any] = {}
        """Input set → what `TimedCalls` drew for it, until its inputs are renewed: kept where a reference is dear."""
        self.refreshes = 0
        """How often `refresh` was called; before the first time there are no inputs."""

    @property
    def sets(self) -> int:
        """Number of input sets."""
        return len(self.kinds)

    @property
    def results(self) -> Mapping[str, Tensor]:
        """Outputs, those computed in place too."""
        return self._results

    @property
    def large(self) -> bool:
        """Whether inputs and references are kept from one candidate to the next, but for some slices or sets."""
        return self._renewal.large

    # ---- inputs

    def refresh(self, share: float = 1.0, *, whole: bool = False, repetition: bool = False) -> None:
        """Draw new inputs; their references are computed once a candidate has run on them.

        All sets of a problem are renewed. Those of a large one are kept, but for slices or for the sets whose turn it
        is (`evokern.gate.renewal`): an input is old only in that an earlier candidate saw it, never this one.

        Args:
            share: share of the elements that change, chosen at random; a few changed ones among many old ones deceive
                a candidate that recognises inputs by a sample of them.
            whole: renew all of a large problem too.
            repetition: these are inputs for the same candidate: some are new in any case.
        """
        if self.refreshes and (self.large or share < 1.0):  # else all is drawn anew
            self.mend()
        renewed, sliced = self._renewal.renew(
            self._inputs.views, share, whole=whole or not self.refreshes, repetition=repetition
        )
        for index in renewed:
            self._references.forget(index)
        for index, one, at in sliced:
            self._references.changed(index, one, at)
        self.refreshes += 1
        self._inputs.mend_guards()
        touched = {*renewed, *(index for index, _, _ in sliced)}
        for index in touched:
            self.changes.pop(index, None)
        self._originals.put(touched, self._inputs.memory.view(torch.int64))
        self._plain = self._plain and len(renewed) < self.sets
        self.conceal()

    def mend(self) -> None:
        """Write inputs as they were drawn where whoever ran last was not seen to the end, and may have changed them."""
        if not self._trusted:
            for rows, plain in self._originals.plain():
                self._inputs.memory[rows].view(torch.int64).copy_(plain)

    def conceal(self) -> None:
        """Leave nothing readable behind before a candidate runs: no reference, no answer to inputs that it gets."""
        if self._plain:
            self._references.conceal()
            if self.large and self._references.computed > self._wholes and self._device.type == "cuda":
                # A whole reference leaves more behind than is worth overwriting for each candidate from now on.
                torch.cuda.empty_cache()
            self._wholes = self._references.computed
            wipe_free_memory(self._device)
        self._plain = self._trusted = False

    def poison(self) -> None:
        """Fill outputs and workspaces with poison, those computed in place with their inputs; mend guards."""
        self._scratch.mend_guards()
        for name, view in self._scratch.views.items():
            if self.tensors[name].role == "inout":
                for row, (_, index) in enumerate(self.calls):
                    view[row].copy_(self._inputs.views[name][index])
                continue
            self._scratch.bytes_of(name).copy_(self._poison[name])
        self.conceal()

    def _poison_bytes(self, tensor: Tensor, declared: bool) -> torch.Tensor:
        bytes_ = [
            [poison_byte(tensor, run + index, nan=not (declared and self.kinds[index] == "edges"))]
            for run, index in self.calls
        ]
        return torch.tensor(bytes_, dtype=torch.uint8, device=self._device)

    def arguments(self, index: int, run: int = 0) -> dict[str, torch.Tensor]:
        """Return the buffers of one call by name: inputs of a set, outputs and workspaces of a set and run."""
        given = {n: view[index] for n, view in self._inputs.views.items() if self.tensors[n].kept}
        return given | self._scratch.set(self.calls.index((run, index)))

    def outputs(self) -> dict[str, torch.Tensor]:
        """Return every output over calls, shape (calls, *shape), to write into."""
        return {n: self._scratch.views[n] for n in self._results}

    # ---- references

    def reference(self, index: int) -> dict[str, torch.Tensor]:
        """Return the float64 reference of a set by output, plain: only while no candidate runs."""
        self._plain = True
        return self._references.of(index)

    def given(self, index: int) -> dict[str, torch.Tensor]:
        """Return the inputs of a set by name, to write into; of what is computed in place, what calls begin with."""
        return self._inputs.set(index)

    @property
    def slices(self) -> Sequence[SlicedTensors]:
        """The parts of the inputs whose references can be computed by themselves, where a whole one is dear."""
        return self._renewal.slices if self.large else ()

    def answers(self, index: int, part: tuple[SlicedTensors, Indices] | None = None) -> dict[str, torch.Tensor]:
        """Return what the outputs of a set must be for its inputs as they stand, plain: only while no candidate runs.

        Args:
            index: the set, whose `reference` was asked for when its inputs were what they are else.
            part: the slice in which they are others now; None computes the whole reference.
        """
        self._plain = True
        if part is None:
            return self._references.whole(self._inputs.set(index))
        found = {name: value.clone() for name, value in self._references.of(index).items()}
        sliced, at = part
        for name, values in self._references.sliced(sliced, at, self._inputs.set(index)).items():
            sliced.put(name, found[name], values, sliced.indices(at, self._device))
        return found

    def rule(self, name: str) -> Rule:
        """Return how the elements of an output are judged."""
        return self._rules[name]

    def answer_by_reference(self) -> None:
        """Write the reference into every output, rounded to its dtype: what a right kernel would leave. Mend guards."""
        self._scratch.mend_guards()
        for index in range(self.sets):
            expected = self.reference(index)
            for name, view in self.outputs().items():
                for row, (_, of) in enumerate(self.calls):
                    if of == index:
                        view[row].copy_(self._rules[name].answer(expected[name]))

    def prove_slices(self) -> None:
        """Check that each declared slice reaches the outputs that it says, and that its reference is right.

        Raises:
            KernelError: what the slices' references make of new inputs is not the reference of those inputs.
        """
        self.refresh(whole=True)
        self._renewal.prove(self._inputs.set(0), self._references, self._kernel.name)
        self.refresh(whole=True)

    # ---- findings

    def verify(self) -> Findings:
        """Compare everything on the device and bring the findings back.

        Inputs that were changed are as before afterwards, and references are those of what they were.

        Raises:
            KernelError: the reference raised, or is not finite.
        """
        changed = self._words_changed().tolist()
        self._damage = {index: self._damaged(index) for index, words in enumerate(changed) if words}
        for index in self._damage:
            self._inputs.memory[index].view(torch.int64).copy_(self._originals.get(index))
        compared = compare_calls(
            self.outputs(), self._rules, self.calls, [kind == "edges" for kind in self.kinds], self.reference, self._own
        )
        parts: list[torch.Tensor] = [*compared, self._scratch.broken_guards()]
        # Calls of later runs follow each other, run after run, each run of the first sets.
        repeated = min(self.sets, REPEATED_SETS)
        for name in self._results:
            raw = self._scratch.bytes_of(name)
            for first in range(self.sets, len(self.calls), repeated):
                parts.append((raw[first : first + repeated] != raw[:repeated]).sum(1))
        parts.append(self._references.sound)
        numbers = torch.cat([part.to(torch.float64).flatten() for part in parts]).tolist()
        if not numbers.pop():
            raise KernelError(
                f"kernel {self._kernel.name}: the reference at {self._problem} has NaN or infinite elements"
            )
        self._trusted = True
        worst = found_worst(numbers, self.calls, {name: tensor.shape for name, tensor in self._results.items()})
        left = numbers[NUMBERS * len(worst) :]
        count, later = len(self.calls), len(self.calls) - self.sets
        counts = list(map(int, left))
        differing = {name: tuple(counts[count + place * later :][:later]) for place, name in enumerate(self._results)}
        return Findings(worst, tuple(counts[:count]), tuple(changed), differing)

    def _words_changed(self) -> torch.Tensor:
        """Return the changed words of each set's inputs and the guards around them, shape (sets,)."""
        words = self._inputs.memory.view(torch.int64)
        return torch.cat([(words[rows] != plain).sum(1) for rows, plain in self._originals.plain()])

    def errors(self, name: str, index: int) -> torch.Tensor:
        """Return error over tolerance in the first run of a set, flat: one number for what is one independent event.

        That is an element, or a row where the inputs have one value along each: results of such a row are alike.
        """
        over = self._rules[name].over(self.outputs()[name][index], self.reference(index)[name])
        return independent_errors(over, self.kinds[index])

    def guard_violation(self, call: int) -> str:
        """Say where outside the buffers of a call was written."""
        return str(self._scratch.guard_violation(call))

    def changed_input(self, index: int) -> str:
        """Say which input of a set `verify` found changed, or that the guards around the inputs were."""
        return self._damage[index]

    def _damaged(self, index: int) -> str:
        original = self._originals.get(index).view(torch.uint8).view(1, -1)
        for name in self._inputs.tensors:
            if bool((self._inputs.bytes_of(name)[index] != self._inputs.bytes_of(name, original)[0]).any()):
                return f"changed its input {name!r}"
        return str(self._inputs.guard_violation(index))

    def unwritten(self, worst: Worst) -> bool:
        """Whether an element still holds its poison."""
        tensor = self.tensors[worst.output]
        if tensor.role == "inout":
            return False
        row = self.calls.index((worst.run, worst.set))
        raw = self._scratch.bytes_of(worst.output)[row].view(tensor.elements, -1)
        flat = 0
        for position, extent in zip(worst.index, tensor.shape, strict=True):
            flat = flat * extent + position
        return bool((raw[flat] == self._poison[worst.output][row]).all())
