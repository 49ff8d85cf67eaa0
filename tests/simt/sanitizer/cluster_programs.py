"""Random programs of one cluster: what threads do to its blocks' shared memory, with all of the order that it needs.

Or with a part of it: half of them lack a barrier, wait too late, publish nothing or in too small a scope. What that
makes of them is for `race_oracle` to say. Threads are numbered through the blocks of the cluster.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from race_oracle import WARP, Step
from race_programs import only

ROOM = 2048
"""Bytes of each block's memory; the flags lie behind."""
REGION = 512
"""Bytes of a pattern's part of it."""
PTX = {2: "u16", 4: "u32", 8: "u64"}
C = {2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
PRELUDE = """
__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ unsigned map(unsigned own, unsigned rank) {
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
  return there;
}
"""


@dataclass
class Program:
    """A drawn program: what the oracle reads, and the CUDA that says the same."""

    seed: int
    ranks: int
    block: int
    """Threads of a block."""
    space: str
    steps: list[Step] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    flags: int = 0
    arrivals: int = 0
    """Of the barrier object that each block has; 0 for none."""
    opens: bool = True
    """Whether all threads meet before the first step."""
    closes: bool = True
    """Whether they do behind the last one."""

    @property
    def entry(self) -> str:
        """The kernel's name."""
        return f"c{self.seed}"

    @property
    def threads(self) -> int:
        """Threads of the cluster."""
        return self.ranks * self.block

    @property
    def expected(self) -> dict[int, int]:
        """Barrier object, by the rank of its block → arrivals that end a phase."""
        return dict.fromkeys(range(self.ranks), self.arrivals) if self.arrivals else {}

    def text(self) -> str:
        """Return the kernel."""
        body = "\n".join(f"  {line}" for line in self.lines)
        memory = f"__shared__ __align__(16) unsigned char m[{ROOM}];"
        if self.space == "global":
            memory = f"unsigned char* const m = scratch + rank * {ROOM};"
        init = (
            f'  if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], %1; fence.mbarrier_init.release.cluster;" :: '
            f'"r"(at(&object)), '
            f'"r"({self.arrivals}) : "memory");\n'
            if self.arrivals
            else ""
        )
        return (
            f'extern "C" __global__ void __launch_bounds__({self.block}) {self.entry}('
            f"unsigned* out, unsigned char* scratch) {{\n"
            f'  unsigned rank; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));\n'
            f"  {memory}\n  __shared__ unsigned flags[16];\n  __shared__ unsigned long long object;\n"
            f"  const int t = threadIdx.x, g = rank * {self.block} + t; unsigned acc = 0;\n"
            f"  for (int i = t; i < {ROOM // 4}; i += {self.block}) ((unsigned*)m)[i] = 0;\n"
            f"  if (t < 16) flags[t] = 0;\n{init}{meeting() * self.opens}\n{body}\n{meeting() * self.closes}\n"
            "  out[g] = acc;\n}\n"
        )

    def judged(self) -> list[Step]:
        """Return all steps, those of the opening and the close among them."""
        turns = range(0, ROOM // 4, self.block) if not self.opens else ()
        zeroing = [
            Step("write", tuple(g for g in range(self.threads) if g % self.block + turn < ROOM // 4), place)
            for turn in turns
            for place in [partial(_word, self.block, turn)]
        ]
        everyone = tuple(range(self.threads))
        meeting = [Step("cluster_arrive", everyone), Step("cluster_wait", everyone, number=1)]
        return [*zeroing, *meeting * self.opens, *self.steps, *meeting * self.closes]


def _word(block: int, turn: int, thread: int) -> int:
    return thread // block * ROOM + (thread % block + turn) * 4


def _in_block(rank: int, thread: int) -> int:
    return rank * ROOM


def meeting() -> str:
    """Return what makes all threads of a cluster meet."""
    return '  asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");'


class Drawing:
    """Draws one program."""

    def __init__(self, seed: int, space: str) -> None:
        self.rng = random.Random(seed)
        self.program = Program(seed, self.rng.choice((2, 2, 4)), self.rng.choice((32, 64, 96)), space)
        self.block, self.ranks = self.program.block, self.program.ranks
        self.thread_count = tuple(range(self.program.threads))
        self.defect = self.rng.random() < 0.6
        self.regions = list(range(ROOM // REGION))

    # ---- steps

    def lacks(self, chance: float = 0.5) -> bool:
        """Say whether something is left out here."""
        return self.defect and self.rng.random() < chance

    def _if(self, threads: tuple[int, ...], what: str) -> str:
        return what if threads == self.thread_count else only(threads, what, "g")

    def access(
        self, kind: str, threads: tuple[int, ...], to: tuple[int, int], region: int, width: int,
        place: tuple[int, int, int], condition: str = "",
    ) -> None:  # fmt: skip
        """Add an access to element (t * factor + shift) % modulus of a region, of block (rank * to[0] + to[1]) % ranks.

        Threads are those of `condition`, where it is given.
        """
        factor, shift, modulus = place
        start = region * REGION

        def where(thread: int) -> int:
            rank, t = divmod(thread, self.block)
            return (rank * to[0] + to[1]) % self.ranks * ROOM + start + (t * factor + shift) % modulus * width

        target = f"(rank * {to[0]} + {to[1]}) % {self.ranks}"
        offset = f"{start} + (unsigned)((t * {factor} + {shift}) % {modulus}) * {width}"
        number, constraint = len(self.program.lines), {8: "l", 2: "h"}.get(width, "r")
        if self.program.space == "shared":
            space, address = "shared::cluster", f'"r"(map(at(m) + {offset}, {target}))'
            if to == (1, 0) and self.rng.random() < 0.5:
                space, address = "shared", f'"r"(at(m) + {offset})'
        else:
            space, address = "global", f'"l"(scratch + {target} * {ROOM} + {offset})'
        if kind == "read":
            what = (
                f'{{ {C[width]} v; asm volatile("ld.{space}.{PTX[width]} %0, [%1];" : "={constraint}"(v) '
                f': {address} : "memory"); acc += (unsigned)v; }}'
            )
        elif kind == "write":
            value = f"({C[width]})(g + {512 * (number % 100 + 1)})"
            what = (
                f'asm volatile("st.{space}.{PTX[width]} [%0], %1;" :: {address}, "{constraint}"({value}) : "memory");'
            )
        else:
            what = f'asm volatile("red.{space}.add.u32 [%0], %1;" :: {address}, "r"(1) : "memory");'
        self.program.steps.append(Step(kind, threads, where, width))
        self.program.lines.append(f"if ({condition}) {{ {what} }}" if condition else self._if(threads, what))

    def block_barrier(self, ranks: tuple[int, ...] | None = None) -> None:
        """The threads of each block, or of some blocks, meet."""
        chosen = tuple(range(self.ranks)) if ranks is None else ranks
        for rank in chosen:
            self.program.steps.append(Step("bar", tuple(range(rank * self.block, (rank + 1) * self.block))))
        test = " || ".join(f"rank == {rank}" for rank in chosen)
        self.program.lines.append("__syncthreads();" if ranks is None else f"if ({test}) __syncthreads();")

    def arrive(self, threads: tuple[int, ...], *, relaxed: bool = False) -> None:
        """Threads arrive at the cluster's barrier."""
        text = f'asm volatile("barrier.cluster.arrive{".relaxed" if relaxed else ""};" ::: "memory");'
        self.program.steps.append(Step("cluster_relaxed" if relaxed else "cluster_arrive", threads))
        self.program.lines.append(self._if(threads, text))

    def wait(self, threads: tuple[int, ...], *, first: bool = True) -> None:
        """Threads wait at the cluster's barrier; ``first`` where nobody has in this phase."""
        self.program.steps.append(Step("cluster_wait", threads, number=int(first)))
        self.program.lines.append(self._if(threads, 'asm volatile("barrier.cluster.wait;" ::: "memory");'))

    def meet(self) -> None:
        """All threads of the cluster meet, in one of the ways there are."""
        how = self.rng.choice(("plain", "plain", "apart", "fenced", "overlapping"))
        if how == "apart":  # warps arrive one after the other, and wait so
            cut = self.rng.randrange(1, len(self.thread_count) // WARP) * WARP
            parts = [self.thread_count[:cut], self.thread_count[cut:]]
            for part in parts:
                self.arrive(part)
            self.rng.shuffle(parts)
            self.wait(parts[0])
            self.wait(parts[1], first=False)
            return
        if how == "fenced":
            self.fence(self.thread_count, near=self.lacks(0.2))
            self.arrive(self.thread_count, relaxed=True)
        else:
            self.arrive(self.thread_count, relaxed=self.lacks(0.2))
        if how == "overlapping" and self.regions:
            region = self.regions[-1]
            self.access("write", self.thread_count, (1, 0), region, 4, (1, 0, self.block))
        self.wait(self.thread_count)

    def fence(self, threads: tuple[int, ...], *, near: bool) -> None:
        """Threads fence, for their block or for all."""
        text = "__threadfence_block();" if near else 'asm volatile("fence.acq_rel.cluster;" ::: "memory");'
        self.program.steps.append(Step("fence", threads, block_scope=near))
        self.program.lines.append(self._if(threads, text))

    def signal(self, number: int, thread: int, to: int, how: str, *, near: bool) -> None:
        """A thread sets a flag of a block: `release`, or `relaxed`."""
        scope = "cta" if near else "cluster"
        text = (
            f'asm volatile("st.{how}.{scope}.shared::cluster.u32 [%0], 1;" :: "r"(map(at(&flags[{number}]), {to})) : '
            '"memory");'
        )
        place = partial(_in_block, to)
        self.program.steps.append(Step("signal", (thread,), place, number=number, release=how, block_scope=near))
        self.program.lines.append(self._if((thread,), text))

    def wait_for(self, number: int, threads: tuple[int, ...], to: int, *, near: bool) -> None:
        """Threads wait for a flag of a block."""
        scope = "cta" if near else "cluster"
        text = (
            f'{{ unsigned f; do asm volatile("ld.acquire.{scope}.shared::cluster.u32 %0, [%1];" : "=r"(f) : '
            f'"r"(map(at(&flags[{number}]), {to})) : "memory"); while (!f); }}'
        )
        self.program.steps.append(Step("await", threads, partial(_in_block, to), number=number, block_scope=near))
        self.program.lines.append(self._if(threads, text))

    # ---- what is drawn

    def some(self, within: tuple[int, ...]) -> tuple[int, ...]:
        """Return some of the threads: a range, at times every second or fourth of it."""
        low, high = sorted((self.rng.choice([within[0], self.rng.choice(within)]),
                            self.rng.choice([within[-1], self.rng.choice(within)])))  # fmt: skip
        return tuple(range(low, high + 1, self.rng.choice((1, 1, 1, 2, 4))))

    def region(self) -> int:
        """Return a region that no other pattern uses."""
        return self.regions.pop(self.rng.randrange(len(self.regions)))

    def draw(self) -> Program:
        """Return the program."""
        patterns: list[Callable[[], None]] = [
            self.exchange, self.reduce, self.push, self.local_rounds, self.adding, self.scattered,
        ]  # fmt: skip
        if self.block > WARP:
            patterns += [self.hand_over, self.object]
        if self.program.space == "shared":
            patterns += [self.flag, self.flag]
        for pattern in self.rng.sample(patterns, self.rng.choice((1, 1, 2))):
            self.program.names.append(pattern.__name__)
            pattern()
            if self.rng.random() < 0.3:
                self.meet()
        if self.program.space == "shared":
            self.program.closes = self.rng.random() < 0.5
            self.program.opens = bool(self.program.flags or self.program.arrivals) or self.rng.random() < 0.8
        return self.program

    # ---- patterns

    def _own(self, kind: str, region: int, width: int, shift: int = 0) -> None:
        self.access(kind, self.thread_count, (1, 0), region, width, (1, shift, self.block))

    def exchange(self) -> None:
        """Each block writes its own, all meet, and each reads a neighbour's; more than once."""
        region, width = self.region(), self.rng.choice((2, 4))
        for _ in range(self.rng.randint(1, 2)):
            self._own("write", region, width)
            if not self.lacks():
                self.meet()
            else:
                self.block_barrier()
            shift = self.rng.choice((0, 1, 31, 32))
            self.access(
                "read", self.thread_count, (1, self.rng.randrange(1, self.ranks)), region, width, (1, shift, self.block)
            )
            if not self.lacks():
                self.meet()

    def reduce(self) -> None:
        """The first block adds up what all have written, and writes it over its own."""
        region = self.region()
        self._own("write", region, 4)
        if not self.lacks():
            self.meet()
        first = tuple(range(self.block))
        for rank in range(self.ranks):
            self.access("read", first, (0, rank), region, 4, (1, 0, self.block))
        if not self.lacks(0.3):
            self.block_barrier((0,))
        shift = self.rng.choice((0, 0, 1))
        self.access("write", first, (0, 0), region, 4, (1, shift, self.block))

    def push(self) -> None:
        """Each block writes into a neighbour's inbox, which that one reads; its own threads wrote there before."""
        region, to = self.region(), (1, self.rng.randrange(1, self.ranks))
        if self.rng.random() < 0.5:
            self._own(self.rng.choice(("read", "write")), region, 4)
            if not self.lacks():
                self.meet()
        self.access("write", self.thread_count, to, region, 4, (1, 0, self.block))
        if not self.lacks():
            self.meet()
        self._own("read", region, 4, self.rng.choice((0, 1)))

    def local_rounds(self) -> None:
        """Blocks work on their own memory between barriers of their own; one that looks on is not ordered by these."""
        region = self.region()
        for _ in range(self.rng.randint(1, 3)):
            self._own("write", region, 4)
            if not self.lacks(0.15):
                self.block_barrier()
            self._own("read", region, 4, self.rng.choice((1, 32)))
            if not self.lacks(0.15):
                self.block_barrier()
        if self.rng.random() < 0.6:
            if not self.lacks():
                self.meet()
            kind = self.rng.choice(("read", "write", "atomic"))
            to = (0, self.rng.randrange(self.ranks)) if kind != "write" else (1, 1)
            self.access(kind, self.some(self.thread_count), to, region, 4, (1, 0, self.block))

    def _halves(self) -> tuple[int, list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Return where the first warps of a block end, and by rank the threads of these and of the others."""
        half = self.block // WARP // 2 * WARP
        starts = range(0, len(self.thread_count), self.block)
        return (
            half,
            [tuple(range(start, start + half)) for start in starts],
            [tuple(range(start + half, start + self.block)) for start in starts],
        )

    def _of_half(self, kind: str, region: int, half: int, *, first: bool, to: tuple[int, int] = (1, 0)) -> None:
        """Half of each block's threads access; the line stands under a condition on `t`."""
        _, low, high = self._halves()
        threads = tuple(thread for part in (low if first else high) for thread in part)
        self.access(kind, threads, to, region, 4, (1, 0 if first else self.rng.choice((0, 5)), half), condition=(
            f"t < {half}" if first else f"t >= {half}"
        ))  # fmt: skip

    def hand_over(self) -> None:
        """In each block warps that produce arrive at a named barrier, and those that consume wait there."""
        region, (half, low, high) = self.region(), self._halves()
        early = self.lacks()
        if not early:
            self._of_half("write", region, half, first=True)
        for word, parts in (("arrive", low), ("sync", high)):
            for rank, part in enumerate(parts):
                self.program.steps.append(Step("arrive" if word == "arrive" else "named", part, number=100 + rank))
            test = f"t < {half}" if word == "arrive" else f"t >= {half}"
            text = f'asm volatile("bar.{word} 9, {self.block};" ::: "memory");'
            self.program.lines.append(f"if ({test}) {{ {text} }}")
            if word == "arrive" and early:
                self._of_half("write", region, half, first=True)
        to = (1, self.rng.randrange(self.ranks)) if self.defect else (1, 0)
        self._of_half("read", region, half, first=False, to=to)

    def object(self) -> None:
        """The same with a barrier object in each block, and threads that go apart within their warps."""
        region, (half, low, high) = self.region(), self._halves()
        self.program.arrivals = half
        self._of_half("write", region, half, first=True)
        for rank, part in enumerate(low):
            self.program.steps.append(Step("mb_arrive", part, number=rank))
        arrives = '"{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }"'
        self.program.lines.append(f'if (t < {half}) asm volatile({arrives} :: "r"(at(&object)) : "memory");')
        if not self.lacks(0.3):
            stride = self.rng.choice((1, 1, 2))
            for rank, part in enumerate(high):
                self.program.steps.append(Step("mb_wait", part[::stride], number=rank))
            self.program.lines.append(
                f"if (t >= {half} && (t - {half}) % {stride} == 0) {{ unsigned d; do asm volatile("
                '"{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }" '
                ': "=r"(d) : "r"(at(&object)) : "memory"); while (!d); }'
            )
            if stride > 1 and not self.lacks():
                for part in high:
                    for low_ in range(part[0], part[-1] + 1, WARP):
                        self.program.steps.append(Step("warp", tuple(range(low_, low_ + WARP))))
                self.program.lines.append(f"if (t >= {half}) __syncwarp();")
        self._of_half("read", region, half, first=False)
        if self.rng.random() < 0.5:
            if not self.lacks():
                self.meet()
            self.access("read", self.some(self.thread_count), (1, 1), region, 4, (1, 0, half))

    def adding(self) -> None:
        """All add into one block's sums, which it reads once they have met."""
        region, target = self.region(), self.rng.randrange(self.ranks)
        owner = tuple(range(target * self.block, (target + 1) * self.block))
        if self.rng.random() < 0.5:
            self.access("write", owner, (0, target), region, 4, (1, 0, self.block))
            if not self.lacks():
                self.meet()
        self.access(
            "atomic", self.some(self.thread_count), (0, target), region, 4, (1, 0, self.rng.choice((1, self.block)))
        )
        if not self.lacks():
            self.meet()
        self.access("read", self.some(owner), (0, target), region, 4, (1, 0, self.block))

    def scattered(self) -> None:
        """Some threads read or write words of any block, with barriers of blocks and of the cluster between."""
        region = self.region()
        for _ in range(self.rng.randint(2, 4)):
            kind, some = self.rng.choice(("read", "read", "write")), self.some(self.thread_count)
            one = len(some) == 1 or kind == "read"
            to = (0, self.rng.randrange(self.ranks)) if one else (1, self.rng.randrange(self.ranks))
            self.access(kind, some, to, region, 4, (1, self.rng.choice((0, 3)), self.block))
            if self.defect:
                self.rng.choice((self.meet, self.block_barrier, lambda: None))()
            else:
                self.meet()

    def flag(self) -> None:
        """One thread writes and publishes in another block; threads of one block wait for it and read."""
        region, number = self.region(), self.program.flags
        self.program.flags += 1
        writer = self.rng.choice((0, 5, self.block, len(self.thread_count) - 1))
        home, holder = self.rng.randrange(self.ranks), self.rng.randrange(self.ranks)
        self.access("write", (writer,), (0, home), region, 4, (0, 2, 8))
        how = self.rng.choice(("release", "relaxed"))
        if how == "relaxed" and not self.lacks(0.4):
            self.fence((writer,), near=self.lacks(0.3))
        if self.lacks(0.2):
            self.access("write", (writer,), (0, home), region, 4, (0, 2, 8))
        self.signal(number, writer, holder, how, near=self.lacks(0.3))
        readers = tuple(thread for thread in self.some(self.thread_count) if thread // WARP != writer // WARP)
        if not readers or (len(readers) > 1 and readers != tuple(range(readers[0], readers[-1] + 1, _stride(readers)))):
            readers = (WARP + 3,) if writer < WARP else (3,)
        self.wait_for(number, readers, holder, near=self.lacks(0.3))
        self.access("read", readers, (0, home), region, 4, (0, 2, 8))


def _stride(threads: tuple[int, ...]) -> int:
    return threads[1] - threads[0]


def draw(seed: int, space: str) -> Program:
    """Return the program of a seed."""
    return Drawing(seed, space).draw()
