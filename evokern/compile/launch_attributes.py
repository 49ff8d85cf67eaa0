"""Attributes of a compiled kernel that restrict its launches: block size, clusters, and barriers of the whole grid.

The PTX of an entry holds the attributes as directives (PTX ISA 9.0, 11.4, "Performance-Tuning Directives", and 11.7,
"Cluster Dimension Directives"). A launch that violates one of them fails on a GPU.

`grid.sync()` of a cooperative launch has no directive. The driver puts the address of a workspace into the registers
``%envreg1`` and ``%envreg2``, and the barrier is an atomic counter in that workspace. Thus a kernel synchronises its
grid if it accesses memory at an address that comes from these registers. A kernel that only asks for its rank in the
grid reads the registers too, but never uses the address.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from evokern.declaration.kernel import AtMost, Launch
from evokern.declaration.launch_bounds import bounds_reason
from evokern.hardware.profiles import Profile

Three = tuple[int, int, int]

RESIDENT_GRID = "resident_grid"
"""Constraint of a grid whose blocks wait for each other and must all run at once."""

DIRECTIVE = re.compile(
    r"\.(maxntid|reqntid|minnctapersm|maxnreg|maxnctapersm|reqnctapercluster|maxclusterrank)\s+([\d,\s]+)"
    r"|\.(explicitcluster|blocksareclusters)\b"
)
"""Pattern of a directive of an entry."""
_FUNCTION = re.compile(r"\.(?:entry|func)\b(?:\s*\.\w+)*\s*(?:\([^()]*\))?\s*([\w$.]+)\s*(\([^()]*\))?([^{};]*)\{")
_SPECIAL = ("%envreg1", "%envreg2")
_NAME = re.compile(r"(?<![\w$.%])[A-Za-z_$][\w$]*")
_NOT_CODE = re.compile(r"//[^\n]*|^\s*\.loc\b[^\n]*|^\s*[\w$]+:\s*$", re.MULTILINE)
_REGISTER = re.compile(r"%[\w$]+")
_NO_RESULT = ("red", "bra", "setp", "ret")


@dataclass(frozen=True)
class Excess:
    """A limit that a compiled launch exceeds."""

    constraint: str
    """Name of the limit."""
    need: AtMost
    """Needed and available amounts."""
    reason: str
    """Clause that explains why the launch cannot run."""

    @property
    def evidence(self) -> dict[str, Any]:
        """Evidence for the trial's record, as JSON values."""
        return {
            "constraint": self.constraint,
            "needed": self.need.needed,
            "available": self.need.available,
            "unit": self.need.unit,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class LaunchAttributes:
    """Attributes of one kernel that restrict its launches."""

    max_threads: int | None = None
    """Maximum number of threads in a block (``__launch_bounds__``); None without a limit."""
    block: Three | None = None
    """Required block (``__block_size__``); None if any block is allowed."""
    cluster: Three | None = None
    """Required cluster (``__cluster_dims__``); None if the launch chooses."""
    explicit_cluster: bool = False
    """Whether the kernel must be launched with a cluster."""
    max_cluster: int | None = None
    """Maximum number of blocks in a cluster; None without a limit."""

    @classmethod
    def of(cls, directives: Mapping[str, tuple[int, ...]]) -> LaunchAttributes:
        """Return the attributes that an entry's directives declare."""
        threads, rank = directives.get("maxntid"), directives.get("maxclusterrank")
        cluster = _three(directives.get("reqnctapercluster"))
        return cls(
            max_threads=prod(threads) if threads else None,
            block=_three(directives.get("reqntid")),
            cluster=cluster if cluster and min(cluster) > 0 else None,
            explicit_cluster="explicitcluster" in directives,
            max_cluster=rank[0] if rank else None,
        )

    def violated_by(self, launch: Launch) -> Excess | None:
        """Return the attribute that a launch violates, or None."""
        return self.block_excess(launch.entry, launch.block) or self._cluster_excess(launch)

    def block_excess(self, called: str, block: Three) -> Excess | None:
        """Return the attribute that a block violates, or None.

        Args:
            called: name of the kernel in the reason.
            block: threads along x, y, z.
        """
        if self.block is not None and block != self.block:
            required = f"{called} must be launched with blocks of {extents(self.block)} threads (__block_size__)"
            return Excess("block_size", _NEVER, f"{required}, not {extents(block)}")
        if self.max_threads is not None and prod(block) > self.max_threads:
            need = AtMost(prod(block), self.max_threads, "threads")
            return Excess("launch_bounds", need, bounds_reason(called, need))
        return None

    def _cluster_excess(self, launch: Launch) -> Excess | None:
        if self.cluster is not None and launch.clustered not in (None, self.cluster):
            reason = f"{launch.entry} requires clusters of {extents(self.cluster)} blocks (__cluster_dims__), not "
            return Excess("cluster_size", _NEVER, reason + extents(launch.cluster or (1, 1, 1)))
        if self.cluster is None and launch.clustered is None and self.explicit_cluster:
            reason = f"{launch.entry} must be launched with a cluster (__cluster_dims__); add cluster= to its Launch"
            return Excess("cluster_size", _NEVER, reason)
        cluster = launch.clustered or self.cluster or (1, 1, 1)
        for axis, blocks, size in zip("xyz", launch.grid, cluster, strict=True):
            if blocks % size:
                reason = f"the grid has {blocks} blocks along {axis}, which is not a multiple of the cluster's {size}"
                return Excess("cluster", _NEVER, reason)
        if self.max_cluster is not None and prod(cluster) > self.max_cluster:
            reason = f"the __launch_bounds__ of {launch.entry} allow clusters of at most {self.max_cluster} blocks"
            return Excess("cluster_blocks", AtMost(prod(cluster), self.max_cluster, "blocks"), reason)
        return None


_NEVER = AtMost(1, 0)


def extents(three: Three) -> str:
    """Return extents as text, for example ``16 x 8``; trailing ones are omitted."""
    kept = three[: max([1, *(axis + 1 for axis in range(3) if three[axis] != 1)])]
    return " x ".join(map(str, kept))


def grid_excess(launch: Launch, blocks_per_sm: int, chip: Profile) -> Excess | None:
    """Return the excess of a grid whose blocks wait for each other and do not fit on the chip at once, or None.

    Args:
        launch: launch whose blocks meet at barriers of the grid.
        blocks_per_sm: blocks that fit on an SM at once.
        chip: the chip.
    """
    most = blocks_per_sm * chip.sms
    if launch.blocks <= most:
        return None
    reason = (
        f"the blocks of {launch.entry} wait for each other, so all {launch.blocks} must run at once, but {chip.model} "
        f"holds {most} ({chip.sms} SMs with {blocks_per_sm} blocks each)"
    )
    return Excess(RESIDENT_GRID, AtMost(launch.blocks, most, "blocks"), reason)


def read_directives(text: str) -> dict[str, tuple[int, ...]]:
    """Return the directives of an entry from the text between its parameters and its body."""
    return {
        match[1] or match[3]: tuple(int(number) for number in re.findall(r"\d+", match[2] or ""))
        for match in DIRECTIVE.finditer(text)
    }


def launch_attributes(ptx: str, symbol: str) -> LaunchAttributes:
    """Return the attributes of an entry.

    Args:
        ptx: PTX of its module.
        symbol: the entry's symbol.
    """
    heads = (match for match in _FUNCTION.finditer(ptx) if match[1] == symbol)
    return LaunchAttributes.of(read_directives(next((match[3] for match in heads), "")))


def synchronises_grid(ptx: str, symbol: str) -> bool:
    """Return whether an entry or a function that it can call synchronises the whole grid.

    Args:
        ptx: PTX of its module.
        symbol: the entry's symbol.
    """
    if _SPECIAL[0] not in ptx:
        return False
    bodies = _bodies(ptx)
    reached: dict[str, list[str]] = {}
    waiting = [symbol]
    while waiting:
        name = waiting.pop()
        if name in bodies and name not in reached:
            reached[name] = re.split(r"[;{}]", _NOT_CODE.sub("", bodies[name]))
            waiting += [word for text in reached[name] for word in _NAME.findall(_split(text)[1])]
    return has_grid_barrier(list(reached.values()))


@functools.lru_cache(maxsize=2)  # several entries of one module
def _bodies(ptx: str) -> dict[str, str]:
    """Return the body of each function of a module by its symbol; a body ends at the first brace of a line."""
    return {match[1]: ptx[match.end() : ptx.find("\n}", match.end())] for match in _FUNCTION.finditer(ptx)}


def has_grid_barrier(functions: Sequence[Iterable[str]]) -> bool:
    """Return whether functions access the workspace of a cooperative launch, as the barrier of a grid does.

    If an address in the workspace leaves its function, through memory or a call, any atomic operation may be the
    barrier's.

    Args:
        functions: PTX instructions of the entry and of each function that it can call, in code order.
    """
    uses = {use for instructions in functions for use in _workspace_uses(instructions)}
    return "access" in uses or {"escape", "atomic"} <= uses


def _workspace_uses(instructions: Iterable[str]) -> Iterator[str]:
    """Yield what a function does: `access` and `escape` of an address in the workspace, or any `atomic` operation."""
    from_workspace: set[str] = set(_SPECIAL)
    for text in instructions:
        kind, operands = _split(text)
        if kind in ("atom", "red"):
            yield "atomic"
        if "%" not in operands or from_workspace.isdisjoint(named := _REGISTER.findall(operands)):
            continue
        if not from_workspace.isdisjoint(re.findall(r"\[\s*(%[\w$]+)", operands)):
            yield "access"
        elif kind in ("st", "call"):
            yield "escape"
        elif kind not in _NO_RESULT:
            from_workspace.add(named[0])


def _split(instruction: str) -> tuple[str, str]:
    """Return the opcode of an instruction, without its modifiers and guard, and its operands."""
    opcode, *operands = re.sub(r"^\s*@!?%[\w$]+\s+", "", instruction).split(None, 1) or ("",)
    return opcode.split(".")[0], "".join(operands)


def _three(numbers: tuple[int, ...] | None) -> Three | None:
    if not numbers:
        return None
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z
