"""One problem's buffers for a number of input sets and runs: fresh inputs, float64 references, poison, comparison."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from evokern.declaration.kernel import Kernel, Problem, Tensor, Tolerance
from evokern.errors import RAISED, KernelError
from evokern.gate.data import draw, is_float, largest_finite, poison_byte
from evokern.gate.guarded_buffers import GuardedBuffers
from evokern.study.settings import InputSet

REFRESH_BUDGET_S = 0.02
"""Time that new inputs and references of one bench may take for each candidate; one set is always renewed."""
_REFRESHES_TIMED = 2
"""The first refresh loads torch's kernels; the second shows what one costs."""
_ELEMENTS_AT_ONCE = 1 << 24
"""Elements that one comparison takes at once; it needs about 40 bytes for each."""


@dataclass(frozen=True)
class Worst:
    """The element of an output that is furthest beyond what is allowed (or nearest to it)."""

    output: str
    """The output."""
    run: int
    """Run, from 0."""
    set: int
    """Input set, from 0."""
    bad: int
    """Elements of this output, run and set that are not within the tolerance."""
    index: tuple[int, ...]
    """Its index."""
    got: float
    """What was computed; infinities read as the largest finite value."""
    expected: float
    """The reference."""
    allowed: float
    """Largest error allowed there."""
    relative_error: float
    """Relative Frobenius error of the output in this run and set."""
    spent: float
    """Root mean square of error over allowed error: rounding errors stay far below 1, a systematic one need not."""
    most: float
    """Largest error over allowed error, which may be another element's: this one is worst in absolute terms."""

    @property
    def over(self) -> float:
        """Error over what is allowed; NaN counts as infinite."""
        error = abs(self.got - self.expected)
        if not error <= self.allowed:
            return error / self.allowed if self.allowed and error == error else float("inf")
        return error / self.allowed if self.allowed else 0.0


@dataclass(frozen=True)
class Findings:
    """What one synchronisation brought back."""

    worst: tuple[Worst, ...]
    """One per output, run and set."""
    guards_changed: tuple[int, ...]
    """Changed guard bytes around outputs and workspaces, per run and set (index run · sets + set)."""
    inputs_changed: tuple[int, ...]
    """Changed 8-byte words of the inputs and the guards around them, per set."""
    differing: Mapping[str, tuple[int, ...]]
    """Output → changed bytes against run 0, per later run and set (index (run - 1) · sets + set)."""


