"""Completion of a draft of `evokern init` with a reference: its values decide roles, axes and numbers left open.

The default candidate runs on the simulator, and the reference on the same inputs. If the values differ, other readings
of what the draft guessed are tried: other outputs, other orders of axes, other values of unknown numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice, permutations, product
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from evokern.analysis.check.bound_advice import proposed_bound, underivable
from evokern.declaration.as_data.declared import Passing
from evokern.declaration.kernel import DTYPE_BYTES, SIGNIFICAND_BITS
from evokern.errors import KERNEL_CODE_EXCEPTIONS, KernelError, UsageError
from evokern.files import write_text
from evokern.scaffold.declaration_text import kernel_py
from evokern.scaffold.draft import Draft, DraftReference
from evokern.scaffold.infer import INDEX_LIMIT, size_of
from evokern.scaffold.plan import DraftTensor, Plan, whole
from evokern.scaffold.probe import CONSTANT, MOST_STATED, Prober, Run, contents_of
from evokern.scaffold.problems import LIMIT
from evokern.scaffold.reading import DRAFTED_FOR
from evokern.study.discovery import load_kernel
from evokern.tuning.arguments import TunedArgument
from evokern.tuning.arrays import Example
from evokern.tuning.reference import order_of
from evokern.tuning.reference_check import check_reference
from evokern.tuning.stated_reference import StatedReference, takes_by_name

if TYPE_CHECKING:
    import torch

MOST_VARIANTS = 200
"""Maximum number of readings that are compared with the reference on one run."""
MOST_NUMBERS = 12
"""Maximum number of runs with other values of unknown numbers."""
MOST_FLOPS = 2e10
"""Maximum number of operations of the reference at the example; it runs on the CPU in float64."""
EXAMPLE_BLOCKS = 4
"""Number of blocks that run at the example."""
_FRACTION = {"f64": 1e-9, "f32": 1e-3, "f16": 1e-2, "bf16": 5e-2}
"""Difference that counts as equal here, relative to an element and the mean square; `check` applies the bound."""


@dataclass(frozen=True)
class _Reading:
    """One reading of the draft: buffers with roles and shapes, and what the reference returned for it."""

    plan: Plan
    tensors: tuple[DraftTensor, ...]
    error: str = ""
    """Why the reference cannot be called so; empty if it can."""
    differs: str = ""
    """The first element that differs; empty if the values are equal."""
    order: tuple[str, ...] = ()
    """Arguments of the reference by name."""
    shapes: Mapping[str, tuple[int, ...]] | None = None
    """Output → the shape that the reference returned."""

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(t.name for t in self.tensors if t.role in ("output", "inout"))


def with_reference(made: Draft, stated: StatedReference, *, example: bool) -> Draft:
    """Return a draft with a reference, and with what the values of the reference decide.

    Args:
        made: the draft.
        stated: the reference.
        example: whether the study's problem is the user's example.

    Raises:
        UsageError: the reference raises, or does not return the outputs.
    """
    return _with_bounds(_Completion(made, stated, example).draft())


def _with_bounds(made: Draft) -> Draft:
    """Return a draft with a proposed bound for each output whose bound cannot be derived from the reference."""
    assert made.stated is not None, "the draft has a reference"
    outputs = [t.name for t in made.tensors if t.role in ("output", "inout") and t.dtype in SIGNIFICAND_BITS]
    undecided = dict.fromkeys(outputs, ("Elementwise(ulp=4)", ""))
    with TemporaryDirectory(prefix="evokern-init-") as scratch:
        folder = Path(scratch) / "draft"
        folder.mkdir()
        files = {**made.stated.files, "kernel.cu": made.source,
                 "kernel.py": kernel_py("draft", "", replace(made, stated=replace(made.stated, bounds=undecided)))}  # fmt: skip
        for name, text in files.items():
            write_text(folder / name, text)
        kernel = load_kernel(folder)
        problems = [kernel.problem(problem) for problem in made.small]
        bounds = {
            name: (proposed_bound(kernel, name, problems), reason)
            for name in outputs
            if (reason := underivable(kernel, name, problems)) is not None
        }
    return replace(made, stated=replace(made.stated, bounds=bounds))


class _Completion:
    """Comparison of one draft with a reference."""

    def __init__(self, made: Draft, stated: StatedReference, example: bool) -> None:
        self.made, self.stated, self.example = made, stated, example
        self.prober = Prober(made.source, DRAFTED_FOR)
        self.text = f"--reference {stated.given}"
        self.kind: type | None = None
        """Type of the answer: a mapping, a sequence, or one tensor."""

    def draft(self) -> Draft:
        """Return the completed draft."""
        found, compared = self._reading()
        found, flops = self._at_study(found)
        made = replace(self.made, plan=found.plan, tensors=found.tensors)
        differs = found.differs
        if not differs and compared and self.example and flops <= MOST_FLOPS:
            differs = self._at_example(found)
        elif not compared:
            differs = "the default candidate did not run, so its values were not compared with the reference"
        return replace(made, stated=self._stated(found, differs, flops))

    def _reading(self) -> tuple[_Reading, bool]:
        """Return the reading whose values equal those of the reference, or the draft's own."""
        first: _Reading | None = None
        compared = False
        for plan in self._plans():
            problem = self.made.small[0]
            run = self._run(plan, self.made.tensors, problem)
            for tensors in islice(_readings(self.made.tensors), MOST_VARIANTS):
                found = self._evaluated(plan, tensors, problem, run)
                if run.ok and not found.error and not found.differs and self._holds_again(found):
                    return found, True
                if first is None or (first.error and not found.error):
                    first = found
                if not run.ok:
                    break
            compared |= run.ok
            if not run.ok:
                break
        assert first is not None, self.text
        if first.error:
            raise UsageError(first.error)
        return first, compared

    def _plans(self) -> Iterator[Plan]:
        """Yield the draft's plan, and plans with other values of the numbers that the file does not state."""
        plan = self.made.plan
        yield plan
        open_ = [a for a in plan.arguments if not a.is_tensor and a.why and not whole(a.dtype)]
        if not open_ or self.made.compile_error:
            return
        # The last axis is the most probable: attention divides by the square root of the length of a row.
        axes = dict.fromkeys(axis for t in self.made.tensors for axis in reversed(t.shape) if axis != "1")
        values = [f"({axis}) ** -0.5" if " " in axis else f"{axis} ** -0.5" for axis in axes]
        values += ["0.0", "1e-05", "1e-06", "1e-08", "1e-12", *(f"1 / ({a})" if " " in a else f"1 / {a}" for a in axes)]
        for chosen in islice(product(values, repeat=len(open_)), MOST_NUMBERS):
            given = {one.name: text for one, text in zip(open_, chosen, strict=True)}
            yield replace(plan, arguments=tuple(
                replace(a, expression=given[a.name], why="") if a.name in given else a for a in plan.arguments
            ))  # fmt: skip

    def _holds_again(self, found: _Reading) -> bool:
        """Return whether the values also agree at the second small problem."""
        for problem in self.made.small[1:2]:
            run = self._run(found.plan, found.tensors, problem)
            again = self._evaluated(found.plan, found.tensors, problem, run)
            if run.ok and (again.error or again.differs):
                return False
        return True

    def _run(
        self,
        plan: Plan,
        tensors: Sequence[DraftTensor],
        problem: Mapping[str, int],
        blocks: Sequence[int] | None = None,
    ) -> Run:
        sizes = {tensor.name: size_of(tensor, plan, problem, LIMIT) for tensor in tensors}
        return self.prober.run(plan, problem, limit=LIMIT, exact=sizes, keep=True, blocks=blocks)

    def _evaluated(
        self, plan: Plan, tensors: tuple[DraftTensor, ...], problem: Mapping[str, int], run: Run
    ) -> _Reading:
        """Call the reference on the inputs of a run, and compare the results."""
        found = _Reading(plan, tensors)
        try:
            order = self._order(plan, tensors)
            found = replace(found, order=order)
            passing = self._passing(found, problem)
            returned = passing.call(self._called, self._inputs(found, problem))
        except KernelError as error:
            return replace(found, error=f"{self.text}: {error}")
        except UsageError as error:
            return replace(found, error=str(error))
        except KERNEL_CODE_EXCEPTIONS as error:
            return replace(found, error=self._raised(found, problem, error))
        for name, value in returned.items():
            size = size_of(next(t for t in tensors if t.name == name), plan, problem, LIMIT)
            if value.numel() != size:
                shape = _sizes(found, problem)[name]
                return replace(found, error=f"{self.text} returned shape {tuple(value.shape)} for output {name}, but the "
                               f"draft's {name} has shape {shape} at {_words(problem)}; return one value for each element, "
                               "or correct the draft without --reference")  # fmt: skip
        found = replace(found, shapes={name: tuple(value.shape) for name, value in returned.items()})
        return replace(found, differs=self._difference(found, returned, run, problem)) if run.ok else found

    def _called(self, *given: Any) -> Any:
        """Call the reference, and require torch tensors."""
        import torch

        answer = self.stated.function(*given)
        self.kind = Mapping if isinstance(answer, Mapping) else tuple if isinstance(answer, (tuple, list)) else None
        parts = list(answer.values() if self.kind is Mapping else answer if self.kind else [answer])
        for part in parts:
            if not isinstance(part, torch.Tensor):
                raise KernelError(f"it returned {_kind(part)}; return a torch tensor, or one for each output")
        return answer

    def _raised(self, found: _Reading, problem: Mapping[str, int], error: BaseException) -> str:
        shapes = _sizes(found, problem)
        given = ", ".join(f"{n} {shapes[n]}" if n in shapes else n for n in found.order)
        return (
            f"{self.text} raised {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else error!r} "
            f"on float64 tensors ({given}); correct it, or draft without --reference"
        )

    def _order(self, plan: Plan, tensors: Sequence[DraftTensor]) -> tuple[str, ...]:
        """Return the names of the reference's arguments."""
        roles = {tensor.name: tensor.role for tensor in tensors}
        every = [a.name for a in (*plan.constants, *plan.arguments)]
        inputs = tuple(n for n in every if roles.get(n) in ("input", "inout", "constant"))
        numbers = {a.name: a.name for a in plan.arguments if not a.is_tensor}
        passed = [name for name in every if name in inputs or name in numbers]
        try:
            return tuple(map(str, order_of(self.stated.function, inputs, numbers, passed)))  # type: ignore[arg-type]
        except UsageError:
            if (named := takes_by_name(self.stated.function, passed)) is not None:
                return tuple(named)
        also = f"; numbers: {', '.join(numbers)}" if numbers else ""
        raise UsageError(
            f"{self.text} must take the kernel's inputs in order, ({', '.join(inputs)}), or parameters with these names "
            f"of the kernel's arguments{also}"
        )

    def _passing(self, found: _Reading, problem: Mapping[str, int]) -> Passing:
        sizes = _sizes(found, problem)
        numbers = {a.name: found.plan.number(a, found.plan.defaults, problem)
                   for a in found.plan.arguments if not a.is_tensor}  # fmt: skip
        given = tuple(t for t in found.tensors if t.role in ("input", "inout", "constant"))
        return Passing(
            inputs=tuple(t.name for t in given),
            outputs=found.outputs,
            order=tuple(numbers.get(name, name) for name in found.order),
            dtypes={t.name: "int64" for t in given if whole(t.dtype)},
            framework="torch",
            shapes={name: sizes[name] for name in found.outputs},
        )

    def _inputs(self, found: _Reading, problem: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """Return the contents of the inputs in a run, as the gate passes them to a reference."""
        shapes = _sizes(found, problem)
        inputs = {}
        arguments = [*enumerate(found.plan.arguments), *((CONSTANT, one) for one in found.plan.constants)]
        roles = {tensor.name: tensor.role for tensor in found.tensors}
        for position, argument in arguments:
            if argument.is_tensor and roles.get(argument.name) in ("input", "inout", "constant"):
                shape = shapes[argument.name]
                data = contents_of(argument, prod(shape), LIMIT, position, MOST_STATED)
                inputs[argument.name] = _tensor(data, argument.dtype).reshape(shape)
        return inputs

    def _difference(
        self, found: _Reading, returned: Mapping[str, torch.Tensor], run: Run, problem: Mapping[str, int]
    ) -> str:
        """Return the first element of an output that differs, in words; empty if all written elements agree."""
        import torch

        assert run.contents is not None, "the contents were requested"
        shapes = _sizes(found, problem)
        for tensor in found.tensors:
            if tensor.name not in returned:
                continue
            expected = returned[tensor.name].reshape(-1).to(torch.float64)
            actual = _tensor(_elements(run.contents[tensor.name], tensor.dtype), tensor.dtype)[: expected.numel()]
            written = torch.from_numpy(run.written[tensor.name].copy())[: expected.numel()]
            wrong = ~_close(actual, expected, tensor.dtype) & written
            if wrong.any():
                at = int(wrong.nonzero()[0])
                place = ", ".join(map(str, _unravel(at, shapes[tensor.name])))
                return (
                    f"{tensor.name}[{place}] is {float(actual[at]):.6g} in a run of the default candidate at "
                    f"{_words(problem)}, and {float(expected[at]):.6g} in the reference"
                )
        return ""

    def _at_study(self, found: _Reading) -> tuple[_Reading, float]:
        """Check the reference at the study's problem, give the outputs its shapes, and return its operations."""
        import torch

        found = self._with_shapes(found)
        problem = self.made.study
        sizes = _sizes(found, problem)
        arguments = []
        for tensor in found.tensors:
            if tensor.role == "workspace":
                continue
            kept = "int64" if whole(tensor.dtype) else ""
            zeros = Example(torch.zeros(sizes[tensor.name]), tensor.name)  # of which untouched pages use no memory
            arguments.append(TunedArgument(tensor.name, f"the draft's {tensor.name}", tensor.dtype, tensor.role,
                                           sizes[tensor.name], "torch", kept, example=zeros))  # fmt: skip
        return found, check_reference(self.stated.function, self._passing(found, problem), arguments)

    def _with_shapes(self, found: _Reading) -> _Reading:
        """Return a reading whose outputs have the axes that the reference returns."""
        if found.shapes is None:
            return found
        tensors = []
        known = dict.fromkeys(
            [axis for t in found.tensors for axis in t.shape] + [f"p.{field.name}" for field in found.plan.fields]
        )
        problems = self.made.small[:2]
        for tensor in found.tensors:
            wanted = [found.shapes[tensor.name]] if tensor.name in found.shapes else []
            if wanted and wanted[0] != _sizes(found, problems[0])[tensor.name]:
                for problem in problems[1:]:
                    again = self._evaluated(found.plan, found.tensors, problem, Run({}, "no run"))
                    wanted += [again.shapes[tensor.name]] if again.shapes else []
                axes = [
                    next((a for a in [*known, str(sizes[0])] if [_at(found.plan, a, p) for p in problems] == list(sizes)),
                         "")
                    for sizes in zip(*wanted, strict=True)
                ]  # fmt: skip
                if all(axes) and len(wanted) == len(problems):
                    tensor = replace(tensor, shape=tuple(axes))
            tensors.append(tensor)
        return replace(found, tensors=tuple(tensors))

    def _at_example(self, found: _Reading) -> str:
        """Return the first element that differs in some blocks of the example, in words; empty if none does."""
        problem = self.made.study
        if any(prod(shape) * DTYPE_BYTES[dtype] > MOST_STATED for shape, dtype in _buffers(found, problem)):
            return ""
        count = prod(found.plan.extents(found.plan.whole_grid, found.plan.defaults, problem))
        step = max(1, count // EXAMPLE_BLOCKS)
        blocks = sorted({*range(0, count, step), count - 1})
        run = self._run(found.plan, found.tensors, problem, blocks)
        if not run.ok and run.finding is None:
            return ""  # too many instructions
        if not run.ok:
            return f"a run of the default candidate at {_words(problem)} ended early: {run.why}"
        again = self._evaluated(found.plan, found.tensors, problem, run)
        return again.error or again.differs

    def _stated(self, found: _Reading, differs: str, flops: float) -> DraftReference:
        """Return the text of the reference."""
        texts = {t.name: f't["{t.name}"]' + (".long()" if whole(t.dtype) else "") for t in found.tensors}
        texts |= {a.name: a.expression or "" for a in found.plan.arguments if not a.is_tensor}
        call = re.sub(r"\bt\['(\w+)'\]", r't["\1"]', self.stated.call([texts[name] for name in found.order]))
        outputs = found.outputs
        listed = ", ".join(f'"{name}"' for name in outputs) + ("," if len(outputs) == 1 else "")
        if self.kind is None:
            scalar = found.shapes is not None and found.shapes[outputs[0]] == (1,)
            line = f'return {{"{outputs[0]}": {f"({call}).reshape(1)" if scalar else call}}}'
        else:
            line = f"return dict(zip(({listed}), {call}{'.values()' if self.kind is Mapping else ''}))"
        return DraftReference(
            given=self.stated.given, name=self.stated.name, imports=self.stated.imports, line=line,
            files=self.stated.files, differs=differs, flops=self._flops(found, flops),
            rounded=any(whole(t.dtype) for t in found.tensors if t.name in outputs),
        )  # fmt: skip

    def _flops(self, found: _Reading, flops: float) -> str:
        """Return the operations of the reference's matrix products as a product of fields; empty if unknown."""
        if not flops:
            return ""
        problems = [*self.made.small[:2], self.made.study]
        counts = [flops]
        for problem in problems[:-1]:
            small = replace(self.made, study=problem)
            counts.insert(-1, _Completion(small, self.stated, False)._at_study(found)[1])
        names = [f"p.{field.name}" for field in found.plan.fields if not field.choices]
        for powers in sorted(product(range(3), repeat=len(names)), key=sum):
            sizes = [prod(int(p[n[2:]]) ** e for n, e in zip(names, powers, strict=True)) for p in problems]
            factors = {count / size for count, size in zip(counts, sizes, strict=True)}
            if len(factors) == 1 and (factor := factors.pop()) == int(factor):
                parts = [n for n, e in zip(names, powers, strict=True) for _ in range(e)]
                return " * ".join([str(int(factor)), *parts])
        return ""


def _readings(tensors: tuple[DraftTensor, ...]) -> Iterator[tuple[DraftTensor, ...]]:
    """Yield the draft's buffers, then with other outputs, then with other orders of axes."""
    for chosen in _with_outputs(tensors):
        yield chosen
    for chosen in _with_outputs(tensors):
        given = [t for t in chosen if t.role in ("input", "inout", "constant") and len(set(t.shape)) > 1]
        orders = [[*permutations(t.shape)] for t in given]
        for shapes in islice(product(*orders), 1, None):
            new = {t.name: shape for t, shape in zip(given, shapes, strict=True)}
            yield tuple(
                replace(t, shape=new[t.name], why="") if new.get(t.name, t.shape) != t.shape else t for t in chosen
            )


def _with_outputs(tensors: tuple[DraftTensor, ...]) -> Iterator[tuple[DraftTensor, ...]]:
    """Yield the buffers with all written ones as outputs, then with fewer: the others are workspaces."""
    written = [t.name for t in tensors if t.role == "output"]
    yield tensors
    for size in range(len(written) - 1, 0, -1):
        for kept in combinations(written, size):
            yield tuple(
                replace(t, role="workspace", why="") if t.name in written and t.name not in kept else t for t in tensors
            )


def _sizes(found: _Reading, problem: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each buffer at a problem."""
    return {t.name: tuple(_at(found.plan, axis, problem) for axis in t.shape) for t in found.tensors}


def _at(plan: Plan, axis: str, problem: Mapping[str, int]) -> int:
    return plan.value(axis.replace(INDEX_LIMIT, str(LIMIT)), plan.defaults, problem)


def _buffers(found: _Reading, problem: Mapping[str, int]) -> Iterator[tuple[tuple[int, ...], str]]:
    shapes = _sizes(found, problem)
    yield from ((shapes[t.name], t.dtype) for t in found.tensors)


def _kind(part: object) -> str:
    return "None" if part is None else f"a {type(part).__name__}"


def _words(problem: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in problem.items())


def _elements(contents: bytes, dtype: str) -> Any:
    """Return contents as an array of the type that `contents_of` uses."""
    import numpy as np

    kinds = {"bf16": "u2", "f16": "f2", "f32": "f4", "f64": "f8"}
    default = f"{dtype[0]}{DTYPE_BYTES[dtype]}" if whole(dtype) else "u1"
    return np.frombuffer(contents, kinds.get(dtype, default))


def _tensor(data: Any, dtype: str) -> torch.Tensor:
    """Return an array as a float64 tensor."""
    import numpy as np
    import torch

    from evokern.gate.data import torch_dtype

    if whole(dtype) or dtype in ("f16", "f32", "f64"):
        return torch.from_numpy(data.astype(np.float64))
    return torch.from_numpy(data.copy().view(np.int16 if DTYPE_BYTES[dtype] == 2 else np.uint8)).view(
        torch_dtype(dtype)
    ).to(torch.float64)  # fmt: skip


def _close(actual: torch.Tensor, expected: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return which elements are equal but for rounding."""
    if dtype not in SIGNIFICAND_BITS:
        return actual == expected
    fraction = _FRACTION.get(dtype, 0.2)
    finite = expected[expected.isfinite()]
    scale = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    near = (actual - expected).abs() <= fraction * (expected.abs() + scale)
    return near | (actual == expected) | (actual.isnan() & expected.isnan())


def _unravel(at: int, shape: Sequence[int]) -> list[int]:
    place: list[int] = []
    for extent in reversed(shape):
        place.insert(0, at % extent)
        at //= extent
    return place
