"""Float64 references of the input sets, computed after a candidate has run; large problems store and update them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import torch

from evokern.declaration.bounds import CustomBound, ErrorBound
from evokern.declaration.kernel import DTYPE_BYTES, Kernel, Problem, Tensor, Tolerance
from evokern.errors import KERNEL_CODE_EXCEPTIONS, KernelError
from evokern.gate.comparison import MAX_TOGETHER
from evokern.gate.data import is_float
from evokern.gate.device_kernels import DeviceKernels
from evokern.gate.sealed import ReferenceValues, Sealed
from evokern.gate.slicing import Indices, SlicedTensors, upload

STORED_GROWTH = 1 + 2.0**-7
"""Factor of magnitudes before they are stored in bfloat16, so that rounding never lowers a bound."""


_WORD = 8
"""Bytes of a word of sealed storage."""

Magnitudes = dict[str, tuple[torch.Tensor, ...]]
"""Output → magnitudes of its bound (`evokern.declaration.bounds`)."""

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
        limits: Mapping[str, Tolerance],
        exact: Sequence[bool],
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
            limits: tolerance of each output; a bound adds magnitudes to the references.
            exact: whether the arithmetic on each set is exact, so that bounds are 0.
            own: evokern's kernels for this device; None uses torch.
        """
        self._kernel, self._problem, self._results, self._inputs = kernel, problem, dict(results), inputs
        self._finite = tuple(finite)
        self._device = device
        self._bounds = {name: limit.bound for name, limit in limits.items() if limit.bound is not None}
        slices = kernel.workload.slices_at(problem)
        self._cut = {name: {axis for one in slices for axis in one.cut(name)} for name in self._bounds}
        self._exact = tuple(exact)
        self._seal = (device, secret, sealed, own)
        self._magnitudes: dict[int, Magnitudes] = {}
        self._kept_magnitudes: Sealed | None = None
        self._layout: dict[str, list[torch.Size]] = {}
        self._combined: dict[int, tuple[Mapping[str, Tolerance], dict[str, torch.Tensor]]] = {}
        self.limits = limits
        """Tolerance of each output for the current candidate."""
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
        self._magnitudes.pop(index, None)

    def changed(self, index: int, sliced: SlicedTensors, at: Indices) -> None:
        """Record that a slice of a set's inputs changed."""
        if not self._stale[index]:
            self._changed[index].append((sliced, at))
            self._plain.pop(index, None)

    def conceal(self) -> None:
        """Release unsealed references and bounds before a candidate runs.

        On inputs of one sign, the magnitude of a sum is its result.
        """
        self._plain.clear()
        self._magnitudes.clear()
        self._combined.clear()
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

    def of(self, index: int) -> ReferenceValues:
        """Return the unsealed float64 references of a set and their bounds; call it only while no candidate runs.

        Raises:
            KernelError: the workload's reference raised, or returned the wrong names, shapes or dtypes.
        """
        if index in self._plain:
            return ReferenceValues(self._plain[index], self._errors(index))
        if self._stale[index]:
            answer, magnitudes = self._computed(self._inputs(index), exact=self._exact[index])
            self.computed += 1
            found = {name: answer[name].to(torch.float64) for name in self._results}
            self._check(index, found)
            self._keep_magnitudes(index, self._stored(magnitudes))
            if self._kept is not None:
                self._keep(index, torch.cat([value.reshape(-1) for value in found.values()]).view(torch.int64))
        else:
            found = self._renewed(index)
        if self._kept is None or sum(value.numel() for value in found.values()) <= MAX_TOGETHER:
            self._plain[index] = found
        return ReferenceValues(found, self._errors(index))

    def _errors(self, index: int) -> dict[str, torch.Tensor]:
        """Return the bounds of a set for the current candidate; most candidates share the previous one's factors."""
        limits, errors = self._combined.get(index, ({}, {}))
        if limits != self.limits:
            errors = self._bounded(self._magnitudes_at(index))
            self._combined[index] = self.limits, errors
        return errors

    def _magnitudes_at(self, index: int) -> Magnitudes:
        """Return the unsealed magnitudes of a set; empty if its arithmetic is exact or no output has a bound."""
        if index not in self._magnitudes:
            known = None if self._exact[index] else self._kept_magnitudes
            self._magnitudes[index] = {} if known is None else self._parts_of(known.get(index))
        return self._magnitudes[index]

    def _parts_of(self, words: torch.Tensor) -> Magnitudes:
        """Return views of the magnitudes of a set in their stored words."""
        raw, found = words.view(torch.uint8), {}
        for name, shapes in self._layout.items():
            dtype, parts = self._stored_dtype(name), []
            for shape in shapes:
                size = shape.numel() * dtype.itemsize
                parts.append(raw[:size].view(dtype).view(shape))
                raw = raw[-(-size // _WORD) * _WORD :]
            found[name] = tuple(parts)
        return found

    def _keep_magnitudes(self, index: int, magnitudes: Magnitudes) -> None:
        """Store the magnitudes of a set as the references are stored."""
        self._magnitudes[index] = magnitudes
        self._combined.pop(index, None)
        if self._kept is None or not magnitudes:
            return
        self._layout = {name: [one.shape for one in parts] for name, parts in magnitudes.items()}
        words = torch.cat([_words(one) for parts in magnitudes.values() for one in parts])
        if self._kept_magnitudes is None:
            device, secret, sealed, own = self._seal
            self._kept_magnitudes = Sealed(
                len(self._finite), len(words), device, secret, active=sealed, together=False, own=own
            )
        self._kept_magnitudes.put([index], words.expand(len(self._finite), -1))

    def _bounded(self, magnitudes: Magnitudes) -> dict[str, torch.Tensor]:
        """Return the bound of each output from its magnitudes."""
        errors = {}
        for name, parts in magnitudes.items():
            narrow = self._stored_dtype(name) == torch.bfloat16
            found = self._bounds[name].combined(self.limits[name].factors, parts, torch.float32 if narrow else None)
            errors[name] = self._stored_as(name, found.expand(self._results[name].shape))
        return errors

    def _stored(self, magnitudes: Magnitudes) -> Magnitudes:
        return {name: tuple(self._stored_as(name, one) for one in parts) for name, parts in magnitudes.items()}

    def _stored_as(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Return values in the type in which they are stored: 2 bytes suffice for the bound of a narrow output."""
        if self._stored_dtype(name) != torch.bfloat16:
            return values.contiguous()
        stored = torch.empty(values.shape, dtype=torch.bfloat16, device=values.device)
        return torch.mul(values, STORED_GROWTH, out=stored)

    def _stored_dtype(self, name: str) -> torch.dtype:
        return torch.bfloat16 if DTYPE_BYTES[self._results[name].dtype] <= 2 else torch.float64

    def _renewed(self, index: int) -> dict[str, torch.Tensor]:
        """Return a stored reference after recomputing its changed slices."""
        assert self._kept is not None, "a reference that is not kept is stale"
        words = self._kept.get(index)
        flat = words.view(torch.float64)
        sizes = [tensor.elements for tensor in self._results.values()]
        parts = zip(self._results.items(), flat.split(sizes), strict=True)  # type: ignore[no-untyped-call]
        found = {name: values.view(tensor.shape) for (name, tensor), values in parts}
        upload([one for changed in self._changed for one in changed], flat.device)
        magnitudes: torch.Tensor | None = None
        kept: Magnitudes = {}
        for sliced, at in self._changed[index]:
            part, changed = self._computed_slice(sliced, at, self._inputs(index), exact=self._exact[index])
            self._check(index, part)
            for name, values in part.items():
                sliced.put(name, found[name], values, sliced.indices(at, flat.device))
            if changed and self._kept_magnitudes is not None:
                if magnitudes is None:
                    magnitudes = self._kept_magnitudes.get(index)
                    kept = self._parts_of(magnitudes)
                self._put_magnitudes(kept, changed, sliced, at)
        if magnitudes is not None and self._kept_magnitudes is not None:
            self._magnitudes[index] = kept
            self._combined.pop(index, None)
            self._kept_magnitudes.put([index], magnitudes.expand(len(self._finite), -1))
        if self._changed[index]:
            self._keep(index, words)
        return found

    def _keep(self, index: int, words: torch.Tensor) -> None:
        assert self._kept is not None
        self._kept.put([index], words.expand(len(self._finite), -1))
        self._stale[index] = False
        self._changed[index].clear()

    def _check(self, index: int, found: Mapping[str, torch.Tensor]) -> None:
        """Record the least and largest value of a reference; they are not finite if any value is not."""
        if self._finite[index]:
            self._extremes.setdefault(index, []).extend(one for value in found.values() for one in value.aminmax())

    def whole(self, inputs: Mapping[str, torch.Tensor]) -> ReferenceValues:
        """Compute the reference of given inputs, with the bounds."""
        answer, magnitudes = self._computed(inputs, exact=False)
        return ReferenceValues(answer, self._bounded(magnitudes))

    def with_slice(
        self, index: int, sliced: SlicedTensors, at: Indices, inputs: Mapping[str, torch.Tensor]
    ) -> ReferenceValues:
        """Return the references of a set after a slice of its inputs changed, without storing them."""
        found = {name: value.clone() for name, value in self.of(index).items()}
        magnitudes = self._cloned_magnitudes(index)
        values, changed = self._computed_slice(sliced, at, inputs, exact=not magnitudes)
        for name, part in values.items():
            sliced.put(name, found[name], part, sliced.indices(at, self._device))
        self._put_magnitudes(magnitudes, changed, sliced, at)
        return ReferenceValues(found, self._bounded(magnitudes))

    def sliced(self, sliced: SlicedTensors, at: Indices, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Compute the reference of a slice of given inputs."""
        return self._computed_slice(sliced, at, inputs, exact=True)[0]

    def _computed(
        self, inputs: Mapping[str, torch.Tensor], *, exact: bool
    ) -> tuple[dict[str, torch.Tensor], Magnitudes]:
        """Compute the references of given inputs, and the magnitudes of their bounds unless arithmetic is exact."""
        wide = {name: values.to(torch.float64) for name, values in inputs.items()}
        run = self.compute()
        answer = run(self._problem, wide)
        if exact:
            return answer, {}
        found: Magnitudes = {}
        for name, bound in self._bounds.items():
            parts = self._magnitudes_of(bound, self._problem, wide, answer, name, lambda t: run(self._problem, t))
            found[name] = tuple(self._sliceable(name, one, answer[name].shape) for one in parts)
        return answer, found

    def _magnitudes_of(
        self,
        bound: ErrorBound,
        problem: Problem,
        inputs: Mapping[str, torch.Tensor],
        answer: Mapping[str, torch.Tensor],
        name: str,
        reference: Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]],
    ) -> tuple[torch.Tensor, ...]:
        where = f"kernel {self._kernel.name}: the error bound of {name!r} at {self._problem}"
        try:
            parts = bound.magnitudes(problem, inputs, answer[name], lambda t: reference(t)[name])
        except KERNEL_CODE_EXCEPTIONS as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise KernelError(f"{where} raised {type(error).__name__}: {error}") from error
        for part in parts:
            if not isinstance(part, torch.Tensor) or part.dtype != torch.float64:
                found = part.dtype if isinstance(part, torch.Tensor) else type(part).__name__
                raise KernelError(f"{where} is {found}; it must be a float64 tensor")
            if isinstance(bound, CustomBound) and bool((part < 0).any()):
                raise KernelError(f"{where} is negative: {float(part.min()):.3g}; use absolute values")
            try:
                part.expand(answer[name].shape)
            except RuntimeError as error:
                shape, own = tuple(part.shape), tuple(answer[name].shape)
                raise KernelError(f"{where} has shape {shape}, but the output has shape {own}") from error
        return parts

    def _sliceable(self, name: str, magnitude: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Return a magnitude with the full extent of the output's shape on every axis that a slice may cut."""
        cut, whole = self._cut[name], (1,) * (len(shape) - magnitude.ndim) + tuple(magnitude.shape)
        wanted = [extent if axis in cut else mine for axis, (extent, mine) in enumerate(zip(shape, whole, strict=True))]
        return magnitude.expand(wanted)

    def _cloned_magnitudes(self, index: int) -> Magnitudes:
        found = self._magnitudes_at(index)
        return {name: tuple(one.clone() for one in parts) for name, parts in found.items()}

    def _put_magnitudes(self, whole: Magnitudes, part: Magnitudes, sliced: SlicedTensors, at: Indices) -> None:
        """Write the magnitudes of a slice into those of a set."""
        for name, parts in part.items():
            for into, values in zip(whole[name], self._stored({name: parts})[name], strict=True):
                sliced.put(name, into, values, sliced.indices(at, self._device))

    def _computed_slice(
        self, sliced: SlicedTensors, at: Indices, inputs: Mapping[str, torch.Tensor], *, exact: bool
    ) -> tuple[dict[str, torch.Tensor], Magnitudes]:
        """Compute the references of a slice of given inputs, and the magnitudes of their bounds."""
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
            run, of = self.compute(whole, f"on a slice of {', '.join(sliced.inputs)} "), part
        else:
            own = sliced.declared.reference
            run = self.compute(shapes, f"of a slice of {', '.join(sliced.inputs)} ", lambda p, t: own(p, t, *where))
            of = self._problem
        answer = run(of, wide)
        magnitudes: Magnitudes = {}
        for name, bound in {} if exact else self._bounds.items():
            if name in shapes:
                found = self._magnitudes_of(bound, of, wide, answer, name, lambda t: run(of, t))
                magnitudes[name] = tuple(self._sliceable(name, one, shapes[name]) for one in found)
        return {name: answer[name] for name in shapes}, magnitudes

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
            except KernelError as error:  # from evokern's own references, with the problem and the remedy
                raise KernelError(f"kernel {kernel.name}: {error}") from error
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


def answers_of(
    kernel: Kernel,
    problem: Problem,
    tensors: Mapping[str, Tensor],
    tolerances: Mapping[str, Tolerance],
    inputs: Mapping[str, torch.Tensor],
    *,
    exact: bool,
) -> ReferenceValues:
    """Return the references of one set of inputs in host memory, with the bounds for a candidate.

    Args:
        kernel: kernel with the reference function.
        problem: the problem.
        tensors: the candidate's buffers.
        tolerances: tolerance of each output.
        inputs: the inputs, in their own dtypes.
        exact: whether the arithmetic on these inputs is exact, so that bounds are 0.

    Raises:
        KernelError: the reference or a bound raised, or returned the wrong names, shapes or dtypes.
    """
    results = {name: tensor for name, tensor in tensors.items() if tensor.role in ("output", "inout")}
    limits = {name: tolerances[name].for_tensor(tensor) for name, tensor in results.items()}
    references = References(
        kernel, problem, results, lambda _: inputs, (False,), torch.device("cpu"), random.Random(0),
        kept=False, sealed=False, limits=limits, exact=(exact,),
    )  # fmt: skip
    return references.of(0)


def _words(values: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor as 8-byte words, padded with zeros."""
    raw = values.reshape(-1).view(torch.uint8)
    return torch.nn.functional.pad(raw, (0, -len(raw) % _WORD)).view(torch.int64)


def _indexable(values: torch.Tensor) -> torch.Tensor:
    """Return a view that torch can index; it cannot index 8-bit floats."""
    return values.view(torch.uint8) if values.element_size() == 1 else values