class Bench:
    """Buffers of one problem for some input sets and runs."""

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
    ) -> None:
        """Allocate; `refresh` fills.

        Raises:
            KernelError: an output has no tolerance.
        """
        self.kinds = tuple(kinds)
        self.runs = runs
        self.tensors = dict(tensors)
        self._kernel = kernel
        self._problem = problem
        self._generator = generator
        self._tolerance = dict(tolerance)
        device = generator.device
        given = {n: t for n, t in tensors.items() if t.given}
        written = {n: t for n, t in tensors.items() if not t.kept}
        self._results = {n: t for n, t in written.items() if t.role != "workspace"}
        if not self._results:
            raise KernelError(f"kernel {kernel.name}: the workload has no output")
        for name in self._results:
            if name not in self._tolerance:
                raise KernelError(f"kernel {kernel.name}: output {name!r} has no tolerance")
        self._inputs = GuardedBuffers(given, len(self.kinds), guard_bytes, device)
        self._pristine = torch.empty_like(self._inputs.memory)
        self._scratch = GuardedBuffers(written, runs * len(self.kinds), guard_bytes, device)
        sets = len(self.kinds)
        wide = {n: (sets, *t.shape) for n, t in self._results.items()}
        self._reference = {n: torch.empty(shape, dtype=torch.float64, device=device) for n, shape in wide.items()}
        self._allowed = {n: torch.empty_like(reference) for n, reference in self._reference.items()}
        self.refreshes = 0
        """How often `refresh` was called; before the first time there are no inputs."""
        self._share = len(self.kinds)
        self._turn = 0
        self._sound = torch.ones((), dtype=torch.bool, device=device)

    @property
    def sets(self) -> int:
        """Number of input sets."""
        return len(self.kinds)

    @property
    def results(self) -> Mapping[str, Tensor]:
        """Outputs, those computed in place too."""
        return self._results

    def refresh(self, share: float = 1.0) -> None:
        """Draw new inputs and compute their references.

        Where a reference is expensive (a large problem on a GPU with slow float64) each call renews only some sets, in
        turn. That is as good: a set is old only in that an earlier candidate saw it, never this one.

        Args:
            share: share of the elements that change, chosen at random; a few changed ones among many old ones deceive
                a candidate that recognises inputs by a sample of them.

        Raises:
            KernelError: the reference raised, or returned the wrong names, shapes or dtypes.
        """
        began = time.perf_counter()
        if self.refreshes:
            # Sets that are not renewed now must not keep what a candidate wrote into its inputs.
            self._inputs.memory.copy_(self._pristine)
        for index in self._next_sets():
            kind = self.kinds[index]
            for name, view in self._inputs.views.items():
                self._draw(self.tensors[name], kind, view[index], share)
            for name, value in self._reference_of(index).items():
                self._reference[name][index].copy_(value)
        self.refreshes += 1
        self._inputs.mend_guards()
        self._pristine.copy_(self._inputs.memory)
        sound = [reference.isfinite().all() for reference in self._reference.values()]
        self._sound = torch.stack(sound).all()
        for name, tensor in self._results.items():
            limit = largest_finite(tensor.dtype)
            self._reference[name].clamp_(-limit, limit)
            chosen = self._tolerance[name]
            torch.abs(self._reference[name], out=self._allowed[name])
            self._allowed[name].mul_(chosen.rtol).add_(chosen.atol)
        if self.refreshes <= _REFRESHES_TIMED:
            if self._generator.device.type == "cuda":
                torch.cuda.synchronize()
            of_set = (time.perf_counter() - began) / len(self.kinds)
            self._share = max(1, min(len(self.kinds), int(REFRESH_BUDGET_S / max(of_set, 1e-9))))

    def _draw(self, tensor: Tensor, kind: InputSet, view: torch.Tensor, share: float) -> None:
        if share >= 1.0:
            draw(tensor, kind, view, self._generator)
            return
        fresh = torch.empty_like(view)
        draw(tensor, kind, fresh, self._generator)
        changed = torch.rand(view.shape, generator=self._generator, device=view.device) < share
        # Bytes, since torch selects no 8-bit floats.
        raw, new = (t.view(torch.uint8).view(*t.shape, -1) for t in (view, fresh))
        raw.copy_(torch.where(changed.unsqueeze(-1), new, raw))

    def _next_sets(self) -> list[int]:
        count = len(self.kinds)
        if self.refreshes < _REFRESHES_TIMED:
            return list(range(count))
        first, self._turn = self._turn, (self._turn + self._share) % count
        return [(first + step) % count for step in range(self._share)]

    def _reference_of(self, index: int) -> dict[str, torch.Tensor]:
        kernel, problem = self._kernel, self._problem
        wide = {name: view[index].to(torch.float64) for name, view in self._inputs.views.items()}
        where = f"kernel {kernel.name}: the reference at {problem}"
        try:
            answer = dict(kernel.workload.reference(problem, wide))
        except RAISED as error:
            raise KernelError(f"{where} raised {type(error).__name__}: {error}") from error
        if set(answer) != set(self._results):
            raise KernelError(f"{where} returned {sorted(answer)}; the outputs are {sorted(self._results)}")
        for name, value in answer.items():
            shape = self._results[name].shape
            if not isinstance(value, torch.Tensor) or tuple(value.shape) != shape:
                found = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
                raise KernelError(f"{where} returned {name!r} of shape {found}; declared is {shape}")
            if value.dtype != torch.float64 and is_float(self._results[name].dtype):
                raise KernelError(f"{where} returned {name!r} as {value.dtype}; it must compute in torch.float64")
        return answer

    def poison(self) -> None:
        """Fill outputs and workspaces with poison, those computed in place with their inputs; mend guards."""
        self._scratch.mend_guards()
        for name, view in self._scratch.views.items():
            tensor = self.tensors[name]
            if tensor.role == "inout":
                self._by_run(view).copy_(self._inputs.views[name])
                continue
            raw = self._by_run(self._scratch.bytes_of(name))
            for run in range(self.runs):
                raw[run].fill_(poison_byte(tensor, run))

    def _by_run(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.view(self.runs, self.sets, *rows.shape[1:])

    def arguments(self, index: int, run: int = 0) -> dict[str, torch.Tensor]:
        """Return the buffers of one call by name: inputs of a set, outputs and workspaces of a set and run."""
        given = {n: view[index] for n, view in self._inputs.views.items() if self.tensors[n].kept}
        return given | self._scratch.set(run * self.sets + index)

    def answer_by_reference(self) -> None:
        """Write the reference into every output, rounded to its dtype: what a right kernel would leave."""
        for name, view in self.outputs().items():
            view.copy_(self._reference[name])

    def outputs(self) -> dict[str, torch.Tensor]:
        """Return every output over runs and sets, shape (runs, sets, *shape), to write into."""
        return {n: self._by_run(self._scratch.views[n]) for n in self._results}

    def verify(self) -> Findings:
        """Compare everything on the device and bring the findings back with one synchronisation.

        Raises:
            KernelError: a reference is not finite.
        """
        parts: list[torch.Tensor] = [self._sound, self._scratch.broken_guards()]
        parts.append((self._inputs.memory.view(torch.int64) != self._pristine.view(torch.int64)).sum(1))
        for name, view in self.outputs().items():
            parts.append(self._compare(name, view))
            raw = self._by_run(self._scratch.bytes_of(name))
            parts.append((raw[1:] != raw[:1]).sum(2))
        numbers = torch.cat([part.to(torch.float64).flatten() for part in parts]).tolist()
        return self._findings(numbers)

    def _compare(self, name: str, view: torch.Tensor) -> torch.Tensor:
        """Return (8, runs, sets): bad elements, worst index, got, expected, allowed, relative error, spent, most."""
        step = max(1, _ELEMENTS_AT_ONCE // (self.runs * self._results[name].elements))
        blocks = [
            self._compare_sets(name, view[:, start : start + step], slice(start, start + step))
            for start in range(0, self.sets, step)
        ]
        return torch.cat(blocks, dim=2)

    def _compare_sets(self, name: str, view: torch.Tensor, sets: slice) -> torch.Tensor:
        limit = largest_finite(self._results[name].dtype)
        # Where the exact result exceeds the dtype's range an infinity or the largest value is right: both clamp alike.
        got = view.to(torch.float64).clamp_(-limit, limit).flatten(2)
        expected, allowed = (
            part[sets].flatten(1).expand_as(got) for part in (self._reference[name], self._allowed[name])
        )
        error = (got - expected).abs_()
        bad = error.shape[2] - (error <= allowed).sum(2)
        # NaN compares as the largest value in argmax, so that a NaN is the worst element wherever there is one.
        worst = (error - allowed).argmax(2, keepdim=True)
        picked = [part.gather(2, worst).squeeze(2) for part in (got, expected, allowed)]
        tiny = torch.finfo(torch.float64).tiny
        shares = error / allowed.clamp_min(tiny)
        most = shares.amax(2)
        spent = shares.square_().mean(2).sqrt_()
        scale = expected.square().sum(2)
        relative = (error.square_().sum(2) / scale.clamp_min(tiny)).sqrt_()
        return torch.stack([bad.to(torch.float64), worst.squeeze(2).to(torch.float64), *picked, relative, spent, most])

    def errors(self, name: str, index: int) -> torch.Tensor:
        """Return error over tolerance in the first run of a set, flat: one number for what is one independent event.

        That is an element, or a row where the inputs have one value along each: results of such a row are alike.
        """
        limit = largest_finite(self._results[name].dtype)
        got = self.outputs()[name][0, index].to(torch.float64).clamp_(-limit, limit)
        return independent_errors(
            error_over_tolerance(got, self._reference[name][index], self._allowed[name][index]), self.kinds[index]
        )

    def _findings(self, numbers: list[float]) -> Findings:
        position = 0

        def take(count: int) -> list[float]:
            nonlocal position
            position += count
            return numbers[position - count : position]

        pairs = self.runs * self.sets
        if not take(1)[0]:
            raise KernelError(
                f"kernel {self._kernel.name}: the reference at {self._problem} has NaN or infinite elements"
            )
        guards_changed, changed = take(pairs), take(self.sets)
        worst: list[Worst] = []
        differing: dict[str, tuple[int, ...]] = {}
        for name, tensor in self._results.items():
            columns = [take(pairs) for _ in range(8)]
            for pair, (bad, flat, got, expected, allowed, *errors) in enumerate(zip(*columns, strict=True)):
                run, index = divmod(pair, self.sets)
                where = _unravel(int(flat), tensor.shape)
                worst.append(Worst(name, run, index, int(bad), where, got, expected, allowed, *errors))
            differing[name] = tuple(map(int, take((self.runs - 1) * self.sets)))
        return Findings(tuple(worst), tuple(map(int, guards_changed)), tuple(map(int, changed)), differing)

    def guard_violation(self, pair: int) -> str:
        """Say where outside the buffers of a run and set was written (index run · sets + set)."""
        return str(self._scratch.guard_violation(pair))

    def changed_input(self, index: int) -> str:
        """Say which input of a set was changed, or that the guards around the inputs were."""
        for name in self._inputs.tensors:
            if bool((self._inputs.bytes_of(name) != self._inputs.bytes_of(name, self._pristine))[index].any()):
                return f"changed its input {name!r}"
        return str(self._inputs.guard_violation(index))

    def unwritten(self, worst: Worst) -> bool:
        """Whether an element still holds its poison."""
        tensor = self.tensors[worst.output]
        if tensor.role == "inout":
            return False
        raw = self._scratch.bytes_of(worst.output)[worst.run * self.sets + worst.set].view(tensor.elements, -1)
        flat = 0
        for position, extent in zip(worst.index, tensor.shape, strict=True):
            flat = flat * extent + position
        return bool((raw[flat] == poison_byte(tensor, worst.run)).all())


def error_over_tolerance(got: torch.Tensor, expected: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Return error over what is allowed; where nothing is allowed an error is infinite, and none is 0."""
    error = (got - expected).abs_()
    return torch.where(error == 0, 0.0, error / allowed)


def independent_errors(errors: torch.Tensor, kind: InputSet) -> torch.Tensor:
    """Return one number for what is one independent event: the worst of a row where inputs are equal along rows."""
    return (errors.amax(-1) if kind == "equal_rows" and errors.ndim > 1 else errors).flatten()


def _unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index: list[int] = []
    for extent in reversed(shape):
        flat, position = divmod(flat, extent)
        index.append(position)
    return tuple(reversed(index))


def tolerances(kernel: Kernel, atol: float | None, rtol: float | None) -> dict[str, Tolerance]:
    """Return the kernel's tolerances with a study's own in their place."""
    return {
        name: replace(t, atol=t.atol if atol is None else atol, rtol=t.rtol if rtol is None else rtol)
        for name, t in kernel.workload.tolerance.items()
    }
