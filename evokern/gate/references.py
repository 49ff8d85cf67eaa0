"""Float64 references of the input sets, computed after a candidate has run; large problems store and update them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import torch

from evokern.declaration.kernel import Kernel, Problem, Tensor
from evokern.errors import KERNEL_CODE_EXCEPTIONS, KernelError
from evokern.gate.comparison import MAX_TOGETHER
from evokern.gate.data import is_float
from evokern.gate.device_kernels import DeviceKernels
from evokern.gate.sealed import Sealed
from evokern.gate.slicing import Indices, SlicedTensors

Reading = Callable[[int], Mapping[str, torch.Tensor]]
"""Function from the number of an input set to its inputs, in their own dtypes."""


class References:
    """References of one buffer set, each computed on first use after its inputs changed."""

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
        own: DeviceKernels | None = None,
    ) -> None:
        """Allocate the storage for references.

        Args:
            kernel: kernel with the reference function.
            problem: the problem.
            results: outputs of the workload.
            inputs: function that returns the inputs of a set.
            finite: whether the reference of each set must be finite.
            device: device of the references.
            secret: source of the keys of sealed references.
            kept: whether references are stored while candidates run; if not, they are computed for every candidate.
            sealed: whether to seal stored references, because candidates could read them.
            own: evokern's kernels for this device; None uses torch.
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
        """Number of whole references computed so far."""

    def mark_outdated(self, index: int) -> None:
        """Mark the reference of a set as outdated, because all its inputs changed."""
        self._stale[index] = True
        self._changed[index].clear()
        self._plain.pop(index, None)

    def changed(self, index: int, sliced: SlicedTensors, at: Indices) -> None:
        """Record that a slice of a set's inputs changed."""
        if not self._stale[index]:
            self._changed[index].append((sliced, at))
            self._plain.pop(index, None)

    def conceal(self) -> None:
        """Release decrypted references before a candidate runs."""
        self._plain.clear()
        self._take_extremes()

    @property
    def sound(self) -> torch.Tensor:
        """Whether all references that must be finite are finite so far, as a boolean tensor on the device."""
        self._take_extremes()
        return self._sound

    def _take_extremes(self) -> None:
        extremes = [one for found in self._extremes.values() for one in found]
        if extremes:
            self._sound = self._sound & torch.stack(extremes).isfinite().all()
            self._extremes.clear()

    def of(self, index: int) -> dict[str, torch.Tensor]:
        """Return a set's float64 reference by output, decrypted; call this only while no candidate runs.

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
        if self._kept is None or sum(value.numel() for value in found.values()) <= MAX_TOGETHER:
            self._plain[index] = found
        return found

    def _renewed(self, index: int) -> dict[str, torch.Tensor]:
        """Return a stored reference after recomputing its changed slices."""
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
        """Record the least and largest value of a reference; they are not finite if any value is not."""
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
        """Return a reference function that checks its outputs.

        Args:
            shapes: required shapes of the outputs; None for the declared ones.
            what: clause for messages.
            reference: function to wrap; None for the workload's reference.
        """
        kernel, wanted = self._kernel, shapes or {name: tensor.shape for name, tensor in self._results.items()}
        where = f"kernel {kernel.name}: the reference {what}at {self._problem}"

        def run(problem: Problem, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            try:
                answer = dict((reference or kernel.workload.reference)(problem, inputs))
            except torch.OutOfMemoryError:  # not the fault of the reference: other processes use GPU memory too
                raise
            except KERNEL_CODE_EXCEPTIONS as error:
                raise KernelError(f"{where} raised {type(error).__name__}: {error}") from error
            if set(answer) != set(wanted):
                raise KernelError(f"{where} returned {sorted(answer)}; it must return {sorted(wanted)}")
            for name, value in answer.items():
                if not isinstance(value, torch.Tensor) or tuple(value.shape) != wanted[name]:
                    found = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
                    raise KernelError(f"{where} returned {name!r} of shape {found}; declared shape: {wanted[name]}")
                if value.dtype != torch.float64 and is_float(self._results[name].dtype):
                    raise KernelError(f"{where} returned {name!r} as {value.dtype}; it must compute in torch.float64")
            return answer

        return run


def _indexable(values: torch.Tensor) -> torch.Tensor:
    """Return a view that torch can index; it cannot index 8-bit floats."""
    return values.view(torch.uint8) if values.element_size() == 1 else values
