"""Float64 references of a bench's input sets: computed after a candidate ran, whole or by slices, and kept sealed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import torch

from evokern.declaration.kernel import Kernel, Problem, Tensor
from evokern.errors import RAISED, KernelError
from evokern.gate.comparison import TOGETHER
from evokern.gate.data import is_float
from evokern.gate.sealed import Sealed
from evokern.gate.slicing import Indices, SlicedTensors

Reading = Callable[[int], Mapping[str, torch.Tensor]]
"""Number of an input set → its inputs, in their own dtypes."""


class References:
    """The references of one bench, each computed when it is first asked for after its inputs changed."""

    def __init__(
        self,
        kernel: Kernel,
        problem: Problem,
        results: Mapping[str, Tensor],
        inputs: Reading,
        finite: Sequence[bool],
        device: torch.device,
        secret: random.Random,
        *,
        sealed: bool,
    ) -> None:
        """Allocate.

        Args:
            kernel: whose workload says what is right.
            problem: the problem.
            results: its outputs.
            inputs: where the inputs of a set are found.
            finite: of each set, whether its reference must be finite.
            device: where.
            secret: source of the keys under which references rest.
            sealed: whether candidates run where they could read them.
        """
        self._kernel, self._problem, self._results, self._inputs = kernel, problem, dict(results), inputs
        self._finite = tuple(finite)
        self._offsets: dict[str, int] = {}
        end = 0
        for name, tensor in self._results.items():
            self._offsets[name] = end
            end += tensor.elements
        self._kept = Sealed(len(self._finite), end, device, secret, active=sealed)
        self._stale = [True] * len(self._finite)
        self._changed: list[list[tuple[SlicedTensors, Indices]]] = [[] for _ in self._finite]
        self._sound = [torch.ones((), dtype=torch.bool, device=device) for _ in self._finite]
        self._plain: dict[int, dict[str, torch.Tensor]] = {}
        self.computed = 0
        """Whole references computed so far."""

    def forget(self, index: int) -> None:
        """Take in that all inputs of a set are new, or not to be relied on."""
        self._stale[index] = True
        self._changed[index].clear()
        self._plain.pop(index, None)

    def changed(self, index: int, sliced: SlicedTensors, at: Indices) -> None:
        """Take in that a slice of a set's inputs is new."""
        if not self._stale[index]:
            self._changed[index].append((sliced, at))
            self._plain.pop(index, None)

    def conceal(self) -> None:
        """Let go of what was plain: a candidate runs next."""
        self._plain.clear()

    @property
    def sound(self) -> torch.Tensor:
        """Whether every reference that must be finite is: one boolean, on the device."""
        return torch.stack(self._sound).all()

    def of(self, index: int) -> dict[str, torch.Tensor]:
        """Return the reference of a set by output, in float64: plain, so only while no candidate runs.

        Raises:
            KernelError: the workload's reference raised, or returned the wrong names, shapes or dtypes.
        """
        if index in self._plain:
            return self._plain[index]
        changed = self._changed[index]
        if not self._stale[index] and not changed:
            return self._split(self._kept.get(index).view(torch.float64))
        if self._stale[index]:
            answer = self.compute()(self._problem, self._wide(index))
            self.computed += 1
            flat = torch.cat([answer[name].to(torch.float64).reshape(-1) for name in self._results])
            self._check(index, flat)
            found = self._split(flat)
        else:
            flat = self._kept.get(index).view(torch.float64)
            found = self._split(flat)
            for sliced, at in changed:
                part = self.sliced(sliced, at, self._inputs(index))
                self._check(index, *part.values())
                for name, values in part.items():
                    sliced.put(name, found[name], values, sliced.indices(at, flat.device))
        self._kept.put(index, flat.view(torch.int64))
        self._stale[index] = False
        changed.clear()
        if flat.numel() <= TOGETHER:
            self._plain[index] = found
        return found

    def _check(self, index: int, *values: torch.Tensor) -> None:
        if self._finite[index]:
            self._sound[index] = torch.stack([one.isfinite().all() for one in values]).all()

    def _wide(self, index: int) -> dict[str, torch.Tensor]:
        return {name: values.to(torch.float64) for name, values in self._inputs(index).items()}

    def _split(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            name: flat[self._offsets[name] :][: tensor.elements].view(tensor.shape)
            for name, tensor in self._results.items()
        }

    def whole(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Compute the reference of given inputs."""
        return self.compute()(self._problem, {name: values.to(torch.float64) for name, values in inputs.items()})

    def sliced(self, sliced: SlicedTensors, at: Indices, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Compute the reference of a slice of given inputs."""
        device = self._kept.memory.device
        where = sliced.indices(at, device)
        wide = {
            name: sliced.cut(name, _indexable(values), where).view(values.dtype).to(torch.float64)
            for name, values in inputs.items()
        }
        counts = tuple(len(one) for one in at)
        part = sliced.declared.part(self._problem, counts)
        shapes = {}
        for name in sliced.outputs:
            shape = list(self._results[name].shape)
            for axis, count in zip(sliced.declared.cut(name), counts, strict=True):
                shape[axis] = count
            shapes[name] = tuple(shape)
        if sliced.declared.reference is None:
            whole = {**{name: tensor.shape for name, tensor in self._results.items()}, **shapes}
            answer = self.compute(whole, f"on a slice of {', '.join(sliced.inputs)} ")(part, wide)
        else:
            own = sliced.declared.reference
            answer = self.compute(shapes, f"of a slice of {', '.join(sliced.inputs)} ",
                                  lambda p, t: own(p, t, *where))(self._problem, wide)  # fmt: skip
        return {name: answer[name] for name in shapes}

    def compute(
        self,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        what: str = "",
        reference: Callable[..., Mapping[str, torch.Tensor]] | None = None,
    ) -> Callable[[Problem, Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]:
        """Return a reference that is checked: shapes of the outputs as they must come, and words for messages."""
        kernel, wanted = self._kernel, shapes or {name: tensor.shape for name, tensor in self._results.items()}
        where = f"kernel {kernel.name}: the reference {what}at {self._problem}"

        def run(problem: Problem, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            try:
                answer = dict((reference or kernel.workload.reference)(problem, inputs))
            except RAISED as error:
                raise KernelError(f"{where} raised {type(error).__name__}: {error}") from error
            if set(answer) != set(wanted):
                raise KernelError(f"{where} returned {sorted(answer)}; the outputs are {sorted(wanted)}")
            for name, value in answer.items():
                if not isinstance(value, torch.Tensor) or tuple(value.shape) != wanted[name]:
                    found = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
                    raise KernelError(f"{where} returned {name!r} of shape {found}; declared is {wanted[name]}")
                if value.dtype != torch.float64 and is_float(self._results[name].dtype):
                    raise KernelError(f"{where} returned {name!r} as {value.dtype}; it must compute in torch.float64")
            return answer

        return run


def _indexable(values: torch.Tensor) -> torch.Tensor:
    """Return a view that torch selects rows of: it has no selection of 8-bit floats."""
    return values.view(torch.uint8) if values.element_size() == 1 else values
