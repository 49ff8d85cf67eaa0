"""What races in a program, by vector clocks over every access of every thread: slow, plain, and nothing of evokern.

A program is a list of steps that all threads of one block pass in order (`race_programs` draws them). Each thread has a
clock per thread, joined where the program says that threads meet; of each byte every thread's latest read, write and
atomic update is kept, and each access is compared with those of all other threads. Two accesses race when one of them
writes, not both are atomic, and neither happens before the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from evokern.simt import LaunchResult

WARP = 32


@dataclass(frozen=True)
class Step:
    """What some threads do, or where they meet."""

    kind: str
    """read, write, atomic; bar, arrive, named, warp; mb_arrive, mb_wait; fence, signal, await, ticket; cluster_arrive,
    cluster_relaxed, cluster_wait."""
    threads: tuple[int, ...]
    """Who takes part."""
    place: Callable[[int], int] = field(default=lambda thread: 0)
    """Thread → first byte."""
    width: int = 4
    """Bytes."""
    number: int = 0
    """Which barrier, barrier object or flag."""
    release: str = ""
    """signal: `release`, or `relaxed`, which publishes what was fenced before."""
    last_only: bool = False
    """The access belongs to whoever drew the last of the tickets."""
    block_scope: bool = False
    """fence, signal, await: in the scope of the thread's block alone, which is not its whole cluster."""


@dataclass
class Verdict:
    """What an oracle says."""

    across: set[str] = field(default_factory=set)
    """Kinds of races between warps, and of one store with itself."""
    within: set[str] = field(default_factory=set)
    """Kinds of races within a warp."""
    early: bool = False
    """Whether somebody accesses the memory of a block of which it has seen nothing."""
    late: bool = False
    """Whether a block may end before somebody has accessed its memory."""

    @property
    def level(self) -> str:
        """`error`, `warning` or `clean`."""
        return "error" if self.across else "warning" if self.within else "clean"

    def fault_evidence(self, name: str, space: str, results: Sequence[LaunchResult], beside: str = "") -> str | None:
        """Return what a sanitizer says of the program's races otherwise; None where it agrees.

        Args:
            name: of the program.
            space: `shared` or `global`, where its accesses are.
            results: its launches.
            beside: kind of findings that are not of races.
        """
        findings = [finding for result in results for finding in result.findings if finding.kind != beside]
        kinds, levels = ({finding.kind for finding in findings}, {finding.level for finding in findings})
        told = "error" if "error" in levels else "warning" if levels else "clean"
        if told == self.level and all(result.completed for result in results) and not kinds - {f"{space}_race"}:
            return None
        return (
            f"{name} in {space} memory: {told} {sorted(kinds)}, is {self.level}: {sorted(self.across)} across warps, "
            f"{sorted(self.within)} within"
        )


