"""Buffers of one problem for several input sets and runs: contents, poison, comparison, and memory needed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from evokern.declaration.kernel import DTYPE_BYTES, Kernel, Problem, Tensor, Tolerance
from evokern.errors import KernelError
from evokern.gate.comparison import (
    NUMBERS_PER_CALL,
    Findings,
    Rule,
    Worst,
    compare_calls,
    found_worst,
    independent_errors,
)
from evokern.gate.data import can_be_zero, exact_kinds, poison_byte
from evokern.gate.device_kernels import DeviceKernels
from evokern.gate.guarded_buffers import GuardedBuffers
from evokern.gate.references import References
from evokern.gate.renewal import Renewal, is_large
from evokern.gate.sealed import ReferenceValues, Sealed, wipe_free_memory
from evokern.gate.slicing import Indices, SlicedTensors
from evokern.study.settings import GateSettings, InputSet, TimingSettings

RERUN_SETS = 2
"""Number of input sets used by runs after the first; any inputs reveal nondeterminism."""

MAX_ZERO_SETS = 2
"""Maximum number of `edges` input sets with an all-zero input, a different input in each set."""

EXPOSED_DEVICES = ("cuda",)
"""Devices whose memory candidates can read; secrets are sealed there."""


def kinds_of_sets(kinds: Sequence[InputSet], tensors: Mapping[str, Tensor]) -> tuple[InputSet, ...]:
    """Return the kind of each input set; the `edges` sets, at most three, come last."""
    able = sum(can_be_zero(tensor) for tensor in tensors.values() if tensor.given)
    expanded = [kind for kind in kinds for _ in range(1 + min(able, MAX_ZERO_SETS) if kind == "edges" else 1)]
    return tuple(sorted(expanded, key=lambda kind: kind == "edges"))


def calls_of(runs: int, sets: int) -> list[tuple[int, int]]:
    """Return the run and the input set of each call, ordered by run."""
    return [(run, n) for run in range(runs) for n in range(sets) if run == 0 or n < RERUN_SETS]


class BufferSet:
    """Buffers of one problem: inputs for each input set and outputs for each call, reused between candidates.

    `edges` inputs have up to three sets; after the first, each has one input that is all zero.
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
        own: DeviceKernels | None = None,
    ) -> None:
        """Allocate the buffers; `refresh` fills them.

        Args:
            kernel: kernel whose workload is checked.
            problem: the problem.
            tensors: buffers of the workload for this problem.
            kinds: kinds of inputs.
            runs: number of runs of the first `RERUN_SETS` input sets; the other sets run once.
            tolerance: tolerance of each output.
            guard_bytes: size of the guard zone around each buffer.
            generator: private source of the inputs, on the device of the buffers.
            secret: private source of keys and orders, in host memory.
            renew_every: number of candidates after which a set of a large problem is renewed entirely.
            own: evokern's kernels for this device; None uses torch.

        Raises:
            KernelError: an output has no tolerance, or a slice does not fit the tensors.
        """
        self.kinds = kinds_of_sets(kinds, tensors)
        self.runs = runs
        self.tensors = dict(tensors)
        self.calls = calls_of(runs, self.sets)
        """Run and input set of each call: the calls of the first run, then those of later runs."""
        self._kernel, self._problem = kernel, problem
        device, secret = generator.device, secret or random.SystemRandom()
        self._device = device
        given = {n: t for n, t in tensors.items() if t.given}
        written = {n: t for n, t in tensors.items() if not t.kept}
        self._results = {n: t for n, t in written.items() if t.role != "workspace"}
        if not self._results:
            raise KernelError(f"kernel {kernel.name}: the workload has no output; declare a tensor with role 'output'")
        for name in self._results:
            if name not in tolerance:
                raise KernelError(f"kernel {kernel.name}: output {name!r} has no bound and no tolerance; declare one")
        for name in kernel.workload.nonfinite:
            if name not in given:
                raise KernelError(
                    f"kernel {kernel.name}: nonfinite names {name!r}, which is not an input; use {', '.join(given)}"
                )
        declared = bool(kernel.workload.nonfinite)
        limits = {n: tolerance[n].for_tensor(t) for n, t in self._results.items()}
        self._tolerance = dict(tolerance)
        self._rules = {n: Rule(t, limits[n], nonfinite=declared) for n, t in self._results.items()}
        self._inputs = GuardedBuffers(given, self.sets, guard_bytes, device)
        self._scratch = GuardedBuffers(written, len(self.calls), guard_bytes, device)
        sealed = device.type in EXPOSED_DEVICES
        self._originals = Sealed(self.sets, self._inputs.memory.shape[1] // 8, device, secret, active=sealed,
                                 together=True, own=own)  # fmt: skip
        self._renewal = Renewal(kernel.workload, problem, tensors, self.kinds, generator, secret, renew_every)
        self._references = References(
            kernel, problem, self._results, self._inputs.set, [kind != "edges" for kind in self.kinds], device, secret,
            kept=self._renewal.large, sealed=sealed, limits=limits, exact=[kind == "exact" for kind in self.kinds],
            own=own,
        )  # fmt: skip
        self._poison = {n: self._poison_bytes(t, declared) for n, t in written.items() if t.role != "inout"}
        self._damage: dict[int, str] = {}
        self._trusted = False
        self._unsealed = False
        self._whole_references = 0
        self._own = own
        self.generator = generator
        """Private source of the inputs, on the device of the buffers."""
        self.reach: dict[str, int] = {}
        """Input → level of its change in `TimedCalls`; raised until the change shows in the outputs."""
        self.changes: dict[int, Any] = {}
        """Input set → the change that `TimedCalls` drew; kept until the inputs are renewed if references are slow."""
        self.refreshes = 0
        """Number of calls of `refresh`; 0 means that there are no inputs yet."""

    @property
    def sets(self) -> int:
        """Number of input sets."""
        return len(self.kinds)

    @property
    def results(self) -> Mapping[str, Tensor]:
        """Outputs, including those computed in place."""
        return self._results

    @property
    def large(self) -> bool:
        """Whether candidates share inputs and references, except for renewed slices or sets."""
        return self._renewal.large

    def judge_as(self, tensors: Mapping[str, Tensor]) -> None:
        """Judge the outputs by the bounds of another candidate with the same buffers.

        Its genes may select another precision of the arithmetic.
        """
        limits = {n: self._tolerance[n].for_tensor(tensors[n]) for n in self._results}
        if limits != self._references.limits:
            self._references.limits = limits
            self._rules = {n: replace(rule, tolerance=limits[n]) for n, rule in self._rules.items()}

    # ---- inputs

    def refresh(self, share: float = 1.0, *, whole: bool = False, repetition: bool = False) -> None:
        """Draw new inputs; their references are computed after a candidate has run on them.

        All input sets are renewed. A large problem renews only some slices or sets (`evokern.gate.renewal`), so
        candidates share the other inputs.

        Args:
            share: share of elements that change, chosen at random. A small share deceives candidates that recognise
                inputs by a few elements.
            whole: renew all inputs even for a large problem.
            repetition: draw inputs for a repetition of the same candidate; some inputs always change.
        """
        if self.refreshes and (self.large or share < 1.0):  # otherwise all inputs are replaced
            self.restore_inputs()
        renewed, sliced = self._renewal.renew(
            self._inputs.views, share, whole=whole or not self.refreshes, repetition=repetition
        )
        for index in renewed:
            self._references.mark_outdated(index)
        for index, one, at in sliced:
            self._references.changed(index, one, at)
        self.refreshes += 1
        self._inputs.restore_guards()
        touched = {*renewed, *(index for index, _, _ in sliced)}
        for index in touched:
            self.changes.pop(index, None)
        self._originals.put(touched, self._inputs.memory.view(torch.int64))
        self._unsealed = self._unsealed and len(renewed) < self.sets
        self.erase_secrets()

    def restore_inputs(self) -> None:
        """Restore the original inputs unless `verify` has checked them since the last run."""
        if not self._trusted:
            for rows, plain in self._originals.plain():
                self._inputs.memory[rows].view(torch.int64).copy_(plain)

    def erase_secrets(self) -> None:
        """Erase references and results from device memory before a candidate runs."""
        for one in self._renewal.slices:
            one.forget_indices()
        if self._unsealed:
            self._references.conceal()
            if self.large and self._references.computed > self._whole_references and self._device.type == "cuda":
                # A whole reference leaves so much free memory that overwriting it for every candidate is too slow.
                torch.cuda.empty_cache()
            self._whole_references = self._references.computed
            wipe_free_memory(self._device)
        self._unsealed = self._trusted = False

    def poison(self) -> None:
        """Fill outputs and workspaces with poison, copy inputs of in-place outputs, and restore the guards."""
        self._scratch.restore_guards()
        for name, view in self._scratch.views.items():
            if self.tensors[name].role == "inout":
                for row, (_, index) in enumerate(self.calls):
                    view[row].copy_(self._inputs.views[name][index])
                continue
            self._scratch.bytes_of(name).copy_(self._poison[name])
        self.erase_secrets()

    def _poison_bytes(self, tensor: Tensor, declared: bool) -> torch.Tensor:
        bytes_ = [
            [poison_byte(tensor, run + index, nan=not (declared and self.kinds[index] == "edges"))]
            for run, index in self.calls
        ]
        return torch.tensor(bytes_, dtype=torch.uint8, device=self._device)

    def arguments(self, index: int, run: int = 0) -> dict[str, torch.Tensor]:
        """Return the buffers of one call by name: the inputs of its set, and its own outputs and workspaces."""
        given = {n: view[index] for n, view in self._inputs.views.items() if self.tensors[n].kept}
        return given | self._scratch.set(self.calls.index((run, index)))

    def outputs(self) -> dict[str, torch.Tensor]:
        """Return writable views of all outputs, each of shape (calls, *shape)."""
        return {n: self._scratch.views[n] for n in self._results}

    # ---- references

    def reference(self, index: int) -> ReferenceValues:
        """Return the unsealed float64 reference of a set by output; call it only while no candidate runs."""
        self._unsealed = True
        return self._references.of(index)

    def given(self, index: int) -> dict[str, torch.Tensor]:
        """Return writable views of the inputs of a set by name, including the initial values of in-place outputs."""
        return self._inputs.set(index)

    @property
    def slices(self) -> Sequence[SlicedTensors]:
        """Declared slices of a large problem, whose references can be computed separately; empty for other problems."""
        return self._renewal.slices if self.large else ()

    def current_reference(self, index: int, part: tuple[SlicedTensors, Indices] | None = None) -> ReferenceValues:
        """Return the unsealed references for the current inputs of a set; call it only while no candidate runs.

        Args:
            index: the input set; `reference` must have been called before its inputs were changed.
            part: the slice that was changed since; None computes the whole reference.
        """
        self._unsealed = True
        if part is None:
            return self._references.whole(self._inputs.set(index))
        return self._references.with_slice(index, *part, self._inputs.set(index))

    def rule(self, name: str) -> Rule:
        """Return the rule for judging an output."""
        return self._rules[name]

    def write_reference(self) -> None:
        """Write the reference, rounded to the dtype, into every output, and restore the guards."""
        self._scratch.restore_guards()
        for index in range(self.sets):
            expected = self.reference(index)
            for name, view in self.outputs().items():
                for row, (_, of) in enumerate(self.calls):
                    if of == index:
                        view[row].copy_(self._rules[name].clamp_reference(expected[name]))

    def prove_slices(self) -> None:
        """Check that each declared slice changes only its own outputs and that its reference is correct.

        Raises:
            KernelError: the references of a slice differ from the whole reference for new inputs.
        """
        self.refresh(whole=True)
        self._renewal.prove(self._inputs.set(0), self._references, self._kernel.name)
        self.refresh(whole=True)

    # ---- findings

    def verify(self) -> Findings:
        """Compare all outputs, inputs and guards on the device and return the findings.

        Changed inputs are restored first, so that the references match the original inputs.

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
        # Calls of later runs are stored run after run, each with the first `RERUN_SETS` input sets.
        repeated = min(self.sets, RERUN_SETS)
        for name in self._results:
            raw = self._scratch.bytes_of(name)
            for first in range(self.sets, len(self.calls), repeated):
                parts.append((raw[first : first + repeated] != raw[:repeated]).sum(1))
        parts.append(self._references.sound)
        numbers = torch.cat([part.to(torch.float64).flatten() for part in parts]).tolist()
        if not numbers.pop():
            raise KernelError(
                f"kernel {self._kernel.name}: the reference at {self._problem} contains NaN or infinity; "
                "fix the reference, or generate other inputs (`scale`, `large` or `draw` of a Tensor)"
            )
        self._trusted = True
        worst = found_worst(numbers, self.calls, {name: tensor.shape for name, tensor in self._results.items()})
        left = numbers[NUMBERS_PER_CALL * len(worst) :]
        count, later = len(self.calls), len(self.calls) - self.sets
        counts = list(map(int, left))
        differing = {name: tuple(counts[count + place * later :][:later]) for place, name in enumerate(self._results)}
        return Findings(worst, tuple(counts[:count]), tuple(changed), differing)

    def _words_changed(self) -> torch.Tensor:
        """Return the number of changed words in the inputs and guards of each set, shape (sets,)."""
        words = self._inputs.memory.view(torch.int64)
        return torch.cat([(words[rows] != plain).sum(1) for rows, plain in self._originals.plain()])

    def errors(self, name: str, index: int) -> torch.Tensor:
        """Return the errors of a set's first run, divided by the tolerance, as one value per independent event.

        An event is an element, or a row if inputs are equal along rows, because the results in such a row are alike.
        """
        answer = self.reference(index)
        over = self._rules[name].over(self.outputs()[name][index], answer[name], answer.errors.get(name))
        return independent_errors(over, self.kinds[index])

    def guard_violation(self, call: int) -> str:
        """Return a description of a write outside the buffers of a call."""
        return str(self._scratch.guard_violation(call))

    def changed_input(self, index: int) -> str:
        """Return a description of the changed input or guard that `verify` found in a set."""
        return self._damage[index]

    def _damaged(self, index: int) -> str:
        original = self._originals.get(index).view(torch.uint8).view(1, -1)
        for name in self._inputs.tensors:
            if bool((self._inputs.bytes_of(name)[index] != self._inputs.bytes_of(name, original)[0]).any()):
                return f"changed its input {name!r}"
        return str(self._inputs.guard_violation(index))

    def unwritten(self, worst: Worst) -> str:
        """Return a clause that an element was never written, or an empty string if it was.

        A written element may equal the poison of its call by chance; the calls with another poison decide then.
        """
        tensor = self.tensors[worst.output]
        if tensor.role == "inout":
            return ""
        row = self.calls.index((worst.run, worst.set))
        raw = self._scratch.bytes_of(worst.output)
        width = tensor.bytes // tensor.elements
        flat = 0
        for position, extent in zip(worst.index, tensor.shape, strict=True):
            flat = flat * extent + position
        poison = self._poison[worst.output]
        held = (raw[:, flat * width : (flat + 1) * width] == poison).all(1)
        if not held[row]:
            return ""
        others = held[(poison != poison[row]).any(1)]
        if not others.numel():
            return "was never written, or the kernel wrote a NaN with all bits set"
        return "was never written" if bool(others.all()) else ""


FLOAT64_BYTES = 8
"""Bytes per element of a reference and of the float64 inputs it is computed from."""


def planned_bytes(
    kernel: Kernel, problem: Problem, tensors: Mapping[str, Tensor], gate: GateSettings, timing: TimingSettings
) -> int:
    """Return the bytes that a problem needs for buffers in the gate and in timed runs, and for computing one reference.

    Temporary memory of the reference function and of libraries is not included.

    Args:
        kernel: kernel with the workload.
        problem: the problem.
        tensors: a candidate's buffers for this problem.
        gate: settings with the input sets and runs of the gate.
        timing: settings with the input sets of the timed runs.
    """
    rotated: list[InputSet] = ["normal"] * (timing.rotate_sets if timing.cache == "rotate" else 1)
    checked = _bench_bytes(
        kernel, problem, tensors, kinds_of_sets(exact_kinds(gate.input_sets, tensors), tensors), gate.runs
    )
    timed = _bench_bytes(kernel, problem, tensors, rotated, 1)
    given = sum(tensor.elements for tensor in tensors.values() if tensor.given)
    results = sum(tensor.elements for tensor in tensors.values() if _is_result(tensor))
    return checked + timed + FLOAT64_BYTES * (given + results)


def _bench_bytes(
    kernel: Kernel, problem: Problem, tensors: Mapping[str, Tensor], kinds: Sequence[InputSet], runs: int
) -> int:
    """Return the bytes of inputs and their originals, of outputs and workspaces, and of stored references."""
    sets = len(kinds)
    given = sum(tensor.bytes for tensor in tensors.values() if tensor.given)
    written = sum(tensor.bytes for tensor in tensors.values() if not tensor.kept)
    results = sum(tensor.elements for tensor in tensors.values() if _is_result(tensor))
    kept = sets if is_large(kernel.workload, problem, tensors) else 0
    # Narrow outputs store 2 bytes for each magnitude of their bound (`evokern.gate.references`).
    bounded = sum(len(t.factors) * t.elements * (2 if DTYPE_BYTES[t.dtype] <= 2 else 8) for t in tensors.values())
    return (
        2 * sets * given + len(calls_of(runs, sets)) * written + kept * (FLOAT64_BYTES * results + -(-bounded // 8) * 8)
    )


def _is_result(tensor: Tensor) -> bool:
    return not tensor.kept and tensor.role != "workspace"
