"""Feasibility of a candidate for a problem on a chip: the first violated constraint with its amounts, or None.

The check runs before compilation, so an infeasible candidate costs only microseconds. To give the most helpful message,
it checks the compute capability first, then the kernel's own constraints, then the launch against the chip's limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeVar

from evokern.declaration.foreign import ForeignCandidate
from evokern.declaration.genes import Config, Gene, Value, filled
from evokern.declaration.kernel import AtMost, Kernel, Launch, Problem, Scalar, Tensor, TileMap, explained
from evokern.declaration.launch_bounds import bounds_reason, thread_bound
from evokern.declaration.space import LEFT_OVER, Space, divides
from evokern.errors import KERNEL_CODE_EXCEPTIONS, KernelError, SpaceError, suggestion
from evokern.hardware.profiles import MAX_CLUSTER_BLOCKS, MIN_CLUSTER_CAPABILITY, Profile

Answer = TypeVar("Answer")

MIN_REGISTERS = 24
"""Minimum registers per thread in the ABI; ptxas raises lower limits to this value ("lower bound of 24")."""
REMEMBERED = 4096
"""Maximum number of cached feasibility results, one kilobyte each; enough for all that a trial checks repeatedly."""


@dataclass(frozen=True)
class Violation:
    """The constraint that a candidate violates."""

    constraint: str
    """Name of the constraint."""
    needed: float
    """Amount that the candidate needs."""
    available: float
    """Available amount."""
    reason: str
    """Reason why the candidate cannot work, as a sentence."""
    unit: str = ""
    """Unit of `needed` and `available`."""

    def __str__(self) -> str:
        if (self.needed, self.available, self.unit) == (1, 0, ""):  # a boolean condition: the reason is sufficient
            return f"{self.constraint}: {self.reason}"
        unit = f" {self.unit}" if self.unit else ""
        if self.unit.endswith(LEFT_OVER):
            return f"{self.constraint}: {self.needed:g}{unit}, must be 0 ({self.reason})"
        if self.available < 0:
            return f"{self.constraint}: {self.needed - self.available:g}{unit} too many ({self.reason})"
        return f"{self.constraint}: needs {self.needed:g}{unit}, has {self.available:g}{unit} ({self.reason})"

    @property
    def excess(self) -> float:
        """Relative excess of the needed amount over the available amount; greater than 0."""
        return (self.needed - self.available) / max(abs(self.available), 1.0)

    @property
    def evidence(self) -> dict[str, Any]:
        """Evidence for the trial's record, as JSON values."""
        return {
            "constraint": self.constraint,
            "needed": self.needed,
            "available": self.available,
            "reason": self.reason,
        }


