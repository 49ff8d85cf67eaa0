"""Completion of a draft of `evokern init` with a reference: its values decide roles, axes and numbers left open.

The default candidate runs on the simulator, and the reference on the same inputs. If the values differ, other readings
of what the draft guessed are tried: other outputs, other orders of axes, other values of unknown numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations, islice, permutations, product
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evokern.analysis.check.rounding import proposed_bound, underivable
from evokern.declaration.kernel import DTYPE_BYTES, SIGNIFICAND_BITS
from evokern.errors import KERNEL_CODE_EXCEPTIONS, KernelError, UsageError
from evokern.events import step
from evokern.files import write_text
from evokern.scaffold.declaration_text import kernel_py
from evokern.scaffold.draft import Draft, DraftReference
from evokern.scaffold.plan import DraftTensor, Plan, whole
from evokern.scaffold.probe import MOST_STATED, Prober, Run
from evokern.scaffold.reading import DRAFTED_FOR
from evokern.study.discovery import load_kernel
from evokern.tuning.arguments import TunedArgument
from evokern.tuning.arrays import Example
from evokern.tuning.draft_reading import GIVEN, Reading, in_words
from evokern.tuning.reference_check import check_reference
from evokern.tuning.stated_reference import StatedReference

MOST_VARIANTS = 200
"""Maximum number of readings that are compared with the reference on one run."""
MOST_NUMBERS = 12
"""Maximum number of runs with other values of unknown numbers."""
MOST_FLOPS = 2e10
"""Maximum number of operations of the reference at the example; it runs on the CPU in float64."""
_REMEDY = "correct the reference; if the draft is wrong, draft without --reference and correct kernel.py"
EXAMPLE_BLOCKS = 4
"""Number of blocks that run at the example."""


@dataclass(frozen=True)
class _Result:
    """Result of the reference for a reading at a problem."""

    reading: Reading
    error: str = ""
    """Reason why the call failed; empty if it did not."""
    differs: str = ""
    """The first element that differs; empty if none does, or without a run."""
    order: tuple[str, ...] = ()
    """Arguments of the reference by name."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Output → the shape that the reference returned."""

    @property
    def agrees(self) -> bool:
        return not self.error and not self.differs


def with_reference(made: Draft, stated: StatedReference, *, example: bool) -> Draft:
    """Return a draft with a reference, and with what the values of the reference decide.

    Args:
        made: the draft.
        stated: the reference.
        example: whether the study's problem is the user's example.

    Raises:
        UsageError: the reference raises, or does not return the outputs.
    """
    with step("comparing the reference with the default candidate"):
        made = _Completion(made, stated).draft(example=example)
    with step("deriving the error bounds"):
        return _with_bounds(made)


