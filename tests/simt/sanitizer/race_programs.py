"""Random programs of one block: what threads do to shared memory, with the synchronisation they need, or a part of it.

A program is some patterns of real kernels one after the other, each with places, widths and members drawn. Half of them
lack something: a barrier, a fence, a buffer. What that makes of them is for `race_oracle` to say.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from race_oracle import WARP, Step

REGION = 1024
REGIONS = 4
PTX = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
C = {1: "unsigned", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
PRELUDE = """
__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
"""


@dataclass
class Program:
    """A drawn program: what the oracle reads, and the CUDA that says the same."""

    seed: int
    threads: int
    space: str = "shared"
    steps: list[Step] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    expected: dict[int, int] = field(default_factory=dict)
    flags: int = 0
    names: list[str] = field(default_factory=list)

    @property
    def entry(self) -> str:
        """The kernel's name."""
        return f"p{self.seed}"

    def text(self) -> str:
        """Return the kernel."""
        init = "".join(
            f'    asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(at(&objects[{number}])), "r"({count}) '
            ': "memory");\n'
            for number, count in self.expected.items()
        )
        memory, base = f"__shared__ __align__(16) unsigned char m[{REGION * REGIONS}];", "unsigned base = at(m)"
        if self.space == "global":
            memory, base = "unsigned char* const m = scratch;", "unsigned long long base = (unsigned long long)m"
        body = "\n".join(f"  {line}" for line in self.lines)
        return (
            f'extern "C" __global__ void __launch_bounds__({self.threads}) {self.entry}('
            f"unsigned* out, unsigned char* scratch) {{\n"
            f"  {memory}\n"
            f"  __shared__ unsigned long long objects[8];\n  __shared__ unsigned flags[16];\n"
            f"  const int t = threadIdx.x; unsigned acc = 0, ticket = 0; const {base};\n"
            f"  for (int i = t; i < {REGION * REGIONS // 4}; i += {self.threads}) ((unsigned*)m)[i] = 0;\n"
            f"  if (t < 16) flags[t] = 0;\n  if (t == 0) {{\n{init}  }}\n  __syncthreads();\n"
            f"{body}\n  out[t] = acc + ticket;\n}}\n"
        )


def only(threads: tuple[int, ...], what: str, index: str) -> str:
    """Return CUDA that some threads do alone, one in so many of a range; `index` names a thread's number."""
    low, high = threads[0], threads[-1] + 1
    stride = threads[1] - threads[0] if len(threads) > 1 else 1
    assert threads == tuple(range(low, high, stride))
    test = f"{index} >= {low} && {index} < {high}" + (f" && ({index} - {low}) % {stride} == 0" if stride > 1 else "")
    return f"if ({test}) {{ {what} }}"