def judge(steps: list[Step], threads: int, expected: dict[int, int], block: int = 0, room: int = 0) -> Verdict:
    """Return what races.

    Args:
        steps: the program.
        threads: of the block, or of the cluster, numbered through its blocks.
        expected: barrier object → arrivals that end a phase.
        block: threads of each block of a cluster; 0 without one.
        room: bytes of each block's memory, where it matters whether that block is there.
    """
    clock = [[0] * threads for _ in range(threads)]
    for thread in range(threads):
        clock[thread][thread] = 1
    fenced: list[list[int] | None] = [None] * threads
    untouched = [False] * threads  # since its fence a thread did nothing but atomic updates
    untouched_near = [False] * threads  # the same, since its fence of any scope
    updated: dict[int, list[int]] = {}  # byte → what its atomic updates publish
    named: dict[int, list[int]] = {}
    arriving = {number: [0] * threads for number in expected}
    ended = {number: [0] * threads for number in expected}
    missing = dict(expected)
    published: dict[int, list[int]] = {}
    near: dict[tuple[int, int], list[int]] = {}  # (flag, block) → what its own block may see there
    fenced_near: list[list[int] | None] = [None] * threads
    joint, complete = [0] * threads, [0] * threads  # of the cluster's barrier
    seen: dict[str, dict[int, dict[int, tuple[int, int]]]] = {"read": {}, "write": {}, "atomic": {}}
    verdict = Verdict()
    last = -1
    met: set[int] = set()  # who has waited at the cluster's barrier
    visits: list[tuple[int, int, int]] = []  # (block, thread, its clock) of accesses to another block's memory

    def advance(thread: int) -> None:
        clock[thread][thread] += 1

    def meet(members: tuple[int, ...], more: list[int] | None = None) -> None:
        joint = [max(column) for column in zip(*(clock[member] for member in members), strict=True)]
        if more is not None:
            joint = list(map(max, joint, more))
        for member in members:
            clock[member] = joint.copy()
            advance(member)

    def publish(thread: int, step: Step) -> list[int] | None:
        known = clock[thread].copy() if step.release == "release" else fenced[thread]
        advance(thread)
        return known

    def visit(thread: int, step: Step) -> None:
        """Note an access to the memory of another block."""
        home = step.place(thread) // room if room else thread // max(block, 1)
        if home != thread // max(block, 1):
            owners = range(home * block, (home + 1) * block)
            verdict.early |= thread not in met and not any(clock[thread][owner] for owner in owners)
            visits.append((home, thread, clock[thread][thread]))

    for at, step in enumerate(steps):
        if step.kind in ("read", "write", "atomic"):
            for thread in (last,) if step.last_only else step.threads:
                start = step.place(thread)
                visit(thread, step)
                if step.kind == "atomic":
                    clock[thread] = list(map(max, clock[thread], updated.get(start, [0] * threads)))
                for byte in range(start, start + step.width):
                    for other in ("read", "write", "atomic"):
                        if other == step.kind != "write":
                            continue
                        for who, (when, where) in seen[other].get(byte, {}).items():
                            if who != thread and when > clock[thread][who]:
                                same_warp = who // WARP == thread // WARP and where != at
                                (verdict.within if same_warp else verdict.across).add(f"{step.kind} after {other}")
                    seen[step.kind].setdefault(byte, {})[thread] = clock[thread][thread], at
                known = fenced[thread]
                if step.kind != "atomic":
                    untouched[thread] = untouched_near[thread] = False
                elif known is not None:
                    # Fenced, then updated: whoever updates the word next sees what came before the fence, and the
                    # update itself where nothing came between.
                    known = known.copy()
                    if untouched[thread]:
                        known[thread] = clock[thread][thread]
                    updated[start] = list(map(max, updated.get(start, [0] * threads), known))
                    advance(thread)
        elif step.kind in ("bar", "warp"):
            meet(step.threads)
        elif step.kind == "arrive":
            for thread in step.threads:
                named[step.number] = list(map(max, named.get(step.number, [0] * threads), clock[thread]))
                advance(thread)
        elif step.kind == "named":
            meet(step.threads, named.pop(step.number, None))
        elif step.kind == "mb_arrive":
            for thread in step.threads:
                arriving[step.number] = list(map(max, arriving[step.number], clock[thread]))
                advance(thread)
                missing[step.number] -= 1
                if not missing[step.number]:
                    ended[step.number], missing[step.number] = arriving[step.number].copy(), expected[step.number]
        elif step.kind == "mb_wait":
            for thread in step.threads:
                clock[thread] = list(map(max, clock[thread], ended[step.number]))
        elif step.kind == "fence":
            for thread in step.threads:
                fenced_near[thread] = clock[thread].copy()
                untouched_near[thread] = True
                if not step.block_scope:
                    fenced[thread] = clock[thread].copy()
                    untouched[thread] = True
                advance(thread)
        elif step.kind == "signal" and block:
            for thread in step.threads:
                visit(thread, step)
                release, home = step.release == "release", (step.number, thread // block)
                wide = None if step.block_scope else clock[thread] if release else fenced[thread]
                close = clock[thread] if release else fenced_near[thread]
                wide, close = (None if known is None else known.copy() for known in (wide, close))
                for known, alone in ((wide, untouched), (close, untouched_near)):
                    if known is not None and alone[thread]:  # who reads the flag knows that it was stored
                        known[thread] = clock[thread][thread]
                advance(thread)
                published.pop(step.number, None)
                near.pop(home, None)
                if wide is not None:
                    published[step.number] = wide
                if close is not None:
                    near[home] = close
        elif step.kind == "signal":
            for thread in step.threads:
                known = publish(thread, step)
                if known is not None:
                    published[step.number] = known
        elif step.kind == "await":
            for thread in step.threads:
                nothing = [0] * threads
                visit(thread, step)
                if not step.block_scope:
                    clock[thread] = list(map(max, clock[thread], published.get(step.number, nothing)))
                if block:
                    clock[thread] = list(map(max, clock[thread], near.get((step.number, thread // block), nothing)))
        elif step.kind in ("cluster_arrive", "cluster_relaxed"):
            for thread in step.threads:
                told = clock[thread] if step.kind == "cluster_arrive" else fenced[thread]
                joint = list(map(max, joint, told)) if told is not None else joint
                advance(thread)
        elif step.kind == "cluster_wait":  # all arrivals stand before it
            complete, joint = (joint, [0] * threads) if any(joint) or step.number else (complete, joint)
            met.update(step.threads)
            for thread in step.threads:
                clock[thread] = list(map(max, clock[thread], complete))
        elif step.kind == "ticket":
            for thread in step.threads:
                before = published.get(step.number, [0] * threads)
                clock[thread] = list(map(max, clock[thread], before))
                known = publish(thread, step)
                if known is not None:
                    published[step.number] = list(map(max, before, known))
                last = thread
    verdict.late = any(
        all(clock[owner][who] < when for owner in range(home * block, (home + 1) * block)) for home, who, when in visits
    )
    return verdict
