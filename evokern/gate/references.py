"""Float64 references of a bench's input sets: computed after a candidate ran; of large problems by slices, and kept."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import torch

from evokern.declaration.kernel import Kernel, Problem, Tensor
from evokern.errors import RAISED, KernelError
from evokern.gate.comparison import TOGETHER
from evokern.gate.data import is_float
from evokern.gate.own_kernels import OwnKernels
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
        kept: bool,
        sealed: bool,
        own: OwnKernels | None = None,
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
            kept: whether references are kept while candidates run. Those of a small problem are computed again.
            sealed: whether candidates run where they could read them.
            own: kernels for this device; None for torch.
        """
        self._kernel, self._problem, self._results, self._inputs = kernel, problem, dict(results), inputs
        self._finite = tuple(finite)
        self._device = device
        elements = sum(tensor.elements for tensor in self._results.values())
        self._kept: Sealed | None = None
        if kept:
            self._kept = Sealed(len(self._finite), elements, device, secret, active=sealed, together=False, own=own)
        self._stale = [True] * len(self._finite)
        self._changed: list[list[tuple[SlicedTensors, Indices]]] = [[] for _ in self._finite]
        self._extremes: dict[int, list[torch.Tensor]] = {}
        self._sound = torch.ones((), dtype=torch.bool, device=device)
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
        self._take_extremes()

    @property
    def sound(self) -> torch.Tensor:
        """Whether every reference so far that must be finite is: one boolean, on the device."""
        self._take_extremes()
        return self._sound

    def _take_extremes(self) -> None:
        extremes = [one for found in self._extremes.values() for one in found]
        if extremes:
            self._sound = self._sound & torch.stack(extremes).isfinite().all()
            self._extremes.clear()

    def of(self, index: int) -> dict[str, torch.Tensor]:
        """Return the reference of a set by output, in float64: plain, so only while no candidate runs.

        Raises:
            KernelError: the workload's reference raised, or returned the wrong names, shapes or dtypes.
        """
        if index in self._plain:
            return self._plain[index]
        if self._stale[index]:
            answer = self.whole(self._inputs(index))
            self.computed += 1
            found = {name: answer[name].to(torch.float64) for name in self._results}
            self._check(index, found)
            if self._kept is not None:
                self._keep(index, found)
        else:
            found = self._renewed(index)
        if self._kept is None or sum(value.numel() for value in found.values()) <= TOGETHER:
            self._plain[index] = found
        return found

    def _renewed(self, index: int) -> dict[str, torch.Tensor]:
        """Return a kept reference, with what changed of it since computed anew."""
        assert self._kept is not None, "a reference that is not kept is stale"
        flat = self._kept.get(index).view(torch.float64)
        sizes = [tensor.elements for tensor in self._results.values()]
        parts = zip(self._results.items(), flat.split(sizes), strict=True)  # type: ignore[no-untyped-call]
        found = {name: values.view(tensor.shape) for (name, tensor), values in parts}
        for sliced, at in self._changed[index]:
            part = self.sliced(sliced, at, self._inputs(index))
            self._check(index, part)
            for name, values in part.items():
                sliced.put(name, found[name], values, sliced.indices(at, flat.device))
        if self._changed[index]:
            self._keep(index, found)
        return found

    def _keep(self, index: int, found: Mapping[str, torch.Tensor]) -> None:
        assert self._kept is not None
        words = torch.cat([value.reshape(-1) for value in found.values()]).view(torch.int64)
        self._kept.put([index], words.expand(len(self._finite), -1))
        self._stale[index] = False
        self._changed[index].clear()

    def _check(self, index: int, found: Mapping[str, torch.Tensor]) -> None:
        """Note least and largest value of a reference: one that is NaN or infinite makes these so."""
        if self._finite[index]:
            self._extremes.setdefault(index, []).extend(one for value in found.values() for one in value.aminmax())

    def whole(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Compute the reference of given inputs."""
        return self.compute()(self._problem, {name: values.to(torch.float64) for name, values in inputs.items()})

    def sliced(self, sliced: SlicedTensors, at: Indices, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Compute the reference of a slice of given inputs."""
        where = sliced.indices(at, self._device)
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
            except torch.OutOfMemoryError:  # says nothing of the reference: others use the GPU's memory, too
                raise
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