def check(
    kernel: Kernel, config: Config, problems: Sequence[Problem], chip: Profile, *, essential: bool = False
) -> Violation | None:
    """Return the first constraint that a candidate violates on any of the problems, or None.

    Args:
        kernel: the kernel.
        config: a canonical configuration of the kernel's space.
        problems: problems that the candidate must be able to run.
        chip: chip with the resource limits.
        essential: skip constraints marked `wasteful`.

    Raises:
        KernelError: a function in `kernel.py` raised.
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
    """Return the kernel's space with restricted genes, and with a feasibility check for these problems and this chip.

    Args:
        kernel: the kernel.
        problems: problems that every candidate must be able to run.
        chip: chip with the resource limits.
        genes: gene → allowed values (a study's `[genes]` table).

    Raises:
        SpaceError: `genes` names an unknown gene or value.
    """
    points = kernel.starting_points_for(problems, chip)
    space = narrowed(replace(kernel.space, starting_points=points), genes or {})
    late = {gene.name: values for gene in space.genes if (values := gene.low_priority_on(chip.name))}
    return replace(space, feasible=_Feasible(kernel, problems, chip), low_priority=late)


class _Values(dict[str, Value]):
    """A configuration with faster access than `Config`, because samplers check thousands of configurations."""

    __slots__ = ()
    __getattr__ = dict.__getitem__


class _Feasible:
    """Cached predicate: whether `check` finds no violation. It tests frequently violated constraints first."""

    def __init__(self, kernel: Kernel, problems: Sequence[Problem], chip: Profile) -> None:
        self._kernel, self._problems, self._chip = kernel, tuple(problems), chip
        self._memory: dict[Config, bool] = {}
        self._demanding = any(gene.min_compute_capability for gene in kernel.genes)
        self._conditions: list[list[Any]] = [
            [0, constraint.holds, (problem, chip)[: constraint.arity - 1]]
            for problem in problems
            for constraint in kernel.constraints
        ]
        self._rejected = 0

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
        except KERNEL_CODE_EXCEPTIONS:  # `check` raises an error with the constraint's name
            return check(self._kernel, config, self._problems, self._chip) is None
        if self._demanding and _check_compute_capability(self._kernel, config, self._chip):
            return False
        needs = (need for p in self._problems for _, need, _ in _chip_needs(self._kernel, config, p, self._chip))
        return all(need.holds for need in needs)

    def _violates(self, values: _Values) -> bool:
        for condition in self._conditions:
            answer = condition[1](values, *condition[2])
            if not (answer.holds if isinstance(answer, AtMost) else answer):
                if answer is None:
                    raise KernelError("a constraint returned None")  # `check` names it
                condition[0] += 1
                self._rejected += 1
                if self._rejected % 512 == 0:
                    self._conditions.sort(key=lambda entry: -entry[0])
                return True
        return False


def narrowed(space: Space, genes: Mapping[str, Sequence[Value]]) -> Space:
    """Return a space whose genes are limited to the listed values.

    If a gene's default is not listed, the first listed value becomes the default. Starting points with a value that is
    not listed are dropped.
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
    raise SpaceError(f"there is no gene {name!r}: {suggestion(name, [gene.name for gene in genes])}")


def launches_of(kernel: Kernel, config: Config, problem: Problem) -> tuple[Launch, ...]:
    """Return the launches of a kernel, with the genes in their entry points replaced by values.

    An external source may replace their geometry.

    Raises:
        KernelError: the kernel's `launches` raised, returned no launch, or names an unknown gene in an entry point.
        UsageError: the geometry of an external source is ambiguous, because there are several launches.
    """
    launches = _call_declared(kernel, "launches", kernel.launches, config, problem)
    if not launches:
        raise KernelError(
            f"kernel {kernel.name}: launches returned no Launch for {dict(config)} at {problem}; return at least one "
            "Launch"
        )
    if any("{" in launch.entry for launch in launches):
        try:
            launches = tuple(replace(launch, entry=filled(launch.entry, config)) for launch in launches)
        except SpaceError as error:
            raise KernelError(f"kernel {kernel.name}: {error}") from error
    launches = config.launched(launches) if isinstance(config, ForeignCandidate) else launches
    if any(launch.maps for launch in launches):
        tensors = kernel.workload.tensors(problem, config)
        launches = tuple(replace(one, args=_with_maps(kernel, one, tensors)) for one in launches)
    return launches


def _with_maps(kernel: Kernel, launch: Launch, tensors: Mapping[str, Tensor]) -> tuple[str | Scalar | TileMap, ...]:
    """Return the arguments of a launch, whose tensor maps have the axes and types of their tensors."""
    for one in launch.maps:
        if one.tensor not in tensors:
            known = suggestion(one.tensor, tensors)
            raise KernelError(f"kernel {kernel.name}: {launch.entry} has a tensor map of {one.tensor!r}: {known}")
    try:
        return tuple(one.of(tensors[one.tensor]) if isinstance(one, TileMap) else one for one in launch.args)
    except KernelError as error:
        raise KernelError(f"kernel {kernel.name}: {launch.entry}: {error}") from error


def _call_declared(
    kernel: Kernel,
    name: str,
    function: Callable[[Config, Problem], Iterable[Answer]],
    config: Config,
    problem: Problem,
) -> tuple[Answer, ...]:
    """Call a kernel's function for a candidate and return its results.

    Raises:
        KernelError: the function raised.
    """
    try:
        return tuple(function(config, problem))
    except (KernelError, SpaceError):
        raise
    except KERNEL_CODE_EXCEPTIONS as error:
        raise KernelError(f"kernel {kernel.name}: {name} {explained(error)} for {dict(config)} at {problem}") from error


def _check_compute_capability(kernel: Kernel, config: Config, chip: Profile) -> Violation | None:
    for gene in kernel.genes:
        least = gene.min_compute_capability.get(config[gene.name])
        if least and chip.compute_capability < least and kernel.space.active(gene, config):
            needed, available = (major + minor / 10 for major, minor in (least, chip.compute_capability))
            what = f"{gene.name}={config[gene.name]} needs instructions that {chip.model} does not have"
            return Violation("compute_capability", needed, available, what)
    return None


def _chip_needs(kernel: Kernel, config: Config, problem: Problem, chip: Profile) -> Iterator[tuple[str, AtMost, str]]:
    for launch in launches_of(kernel, config, problem):
        yield from _geometry(launch, chip)
        yield from _shared_memory(launch, chip)
        yield from _residency(launch, chip)
        yield from _attributes(launch, chip)
        bound = thread_bound(kernel, config, problem, launch.entry)
        if bound is not None:
            threads = AtMost(launch.threads, bound, "threads")
            yield "launch_bounds", threads, bounds_reason(launch.entry, threads)
    for access in _call_declared(kernel, "vector_accesses", kernel.vector_accesses, config, problem):
        for stride in access.stride_bytes:
            yield (
                "vector_alignment",
                AtMost(stride % access.width_bytes, 0, "bytes left over"),
                f"{access.width_bytes}-byte accesses to {access.tensor} are {stride} bytes apart, "
                f"which is not a multiple of {access.width_bytes}: a misaligned address",
            )


def _geometry(launch: Launch, chip: Profile) -> Iterator[tuple[str, AtMost, str]]:
    for axis, extent, limit in zip("xyz", launch.grid, chip.grid_limit, strict=True):
        yield "grid_extent", AtMost(extent, limit, "blocks"), f"a grid has at most {limit} blocks along {axis}"
        yield "grid_extent", AtMost(1, max(extent, 0), "blocks"), f"the grid is empty: {extent} along {axis}"
    for axis, extent, limit in zip("xyz", launch.block, chip.block_limit, strict=True):
        yield "block_extent", AtMost(extent, limit, "threads"), f"a block has at most {limit} threads along {axis}"
        yield "block_extent", AtMost(1, max(extent, 0), "threads"), f"the block is empty: {extent} along {axis}"
    limit = chip.threads_per_block
    yield "threads_per_block", AtMost(launch.threads, limit, "threads"), f"a block has at most {limit} threads"


def _shared_memory(launch: Launch, chip: Profile) -> Iterator[tuple[str, AtMost, str]]:
    static, total = launch.static_shared_bytes, launch.static_shared_bytes + launch.shared_bytes
    yield (
        "static_shared_memory",
        AtMost(static, chip.shared_bytes_static, "bytes"),
        "ptxas rejects static shared memory over 48 KB; use dynamic shared memory for more",
    )
    yield (
        "shared_memory_per_block",
        AtMost(total, chip.shared_bytes_per_block, "bytes"),
        f"a block on {chip.model} can use at most {chip.shared_bytes_per_block} bytes of shared memory",
    )
    yield (
        "shared_memory_per_sm",
        AtMost(launch.min_blocks * (total + chip.shared_bytes_reserved), chip.shared_bytes_per_sm, "bytes"),
        f"{launch.min_blocks} resident blocks must fit in the shared memory of an SM "
        f"(the system reserves {chip.shared_bytes_reserved} bytes for each)",
    )


def _residency(launch: Launch, chip: Profile) -> Iterator[tuple[str, AtMost, str]]:
    promised = launch.min_blocks
    threads = promised * 32 * -(-launch.threads // 32)
    yield (
        "blocks_per_sm",
        AtMost(promised, chip.blocks_per_sm, "blocks"),
        "launch bounds request more resident blocks than an SM can hold",
    )
    yield (
        "threads_per_sm",
        AtMost(threads, chip.threads_per_sm, "threads"),
        "launch bounds request more resident threads than an SM can hold",
    )
    yield (
        "registers_per_sm",
        AtMost(threads * MIN_REGISTERS, chip.registers_per_sm, "registers"),
        f"launch bounds leave fewer than {MIN_REGISTERS} registers per thread",
    )


def _attributes(launch: Launch, chip: Profile) -> Iterator[tuple[str, AtMost, str]]:
    capability = chip.compute_capability[0] + chip.compute_capability[1] / 10
    if launch.clustered:
        least = MIN_CLUSTER_CAPABILITY[0] + MIN_CLUSTER_CAPABILITY[1] / 10
        yield "compute_capability", AtMost(least, capability), f"thread-block clusters need compute capability {least}"
        most = AtMost(prod(launch.clustered), MAX_CLUSTER_BLOCKS, "blocks")
        yield "cluster_blocks", most, "no chip supports a larger cluster"
        for axis, blocks, cluster in zip("xyz", launch.grid, launch.clustered, strict=True):
            yield "cluster", divides(cluster, blocks, "blocks"), f"the cluster must divide the grid along {axis}"
    if launch.maps:
        least = MIN_CLUSTER_CAPABILITY[0] + MIN_CLUSTER_CAPABILITY[1] / 10
        yield "compute_capability", AtMost(least, capability), f"tensor maps need compute capability {least}"
    for one in launch.maps:
        for refusal in one.described.refusals():
            yield "tensor_map", AtMost(1, 0), f"the driver refuses the tensor map of {one.tensor!r}: {refusal}"
    if launch.l2_window:
        yield "compute_capability", AtMost(8.0, capability), "an L2 persisting window needs compute capability 8.0"