def _with_bounds(made: Draft) -> Draft:
    """Return a draft with a proposed bound for each output whose bound cannot be derived from the reference."""
    assert made.stated is not None, "the draft has a reference"
    outputs = [t.name for t in made.tensors if t.role in ("output", "inout") and t.dtype in SIGNIFICAND_BITS]
    undecided = replace(made.stated, bounds=dict.fromkeys(outputs, ("Elementwise(ulp=4)", "")))
    with TemporaryDirectory(prefix="evokern-init-") as scratch:
        folder = Path(scratch) / "draft"
        folder.mkdir()
        texts = {"kernel.cu": made.source, "kernel.py": kernel_py("draft", "", replace(made, stated=undecided))}
        for name, text in {**made.stated.files, **texts}.items():
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

    def __init__(self, made: Draft, stated: StatedReference) -> None:
        self.made, self.stated = made, stated
        self.prober = Prober(made.source, DRAFTED_FOR)
        self.what = f"--reference {stated.given}"
        self.kind: type | None = None
        """Type of the answer: a mapping, a sequence, or None for one tensor."""
        self.keys: set[Any] = set()
        """Keys of an answer that is a mapping."""

    def draft(self, *, example: bool) -> Draft:
        """Return the draft with the reference."""
        found, compared = self._found()
        found = self._with_shapes(found)
        flops = self._flops(found, self.made.study)
        differs, notes = found.differs, list(self.made.notes)
        if not compared:
            notes.append("kernel.py: the reference was not compared, because the default candidate did not run")
        elif not differs and example:
            differs, note = self._at_example(found, flops)
            notes += [note] if note else []
        reading = found.reading
        made = replace(self.made, plan=reading.plan, tensors=reading.tensors, notes=tuple(notes))
        return replace(made, stated=self._stated(found, differs, flops))

    def _found(self) -> tuple[_Result, bool]:
        """Return the reading whose values agree with the reference, else the draft's, and whether a run succeeded."""
        first: _Result | None = None
        for plan in self._plans():
            problem = self.made.small[0]
            run = Reading(plan, self.made.tensors).run(self.prober, problem)
            for tensors in islice(_variants(self.made.tensors), MOST_VARIANTS if run.ok else 1):
                found = self._result(Reading(plan, tensors), problem, run)
                if run.ok and found.agrees and self._agrees_again(found.reading):
                    return found, True
                if first is None or (first.error and not found.error):
                    first = found
            if not run.ok:
                break
        assert first is not None, self.what
        if first.error:
            raise UsageError(first.error)
        return first, run.ok

    def _plans(self) -> Iterator[Plan]:
        """Yield the draft's plan, and plans with other values of the numbers that the file does not state."""
        plan = self.made.plan
        yield plan
        unknown = [a.name for a in plan.arguments if not a.is_tensor and a.why and not whole(a.dtype)]
        if not unknown or self.made.compile_error:
            return
        # The last axis is the most probable: attention divides by the square root of the length of a row.
        axes = dict.fromkeys(axis for t in self.made.tensors for axis in reversed(t.shape) if axis != "1")
        names = [f"({axis})" if " " in axis else axis for axis in axes]
        values = [*(f"{name} ** -0.5" for name in names), "0.0", "1e-05", "1e-06", "1e-08", "1e-12"]
        values += [f"1 / {name}" for name in names]
        for chosen in islice(product(values, repeat=len(unknown)), MOST_NUMBERS):
            given = dict(zip(unknown, chosen, strict=True))
            yield replace(plan, arguments=tuple(
                replace(a, expression=given[a.name], why="") if a.name in given else a for a in plan.arguments
            ))  # fmt: skip

    def _agrees_again(self, reading: Reading) -> bool:
        """Return whether the values also agree at the second small problem."""
        return all(
            not (run := reading.run(self.prober, problem)).ok or self._result(reading, problem, run).agrees
            for problem in self.made.small[1:2]
        )

    def _result(self, reading: Reading, problem: Mapping[str, int], run: Run | None) -> _Result:
        """Call the reference on the inputs of a run, and compare the results if the run succeeded."""
        found = _Result(reading)
        try:
            found = replace(found, order=reading.order(self.stated.function, self.what))
            passing = reading.passing(found.order, problem)
            returned = passing.call(self._called, reading.inputs(problem))
        except UsageError as error:
            own = isinstance(error, KernelError)
            return replace(found, error=f"{self.what}: {error}" if own else str(error))
        except KERNEL_CODE_EXCEPTIONS as error:
            return replace(found, error=self._raised(found, problem, error))
        if self.keys and self.keys != set(passing.outputs):
            named = f"{', '.join(sorted(self.keys))}; name the outputs of the draft: {', '.join(passing.outputs)}"
            return replace(found, error=f"{self.what} returned a mapping with the keys {named}")
        shapes = {name: tuple(value.shape) for name, value in returned.items()}
        wanted = reading.shapes(problem)
        for name, shape in shapes.items():
            if prod(shape) != prod(wanted[name]):
                why = (
                    f"{self.what} returned shape {shape} for output {name}, but the draft's {name} has shape "
                    f"{wanted[name]} at {in_words(problem)}; {_REMEDY}"
                )
                return replace(found, error=why)
        differs = reading.difference(returned, run, problem) if run and run.ok else ""
        return replace(found, shapes=shapes, differs=differs)

    def _called(self, *given: Any) -> Any:
        """Call the reference; require torch tensors, and inputs that do not change."""
        import torch

        versions = [one._version for one in given if isinstance(one, torch.Tensor)]
        answer = self.stated.function(*given)
        self.kind = Mapping if isinstance(answer, Mapping) else tuple if isinstance(answer, (tuple, list)) else None
        self.keys = set(answer) if isinstance(answer, Mapping) else set()
        parts = list(answer.values() if self.kind is Mapping else answer if self.kind else [answer])
        for part in parts:
            if not isinstance(part, torch.Tensor):
                kind = "None" if part is None else type(part).__name__
                raise KernelError(f"it returned {kind}; return a torch tensor, or one for each output")
        if versions != [one._version for one in given if isinstance(one, torch.Tensor)]:
            raise KernelError("it changes an input in place; return a new tensor")
        return answer

    def _raised(self, found: _Result, problem: Mapping[str, int], error: BaseException) -> str:
        shapes = found.reading.shapes(problem)
        given = ", ".join(f"{name} {shapes[name]}" if name in shapes else name for name in found.order)
        text = (str(error).strip() or repr(error)).splitlines()[0]
        return f"{self.what} raised {type(error).__name__}: {text} (float64 inputs: {given}); {_REMEDY}"

    def _with_shapes(self, found: _Result) -> _Result:
        """Return a result whose outputs have the axes that the reference returns."""
        reading, problems = found.reading, self.made.small[:2]
        known = dict.fromkeys(
            [axis for t in reading.tensors for axis in t.shape] + [f"p.{one.name}" for one in reading.plan.fields]
        )
        returned = [found.shapes, *(self._result(reading, problem, None).shapes for problem in problems[1:])]
        tensors = []
        for tensor in reading.tensors:
            shapes = [one[tensor.name] for one in returned if tensor.name in one]
            if len(shapes) == len(problems) and shapes[0] != reading.shapes(problems[0])[tensor.name]:
                axes = [
                    next((axis for axis in [*known, str(sizes[0])]
                          if [reading.size(axis, problem) for problem in problems] == list(sizes)), "")
                    for sizes in zip(*shapes, strict=True)
                ]  # fmt: skip
                tensor = replace(tensor, shape=tuple(axes)) if all(axes) else tensor
            tensors.append(tensor)
        return replace(found, reading=replace(reading, tensors=tuple(tensors)))

    def _flops(self, found: _Result, problem: Mapping[str, int]) -> float:
        """Check the reference at a problem, and return the operations of its matrix products."""
        import torch

        reading = found.reading
        shapes = reading.shapes(problem)
        arguments = [
            TunedArgument(
                t.name, f"the draft's {t.name}", t.dtype, t.role, shapes[t.name], "torch",
                # Untouched pages of zeros use no memory.
                "int64" if whole(t.dtype) else "", example=Example(torch.zeros(shapes[t.name]), t.name),
            )
            for t in (*reading.given, *reading.outputs)
        ]  # fmt: skip
        return check_reference(self.stated.function, reading.passing(found.order, problem), arguments)

    def _at_example(self, found: _Result, flops: float) -> tuple[str, str]:
        """Return the first element that differs in some blocks of the example, and why it was not compared."""
        reading, problem = found.reading, self.made.study
        shapes, dtypes = reading.shapes(problem), {t.name: t.dtype for t in reading.tensors}
        skipped = "the reference was compared at small problems only, because the example is too large to simulate"
        if flops > MOST_FLOPS or any(prod(s) * DTYPE_BYTES[dtypes[name]] > MOST_STATED for name, s in shapes.items()):
            return "", skipped
        count = prod(reading.plan.extents(reading.plan.whole_grid, reading.plan.defaults, problem))
        blocks = sorted({*range(0, count, max(1, count // EXAMPLE_BLOCKS)), count - 1})
        run = reading.run(self.prober, problem, blocks)
        if run.ok:
            again = self._result(reading, problem, run)
            return again.error or again.differs, ""
        if run.finding is None:
            return "", skipped
        return f"a run of the default candidate at {in_words(problem)} ended early: {run.why}", ""

    def _stated(self, found: _Result, differs: str, flops: float) -> DraftReference:
        """Return the text of the reference."""
        reading = found.reading
        texts = {t.name: f't["{t.name}"]' + (".long()" if whole(t.dtype) else "") for t in reading.given}
        texts |= {a.name: a.expression or "" for a in reading.plan.arguments if not a.is_tensor}
        call = re.sub(r"\bt\['(\w+)'\]", r't["\1"]', self.stated.call([texts[name] for name in found.order]))
        outputs = [t.name for t in reading.outputs]
        listed = ", ".join(f'"{name}"' for name in outputs) + ("," if len(outputs) == 1 else "")
        line = f"return dict(zip(({listed}), {call}))"
        if self.kind is None:
            call = f"({call}).reshape(1)" if found.shapes[outputs[0]] == (1,) else call
            line = f'return {{"{outputs[0]}": {call}}}'
        elif self.kind is Mapping:
            line = f"return {call}"
        return DraftReference(
            given=self.stated.given, name=self.stated.name, imports=self.stated.imports, line=line,
            files=self.stated.files, flops=self._flops_text(found, flops),
            differs=f"correct the kernel, the buffers or this line: {differs}" if differs else "",
            rounded=any(whole(t.dtype) for t in reading.outputs),
        )  # fmt: skip

    def _flops_text(self, found: _Result, flops: float) -> str:
        """Return the operations of the reference's matrix products as a product of fields; empty if unknown."""
        if not flops:
            return ""
        problems = [*self.made.small[:2], self.made.study]
        counts = [*(self._flops(found, problem) for problem in problems[:-1]), flops]
        names = [one.name for one in found.reading.plan.fields if not one.choices]
        for powers in sorted(product(range(3), repeat=len(names)), key=sum):
            raised = list(zip(names, powers, strict=True))
            sizes = [prod(problem[name] ** power for name, power in raised) for problem in problems]
            factors = {count / size for count, size in zip(counts, sizes, strict=True)}
            if len(factors) == 1 and (factor := factors.pop()) == int(factor):
                return " * ".join([str(int(factor)), *(f"p.{name}" for name, power in raised for _ in range(power))])
        return ""


def _variants(tensors: tuple[DraftTensor, ...]) -> Iterator[tuple[DraftTensor, ...]]:
    """Yield the draft's buffers, then with other outputs, then with other orders of axes."""
    yield from _with_outputs(tensors)
    for chosen in _with_outputs(tensors):
        given = [t for t in chosen if t.role in GIVEN and len(set(t.shape)) > 1]
        for shapes in islice(product(*(permutations(t.shape) for t in given)), 1, None):
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