class Drawing:
    """Draws one program."""

    def __init__(self, seed: int, space: str) -> None:
        self.rng, self.space = random.Random(seed), space
        self.threads = self.rng.choice((64, 96, 128))
        self.program = Program(seed, self.threads, space)
        self.thread_count = tuple(range(self.threads))
        self.defect = self.rng.random() < 0.6
        self.regions = list(range(REGIONS))

    # ---- steps

    def _add(self, step: Step, line: str) -> None:
        self.program.steps.append(step)
        self.program.lines.append(line)

    def _if(self, threads: tuple[int, ...], what: str) -> str:
        return what if threads == self.thread_count else only(threads, what, "t")

    def access(
        self, kind: str, threads: tuple[int, ...], region: int, width: int, place: tuple[int, int, int], *,
        last_only: bool = False,
    ) -> None:  # fmt: skip
        """Add an access to element (t * factor + shift) % modulus of a region."""
        factor, shift, modulus = place
        start = region * REGION

        def where(thread: int) -> int:
            return start + (thread * factor + shift) % modulus * width

        address = f"base + {start} + (unsigned)((t * {factor} + {shift}) % {modulus}) * {width}"
        number, space, pointer = len(self.program.lines), self.space, "r" if self.space == "shared" else "l"
        constraint = {8: "l", 2: "h"}.get(width, "r")
        if kind == "read":
            what = (
                f'{{ {C[width]} v; asm volatile("ld.{space}.{PTX[width]} %0, [%1];" : "={constraint}"(v) '
                f': "{pointer}"({address}) : "memory"); acc += (unsigned)v; }}'
            )
        elif kind == "write":
            value = "t" if width == 1 else f"t + {256 * (number % 200 + 1)}"
            what = (
                f'asm volatile("st.{space}.{PTX[width]} [%0], %1;" :: "{pointer}"({address}), '
                f'"{constraint}"(({C[width]})({value})) : "memory");'
            )
        else:
            what = f'asm volatile("red.{space}.add.u32 [%0], %1;" :: "{pointer}"({address}), "r"(1) : "memory");'
        line = f"if (ticket == {len(threads) - 1}) {{ {what} }}" if last_only else self._if(threads, what)
        self._add(Step(kind, threads, where, width, last_only=last_only), line)

    def block_barrier(self) -> None:
        """All threads meet."""
        self._add(Step("bar", self.thread_count), "__syncthreads();")

    def warp_barrier(self, threads: tuple[int, ...], lanes: int = WARP) -> None:
        """Threads meet within their warps, or within groups of so many lanes."""
        for low in range(threads[0] // lanes * lanes, threads[-1] + 1, lanes):
            members = tuple(range(low, low + lanes))
            self.program.steps.append(Step("warp", members))
        mask = f"{(1 << lanes) - 1:#x}u << ((t & 31) / {lanes} * {lanes})"
        self.program.lines.append(self._if(threads, f"__syncwarp({mask});" if lanes < WARP else "__syncwarp();"))

    def named(self, number: int, threads: tuple[int, ...], count: int, *, waits: bool) -> None:
        """Whole warps meet, or pass, at a barrier of so many threads."""
        word = "sync" if waits else "arrive"
        text = f'asm volatile("bar.{word} %0, %1;" :: "r"({number}), "r"({count}) : "memory");'
        self._add(Step("named" if waits else "arrive", threads, number=number), self._if(threads, text))

    def arrive_at(self, number: int, threads: tuple[int, ...]) -> None:
        """Threads arrive at a barrier object."""
        text = (
            'asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" :: '
            f'"r"(at(&objects[{number}])) : "memory");'
        )
        self._add(Step("mb_arrive", threads, number=number), self._if(threads, text))

    def wait_at(self, number: int, threads: tuple[int, ...], parity: int) -> None:
        """Threads wait for the end of a barrier object's phase."""
        text = (
            'unsigned d; do asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; '
            f'selp.u32 %0, 1, 0, p; }}" : "=r"(d) : "r"(at(&objects[{number}])), "r"({parity}) : "memory"); while (!d);'
        )
        self._add(Step("mb_wait", threads, number=number), self._if(threads, f"{{ {text} }}"))

    def fence(self, threads: tuple[int, ...]) -> None:
        """Threads fence."""
        self._add(Step("fence", threads), self._if(threads, "__threadfence_block();"))

    def signal(self, number: int, thread: int, how: str) -> None:
        """A thread sets a flag: `release`, `relaxed` or `atomic`."""
        text = (
            f"atomicExch(&flags[{number}], 1u);"
            if how == "atomic"
            else f'asm volatile("st.{how}.cta.shared.u32 [%0], 1;" :: "r"(at(&flags[{number}])) : "memory");'
        )
        release = "release" if how == "release" else "relaxed"
        self._add(Step("signal", (thread,), number=number, release=release), self._if((thread,), text))

    def wait_for(self, number: int, threads: tuple[int, ...], how: str) -> None:
        """Threads wait for a flag: `acquire` or `atomic`."""
        if how == "atomic":
            text = f"while (atomicAdd(&flags[{number}], 0u) == 0) ;"
        else:
            text = (
                'unsigned f; do asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(f) : "r"(at(&flags['
                f'{number}])) : "memory"); while (!f);'
            )
        self._add(Step("await", threads, number=number), self._if(threads, f"{{ {text} }}"))

    def tickets(self, number: int, threads: tuple[int, ...]) -> None:
        """Threads draw tickets, in the order of their numbers."""
        text = f"ticket = atomicAdd(&flags[{number}], 1u);"
        self._add(Step("ticket", threads, number=number, release="relaxed"), self._if(threads, text))

    # ---- what is drawn

    def lacks(self, chance: float = 0.5) -> bool:
        """Say whether something is left out here."""
        return self.defect and self.rng.random() < chance

    def warps(self, least: int = 1) -> tuple[int, ...]:
        """Return the threads of some warps side by side."""
        count = self.threads // WARP
        size = self.rng.randint(min(least, count), count)
        first = self.rng.randint(0, count - size)
        return tuple(range(first * WARP, (first + size) * WARP))

    def some(self, within: tuple[int, ...]) -> tuple[int, ...]:
        """Return some of the threads: a range, at times every second or fourth of it."""
        low = self.rng.choice([within[0], self.rng.choice(within)])
        high = self.rng.choice([within[-1], self.rng.choice(within)])
        low, high = min(low, high), max(low, high)
        return tuple(range(low, high + 1, self.rng.choice((1, 1, 1, 2, 4))))

    def region(self) -> int:
        """Return a region that no other pattern uses."""
        return self.regions.pop(self.rng.randrange(len(self.regions)))

    def draw(self) -> Program:
        """Return the program."""
        patterns: list[Callable[[], None]] = [
            self.exchange, self.broadcast, self.double_buffer, self.hand_over, self.objects, self.flag, self.counting,
            self.narrow, self.within_warp, self.last_arriver, self.bystander, self.overwriting, self.reset,
        ]  # fmt: skip
        for pattern in self.rng.sample(patterns, self.rng.choice((1, 1, 2))):
            self.program.names.append(pattern.__name__)
            pattern()
            if self.rng.random() < 0.3:
                self.block_barrier()
        return self.program

    # ---- patterns

    def exchange(self) -> None:
        """Threads of some warps write, meet, and read what another one wrote; more than once."""
        region, group = self.region(), self.warps(2)
        width, size = self.rng.choice((4, 4, 8)), len(group)
        whole = len(group) == self.threads
        for _ in range(self.rng.randint(1, 3)):
            shift = self.rng.choice((0, 1, 31, 32, 33))
            self.access("write", group, region, width, (1, -group[0] + size, size))
            if not self.lacks():
                self._meet(group, whole)
            self.access("read", group, region, width, (1, shift - group[0] + size, size))
            if not self.lacks():
                self._meet(group, whole)

    def _meet(self, group: tuple[int, ...], whole: bool) -> None:
        if whole and self.rng.random() < 0.5:
            self.block_barrier()
        else:
            self.named(1 + len(self.program.lines) % 7, group, len(group), waits=True)

    def broadcast(self) -> None:
        """Some read one word, by several instructions; one of them, or another, writes it."""
        region = self.region()
        one = self.rng.choice((0, 1, 31, 32, 63, self.threads - 1))
        for _ in range(self.rng.randint(1, 2)):
            for _ in range(self.rng.randint(1, 2)):
                self.access("read", self.some(self.thread_count), region, 4, (0, 3, 4))
            for _ in range(self.rng.randint(0, 3)):
                self.access("read", (one,), region, 4, (0, 3, 4))
            if not self.lacks(0.7):
                self.block_barrier()
            self.access("write", (one,), region, 4, (0, 3, 4))
            if not self.lacks(0.3):
                self.block_barrier()

    def double_buffer(self) -> None:
        """One barrier a round does with two buffers, and not with one."""
        regions = [self.region(), self.region()] if len(self.regions) > 1 else [self.region()]
        single = self.lacks(0.5) or len(regions) == 1
        for turn in range(self.rng.randint(2, 4)):
            region = regions[0] if single else regions[turn % 2]
            self.access("write", self.thread_count, region, 4, (1, 0, self.threads))
            if not self.lacks(0.15):
                self.block_barrier()
            self.access("read", self.thread_count, region, 4, (1, self.rng.choice((1, 32, 40)), self.threads))
            if len(regions) == 1:
                self.block_barrier()

    def hand_over(self) -> None:
        """Warps that produce arrive and go on; those that consume wait."""
        region = self.region()
        half = self.threads // WARP // 2 * WARP
        producers, consumers = tuple(range(half)), tuple(range(half, self.threads))
        early = self.lacks()
        if early:
            self.named(9, producers, self.threads, waits=False)
        self.access("write", producers, region, 4, (1, 0, half))
        if not early:
            self.named(9, producers, self.threads, waits=False)
        self.named(9, consumers, self.threads, waits=True)
        self.access("read", consumers, region, 4, (1, 5, half))
        if self.rng.random() < 0.5:
            if not self.lacks():
                self.named(10, consumers, self.threads, waits=False)
                self.named(10, producers, self.threads, waits=True)
            self.access("write", producers, region, 4, (1, 0, half))

    def objects(self) -> None:
        """The same with barrier objects, and arrivals of every thread or of one a warp."""
        region = self.region()
        half = self.threads // WARP // 2 * WARP
        producers, consumers = tuple(range(half)), tuple(range(half, self.threads))
        elected = self.rng.random() < 0.5
        arriving = tuple(range(0, half, WARP)) if elected else producers
        leaving = consumers if self.rng.random() < 0.5 else (consumers[0],)
        full, empty = 0, 1
        self.program.expected |= {full: len(arriving), empty: len(leaving)}
        for turn in range(self.rng.randint(1, 2)):
            self.access("write", producers, region, 4, (1, 0, half))
            if elected and not self.lacks(0.3):
                self.warp_barrier(producers)
            self.arrive_at(full, arriving)
            if not self.lacks(0.3):
                self.wait_at(full, consumers, turn % 2)
            self.access("read", consumers, region, 4, (1, self.rng.choice((0, 7, 32)), half))
            if len(leaving) == 1 and not self.lacks(0.3):
                self.named(11, consumers, len(consumers), waits=True)
            self.arrive_at(empty, leaving)
            if not self.lacks(0.4):
                self.wait_at(empty, producers, turn % 2)

    def flag(self) -> None:
        """One thread writes and publishes; others wait for it and read."""
        region, number = self.region(), self.program.flags
        self.program.flags += 1
        writer = self.rng.choice((0, 5, self.threads - 1))
        readers = tuple(t for t in self.some(self.thread_count) if t // WARP != writer // WARP)
        if len(readers) < 1 or readers != tuple(range(readers[0], readers[-1] + 1, _stride(readers))):
            readers = (WARP + 3,) if writer < WARP else (3,)
        self.access("write", (writer,), region, 4, (0, 2, 8))
        late = self.lacks(0.3)
        how = self.rng.choice(("release", "relaxed", "atomic"))
        if how != "release" and not self.lacks(0.4):
            self.fence((writer,))
        if late:
            self.access("write", (writer,), region, 4, (0, 2, 8))
        self.signal(number, writer, how)
        if not self.lacks(0.2):
            self.wait_for(number, readers, self.rng.choice(("acquire", "atomic")))
        self.access("read", readers, region, 4, (0, 2, 8))

    def counting(self) -> None:
        """A word is set, updated atomically by many, and read; whoever sets or reads it may update it as well."""
        region, one = self.region(), self.rng.choice((0, 33))
        self.access("write", (one,), region, 4, (0, 1, 2))
        if self.rng.random() < 0.5:
            self.access("atomic", (one,), region, 4, (0, 1, 2))
        if not self.lacks(0.4):
            self.block_barrier()
        self.access("atomic", self.some(self.thread_count), region, 4, (0, 1, 2))
        if self.rng.random() < 0.5:
            self.access("atomic", (one,), region, 4, (0, 1, 2))
        if not self.lacks(0.4):
            self.block_barrier()
        self.access("read", (one,) if self.rng.random() < 0.5 else self.some(self.thread_count), region, 4, (0, 1, 2))

    def bystander(self) -> None:
        """Two groups hand data over; a third one's data are there as well, and it may not have arrived."""
        region = self.region()
        self.access("write", self.thread_count, region, 4, (1, 0, self.threads))
        group = self.thread_count[WARP:] if self.lacks(0.6) else self.thread_count
        if self.rng.random() < 0.5:
            self.program.expected[2] = len(group)
            self.arrive_at(2, group)
            self.wait_at(2, self.thread_count[WARP:], 0)
        else:
            self.named(12, group, len(group), waits=True)
        self.access("read", self.thread_count[WARP:], region, 4, (1, self.rng.choice((0, 32, 50)), self.threads))

    def narrow(self) -> None:
        """Bytes and halves of one word belong to different threads; whoever reads the word has to wait."""
        region, width = self.region(), self.rng.choice((1, 2))
        modulus = self.threads if not self.lacks(0.3) else self.threads // 2
        self.access("write", self.thread_count, region, width, (1, 0, modulus))
        if self.rng.random() < 0.5:
            self.access("read", self.thread_count, region, width, (1, 0, self.threads))
        if not self.lacks(0.5):
            self.block_barrier()
        wide = self.rng.choice((2, 4, 8))
        self.access("read", self.some(self.thread_count), region, wide, (1, 0, self.threads * width // wide))

    def within_warp(self) -> None:
        """Lanes of a warp, or of a part of it, exchange what they wrote."""
        region, group = self.region(), self.warps()
        lanes = self.rng.choice((32, 32, 16, 8))
        for _ in range(self.rng.randint(1, 2)):
            self.access("write", group, region, 4, (1, 0, self.threads))
            if not self.lacks():
                self.warp_barrier(group, self.rng.choice((4, lanes)) if self.lacks(0.4) else lanes)
            # lane ^ (lanes - 1), and so within the part: written as a sum, place by place
            for step in range(1 if lanes == 8 else 2):
                shift = lanes // 2 >> step
                half = tuple(t for t in group if t % lanes < shift)
                low = tuple(range(half[0], half[0] + shift))
                self.access("read", low, region, 4, (1, shift, self.threads))
            if not self.lacks():
                self.warp_barrier(group, lanes)

    def overwriting(self) -> None:
        """Words are written again by other threads, of the same warp or not, whole or in parts."""
        region, width = self.region(), self.rng.choice((1, 2, 4, 8))
        self.access("write", self.thread_count, region, width, (1, 0, self.threads))
        shift = self.rng.choice((0, 1, 5, 32))
        near = shift < WARP and self.rng.random() < 0.5
        if not self.lacks(0.7):
            self._near_or_far(near)
        again = self.rng.choice([again for again in (1, 2, 4, 8) if again >= width])
        places = self.threads * width // again
        writers = tuple(range(8)) if near else self.some(self.thread_count[:places])
        self.access("write", writers, region, again, (1, shift * width // again, places))
        if not self.lacks(0.7):
            self._near_or_far(near)
        self.access("read", writers[:1], region, width, (0, shift, self.threads))

    def _near_or_far(self, near: bool) -> None:
        if near:
            self.warp_barrier(self.thread_count)
        else:
            self.block_barrier()

    def reset(self) -> None:
        """A counter is counted up, read and set back in any order, each by some threads."""
        region, one = self.region(), self.rng.choice((0, 7, 40))
        near = self.rng.random() < 0.5
        counting = self.some(tuple(range(one // WARP * WARP, one // WARP * WARP + WARP)) if near else self.thread_count)
        self.access("write", (one,), region, 4, (0, 1, 2))
        for _ in range(self.rng.randint(1, 2)):
            acts = [("atomic", counting), ("read", self.some(counting)), ("write", (one,))]
            for kind, threads in self.rng.sample(acts, self.rng.randint(2, 3)):
                if not self.lacks(0.6):
                    self._near_or_far(near)
                self.access(kind, threads, region, 4, (0, 1, 2))

    def last_arriver(self) -> None:
        """Every thread writes, fences, and draws a ticket; the last one reads everything."""
        region, number = self.region(), self.program.flags
        self.program.flags += 1
        self.access("write", self.thread_count, region, 4, (1, 0, self.threads))
        if not self.lacks(0.7):
            self.fence(self.thread_count)
        self.tickets(number, self.thread_count)
        for place in self.rng.sample(range(self.threads), 3):
            self.access("read", self.thread_count, region, 4, (0, place, self.threads), last_only=True)


def _stride(threads: tuple[int, ...]) -> int:
    return threads[1] - threads[0] if len(threads) > 1 else 1


def draw(seed: int, space: str = "shared") -> Program:
    """Return the program of a seed, its data in shared or in global memory."""
    return Drawing(seed, space).draw()
