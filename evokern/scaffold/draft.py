"""A draft: what the file says, what runs on the simulator show, and what stays a guess."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from evokern.cuda_source import CudaSource
from evokern.scaffold.cpu_function import cpu_function
from evokern.scaffold.infer import LIMITS, Evidence, evidence, settle, size_of, tensors_of, with_read_constants
from evokern.scaffold.plan import DraftTensor, Plan
from evokern.scaffold.probe import Prober
from evokern.scaffold.problems import small_problems, study_problem, with_multiples
from evokern.scaffold.reading import CHIP, KernelReading, read_kernel, without_fields


@dataclass(frozen=True)
class Draft:
    """Everything that the written files hold."""

    function: str
    """The kernel's name in the source."""
    plan: Plan
    """Genes, fields, arguments, launch."""
    source: str
    """Text of `kernel.cu`."""
    tensors: tuple[DraftTensor, ...]
    """The buffers."""
    small: tuple[dict[str, int], ...]
    """Small problems."""
    study: Mapping[str, int]
    """The study's problem."""
    launch_from: str
    """Where grid and block come from, in a sentence."""
    launch_guess: str = ""
    """Why grid and block are guesses; empty where the file says them."""
    reference: str = ""
    """The file's function that computes the same on the CPU."""
    expected: str = ""
    """Python text of what a tuner script takes for right."""
    notes: tuple[str, ...] = ()
    """What else only the user can know, one sentence each."""
    finish: tuple[str, str] | None = None
    """Workspace that a second kernel adds up, and the output that it adds to."""


def draft(source: CudaSource, entry: str | None) -> Draft:
    """Draft one kernel of a CUDA file.

    Raises:
        SourceError: the kernel is not there, is ambiguous, or takes what evokern cannot pass.
    """
    reading = read_kernel(source, entry)
    made = from_reading(reading)
    notes = list(made.notes)
    if source.constants:
        known = [c.name for c in source.constants if c.name in reading.source]
        notes += [f"kernel.cu: {', '.join(known)} are constants that could become genes"] if known else []
    notes += [f"kernel.cu: include {include.name} was not found" for include in source.missing_includes]
    return replace(made, reference=cpu_function(source, reading.function.name), notes=tuple(notes))


def from_reading(reading: KernelReading, *, known_launch: bool = False) -> Draft:
    """Complete what was read with what runs show.

    Args:
        reading: what was read.
        known_launch: whether grid and block are certain, so that no others are tried.
    """
    prober = Prober(reading.source, CHIP)
    plan, found = settle(prober, reading.plan, known_launch=known_launch)
    if found is None:
        return _unrun(reading, prober)
    plan = with_read_constants(plan, found)
    plan, found = _without_idle_fields(prober, reading, plan, found)
    tensors = tensors_of(plan, found, reading.source)
    plan = with_multiples(prober, plan, found, tensors)
    launch_guess = ""
    if plan.grid != reading.plan.grid or not reading.launch_line:
        launch_guess = "the smallest grid tried that writes every element"
        if reading.launch_line and reading.plan.grid:
            launch_guess += f"; the file's launch ({reading.launch_line}) leaves some unwritten"
        else:
            launch_guess += "; the file holds no launch that could be read"
    notes = []
    for tensor in tensors:
        share = _share(plan, found, tensor)
        if tensor.name in found.covered and share < 1 and reading.launch_line and not launch_guess and not known_launch:
            notes.append(f"kernel.py: the launch on {reading.launch_line} writes {100 * share:.0f} % of {tensor.name} "
                         f"({', '.join(tensor.shape)}): is its grid right?")  # fmt: skip
    return Draft(
        function=reading.function.name,
        plan=plan,
        source=reading.source,
        tensors=tensors,
        small=small_problems(plan, tensors, prober),
        study=study_problem(plan, tensors, reading.literals),
        launch_from=reading.launch_line,
        launch_guess=launch_guess,
        notes=tuple(notes),
    )


def _share(plan: Plan, found: Evidence, tensor: DraftTensor) -> float:
    """Share of a buffer's elements that the runs wrote."""
    return min(
        run.touches[tensor.name].distinct / max(1, size_of(tensor, plan, problem, limit))
        for run, problem, limit in zip(found.runs, found.problems, LIMITS, strict=False)
    )


def _without_idle_fields(prober: Prober, reading: KernelReading, plan: Plan, found: Evidence) -> tuple[Plan, Evidence]:
    """Take numbers that size neither a buffer nor the grid out of the fields."""
    axes = " ".join(axis for fit in found.fits.values() if fit for axis in fit.axes)
    text = " ".join([axes, *plan.grid, *plan.block, plan.shared, *plan.macros.values()])
    used = {f.name for f in plan.fields if re.search(rf"p\.{re.escape(f.name)}\b", text)}
    idle = {f.name for f in plan.fields} - used
    if not idle or not used:
        return plan, found
    smaller = without_fields(plan, idle, reading.literals)
    again = evidence(prober, smaller, found.level)
    return (smaller, replace(again, indexed=found.indexed)) if again.serves else (plan, found)


def _unrun(reading: KernelReading, prober: Prober) -> Draft:
    """A draft without runs: roles by const, one element per thread."""
    plan = reading.plan
    if not plan.grid:
        plan = replace(plan, grid=(f"ceil_div(p.{plan.fields[0].name}, {plan.block[0]})",))
    problem = {f.name: 64 for f in plan.fields}
    why = prober.run(plan, problem).why or "no run says what the kernel writes"
    const = {p.name for p in reading.function.parameters if p.const}
    shape = tuple(f"p.{f.name}" for f in plan.fields[:2])
    tensors = tuple(
        DraftTensor(a.name, a.dtype, shape, "input" if a.name in const else "output", "nothing could be run: " + why)
        for a in plan.arguments
        if a.is_tensor
    )
    if not any(t.role == "output" for t in tensors):
        tensors = (*tensors[:-1], replace(tensors[-1], role="output"))
    return Draft(
        function=reading.function.name,
        plan=plan,
        source=reading.source,
        tensors=tensors,
        small=small_problems(plan, tensors, None),
        study=study_problem(plan, tensors, reading.literals),
        launch_from=reading.launch_line,
        launch_guess="" if reading.launch_line else "nothing could be run",
        notes=(f"kernel.py: roles, shapes and launch are guesses: the simulator could not run the kernel ({why})",),
    )
