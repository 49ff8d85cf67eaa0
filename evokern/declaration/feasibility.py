"""Candidate + problem + chip → the violated constraint with what was needed and what there is, or nothing.

Everything here runs before any compile, so that a candidate that cannot work costs microseconds. The order is the
order in which messages help most: compute capability, the kernel's own constraints, then the launch against the chip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeVar

from evokern.declaration.constraint import LEFT_OVER, divides
from evokern.declaration.foreign import ForeignCandidate
from evokern.declaration.genes import Config, Gene, Value
from evokern.declaration.kernel import Kernel, Launch, Need, Problem
from evokern.declaration.space import Space
from evokern.errors import RAISED, KernelError, SpaceError, nearest
from evokern.hardware.profiles import CLUSTERS_FROM, MOST_CLUSTER_BLOCKS, Profile

Answer = TypeVar("Answer")

MIN_REGISTERS = 24
"""Fewest registers of a thread that the ABI allows; ptxas raises any lower cap to it ("lower bound of 24")."""
REMEMBERED = 4096
"""Most configurations whose feasibility a space remembers, a kilobyte each: more than one trial asks about twice."""


@dataclass(frozen=True)
class Violation:
    """The constraint that turned a candidate away."""

    constraint: str
    """Its name."""
    needed: float
    """What the candidate needs."""
    available: float
    """What there is."""
    reason: str
    """Why that cannot work, in a sentence."""
    unit: str = ""
    """Unit of `needed` and `available`."""

    def __str__(self) -> str:
        if (self.needed, self.available, self.unit) == (1, 0, ""):  # a condition: its reason says all there is to say
            return f"{self.constraint}: {self.reason}"
        unit = f" {self.unit}" if self.unit else ""
        if self.unit.endswith(LEFT_OVER):
            return f"{self.constraint}: {self.needed:g}{unit}, must be 0 ({self.reason})"
        if self.available < 0:
            return f"{self.constraint}: {self.needed - self.available:g}{unit} too many ({self.reason})"
        return f"{self.constraint}: needs {self.needed:g}{unit}, has {self.available:g}{unit} ({self.reason})"

    @property
    def excess(self) -> float:
        """How far it is violated, relative to what there is: above 0, for graded constraints."""
        return (self.needed - self.available) / max(abs(self.available), 1.0)

    @property
    def evidence(self) -> dict[str, Any]:
        """What a record keeps of it, as JSON values."""
        return {
            "constraint": self.constraint,
            "needed": self.needed,
            "available": self.available,
            "reason": self.reason,
        }


def check(
    kernel: Kernel, config: Config, problems: Sequence[Problem], chip: Profile, *, essential: bool = False
) -> Violation | None:
    """Return the first constraint that the candidate violates on any of the problems, or None.

    Args:
        kernel: the kernel whose candidate it is.
        config: a canonical configuration of its space.
        problems: problems that must all work.
        chip: limits to keep.
        essential: leave out constraints that only keep wasteful candidates away.

    Raises:
        KernelError: a function that the kernel declares raised.
    """
    violation = _check_compute_capability(kernel, config, chip)
    if violation:
        return violation
    for problem in problems:
        for constraint in kernel.constraints:
            if essential and constraint.wasteful:
                continue
            need = constraint.evaluate(config, problem, chip)
            if not need.holds:
                return Violation(constraint.name, need.needed, need.available, constraint.reason, need.unit)
        for name, need, reason in _chip_needs(kernel, config, problem, chip):
            if not need.holds:
                return Violation(name, need.needed, need.available, reason, need.unit)
    return None


def feasible_space(
    kernel: Kernel,
    problems: Sequence[Problem],
    chip: Profile,
    genes: Mapping[str, Sequence[Value]] | None = None,
) -> Space:
    """Return the kernel's space with feasibility bound to problems and a chip, and genes narrowed.

    Args:
        kernel: the kernel.
        problems: problems that a candidate must all run.
        chip: limits to keep.
        genes: gene → the values it may have (a study's `[genes]` table).

    Raises:
        SpaceError: a narrowed gene or value does not exist.
    """
    space = narrowed(kernel.space, genes or {})
    late = {gene.name: values for gene in space.genes if (values := gene.late_on(chip.name))}
    return replace(space, feasible=_Feasible(kernel, problems, chip), late=late)


class _Values(dict[str, Value]):
    """A configuration for the kernel's functions, quicker to read than `Config`: samplers ask thousands of times."""

    __slots__ = ()
    __getattr__ = dict.__getitem__


class _Feasible:
    """Whether `check` finds nothing: the same answer, remembered, the constraints that turn most away asked first."""

    def __init__(self, kernel: Kernel, problems: Sequence[Problem], chip: Profile) -> None:
        self._kernel, self._problems, self._chip = kernel, tuple(problems), chip
        self._memory: dict[Config, bool] = {}
        self._demanding = any(gene.min_compute_capability for gene in kernel.genes)
        self._conditions: list[list[Any]] = [
            [0, constraint.holds, (problem, chip)[: constraint.arity - 1]]
            for problem in problems
            for constraint in kernel.constraints
        ]
        self._turned_away = 0

    def __call__(self, config: Config) -> bool:
        known = self._memory.get(config)
        if known is None:
            if len(self._memory) >= REMEMBERED:
                self._memory.clear()
            known = self._memory[config] = self._holds(config)
        return known

    def _holds(self, config: Config) -> bool:
        try:
            if self._violates(_Values(config.__getstate__())):
                return False
        except RAISED:  # whatever a kernel's function raises: `check` says it with the constraint's name
            return check(self._kernel, config, self._problems, self._chip) is None
        if self._demanding and _check_compute_capability(self._kernel, config, self._chip):
            return False
        needs = (need for p in self._problems for _, need, _ in _chip_needs(self._kernel, config, p, self._chip))
        return all(need.holds for need in needs)

    def _violates(self, values: _Values) -> bool:
        for condition in self._conditions:
            answer = condition[1](values, *condition[2])
            if not (answer.holds if isinstance(answer, Need) else answer):
                if answer is None:
                    raise KernelError("a constraint returned nothing")  # `check` says which
                condition[0] += 1
                self._turned_away += 1
                if self._turned_away % 512 == 0:
                    self._conditions.sort(key=lambda entry: -entry[0])
                return True
        return False


def narrowed(space: Space, genes: Mapping[str, Sequence[Value]]) -> Space:
    """Return a space whose genes may only have the values listed; a lost default becomes the first value left.

    Starting points that ask for a value which is not listed are left out.
    """
    wanted = {space.gene(name).name: tuple(space.gene(name).parse(str(v)) for v in vs) for name, vs in genes.items()}
    kept: list[Gene] = []
    for gene in space.genes:
        values = wanted.get(gene.name, gene.values)
        default = gene.default if gene.default in values else values[0]
        capability = {v: cc for v, cc in gene.min_compute_capability.items() if v in values}
        when = {name: tuple(v for v in allowed if v in _values(kept, name)) for name, allowed in gene.when.items()}
        study, precision = (tuple(v for v in marked if v in values) for marked in (gene.for_study, gene.less_precise))
        chips = {value: names for value, names in gene.for_chips.items() if value in values}
        gene = replace(
            gene,
            values=values,
            default=default,
            when=when,
            for_study=study,
            for_chips=chips,
            less_precise=precision,
            min_compute_capability=capability,
        )
        kept.append(gene)
    left = [point for point in space.starting_points if all(v in _values(kept, name) for name, v in point.items())]
    return replace(space, genes=tuple(kept), starting_points=tuple(left))


def _values(genes: Sequence[Gene], name: str) -> tuple[Value, ...]:
    for gene in genes:
        if gene.name == name:
            return gene.values
    raise SpaceError(f"there is no gene {name!r}: {nearest(name, [gene.name for gene in genes])}")


def launches_of(kernel: Kernel, config: Config, problem: Problem) -> tuple[Launch, ...]:
    """Return the kernel's launches, of a foreign candidate with its own geometry.

    Raises:
        KernelError: the kernel's `launches` raised, or declared none.
        UsageError: a foreign candidate's geometry fits none of several launches.
    """
    launches = _answered(kernel, "launches", kernel.launches, config, problem)
    if not launches:
        raise KernelError(f"kernel {kernel.name}: launches returned none for {dict(config)} at {problem}")
    return config.launched(launches) if isinstance(config, ForeignCandidate) else launches


def _answered(
    kernel: Kernel,
    name: str,
    function: Callable[[Config, Problem], Iterable[Answer]],
    config: Config,
    problem: Problem,
) -> tuple[Answer, ...]:
    """Return what a kernel's function answers for a candidate.

    Raises:
        KernelError: it raised.
    """
    try:
        return tuple(function(config, problem))
    except (KernelError, SpaceError):
        raise
    except RAISED as error:
        raise KernelError(
            f"kernel {kernel.name}: {name} raised {type(error).__name__}: {error} for {dict(config)} at {problem}"
        ) from error


def _check_compute_capability(kernel: Kernel, config: Config, chip: Profile) -> Violation | None:
    for gene in kernel.genes:
        least = gene.min_compute_capability.get(config[gene.name])
        if least and chip.compute_capability < least and kernel.space.active(gene, config):
            needed, available = (major + minor / 10 for major, minor in (least, chip.compute_capability))
            what = f"{gene.name}={config[gene.name]} needs instructions that {chip.model} does not have"
            return Violation("compute_capability", needed, available, what)
    return None


def _chip_needs(kernel: Kernel, config: Config, problem: Problem, chip: Profile) -> Iterator[tuple[str, Need, str]]:
    for launch in launches_of(kernel, config, problem):
        yield from _geometry(launch, chip)
        yield from _shared_memory(launch, chip)
        yield from _residency(launch, chip)
        yield from _attributes(launch, chip)
    for access in _answered(kernel, "vector_accesses", kernel.vector_accesses, config, problem):
        for stride in access.stride_bytes:
            yield (
                "vector_alignment",
                Need(stride % access.width_bytes, 0, "bytes left over"),
                f"{access.width_bytes}-byte accesses to {access.tensor} are {stride} bytes apart, "
                f"which is no multiple of {access.width_bytes}: a misaligned address",
            )


def _geometry(launch: Launch, chip: Profile) -> Iterator[tuple[str, Need, str]]:
    for axis, extent, limit in zip("xyz", launch.grid, chip.grid_limit, strict=True):
        yield "grid_extent", Need(extent, limit, "blocks"), f"a grid has at most {limit} blocks along {axis}"
        yield "grid_extent", Need(1, max(extent, 0), "blocks"), f"the grid is empty: {extent} along {axis}"
    for axis, extent, limit in zip("xyz", launch.block, chip.block_limit, strict=True):
        yield "block_extent", Need(extent, limit, "threads"), f"a block has at most {limit} threads along {axis}"
        yield "block_extent", Need(1, max(extent, 0), "threads"), f"the block is empty: {extent} along {axis}"
    limit = chip.threads_per_block
    yield "threads_per_block", Need(launch.threads, limit, "threads"), f"a block has at most {limit} threads"


def _shared_memory(launch: Launch, chip: Profile) -> Iterator[tuple[str, Need, str]]:
    static, total = launch.static_shared_bytes, launch.static_shared_bytes + launch.shared_bytes
    yield (
        "static_shared_memory",
        Need(static, chip.shared_bytes_static, "bytes"),
        "static shared memory over 48 KB is refused by ptxas; more must be dynamic",
    )
    yield (
        "shared_memory_per_block",
        Need(total, chip.shared_bytes_per_block, "bytes"),
        f"a block of {chip.model} can have {chip.shared_bytes_per_block} bytes of shared memory",
    )
    yield (
        "shared_memory_per_sm",
        Need(launch.min_blocks * (total + chip.shared_bytes_reserved), chip.shared_bytes_per_sm, "bytes"),
        f"{launch.min_blocks} resident blocks must fit an SM's shared memory "
        f"({chip.shared_bytes_reserved} bytes of each are the system's)",
    )


def _residency(launch: Launch, chip: Profile) -> Iterator[tuple[str, Need, str]]:
    promised = launch.min_blocks
    threads = promised * 32 * -(-launch.threads // 32)
    yield "blocks_per_sm", Need(promised, chip.blocks_per_sm, "blocks"), "launch bounds promise more resident blocks"
    yield "threads_per_sm", Need(threads, chip.threads_per_sm, "threads"), "launch bounds promise more resident threads"
    yield (
        "registers_per_sm",
        Need(threads * MIN_REGISTERS, chip.registers_per_sm, "registers"),
        f"launch bounds leave a thread fewer than {MIN_REGISTERS} registers",
    )


def _attributes(launch: Launch, chip: Profile) -> Iterator[tuple[str, Need, str]]:
    capability = chip.compute_capability[0] + chip.compute_capability[1] / 10
    if launch.clustered:
        least = CLUSTERS_FROM[0] + CLUSTERS_FROM[1] / 10
        yield "compute_capability", Need(least, capability), f"thread-block clusters need compute capability {least}"
        most = Need(prod(launch.clustered), MOST_CLUSTER_BLOCKS, "blocks")
        yield "cluster_blocks", most, "no chip runs more blocks of a cluster side by side"
        for axis, blocks, cluster in zip("xyz", launch.grid, launch.clustered, strict=True):
            yield "cluster", divides(cluster, blocks, "blocks"), f"the cluster must divide the grid along {axis}"
    if launch.l2_window:
        yield "compute_capability", Need(8.0, capability), "an L2 persisting window needs compute capability 8.0"
