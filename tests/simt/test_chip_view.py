"""A kernel reads of the simulated chip what it would read of the chip."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from simt_tools import module_of

from evokern import simt
from evokern.hardware.profiles import CHIPS, chip
from evokern.simt.chip_view import EPOCH_NS, LAUNCH_CYCLES

SOURCE = """
#define UNROLL 1
extern "C" __global__ void kernel(unsigned long long* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned smid, nsmid, warp, nwarp, low, high, timer_low, timer_high;
  unsigned long long grid, clock, timer;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(smid));
  asm volatile("mov.u32 %0, %%nsmid;" : "=r"(nsmid));
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
  asm volatile("mov.u32 %0, %%nwarpid;" : "=r"(nwarp));
  asm volatile("mov.u64 %0, %%gridid;" : "=l"(grid));
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(clock));
  asm volatile("mov.u32 %0, %%clock;" : "=r"(low));
  asm volatile("mov.u32 %0, %%clock_hi;" : "=r"(high));
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(timer));
  asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(timer_low));
  asm volatile("mov.u32 %0, %%globaltimer_hi;" : "=r"(timer_high));
  unsigned work = smid;
  #pragma unroll UNROLL
  for (int n = 0; n < 50; n++) { work = work * 1664525u + clock; asm volatile("" : "+r"(work)); }
  unsigned long long later;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(later));
  const unsigned long long found[] = {smid, nsmid, warp, nwarp, grid, clock, low, high, timer, timer_low, timer_high,
                                      later, work};
  for (int n = 0; n < 13; n++) out[i * 13 + n] = found[n];
}"""
NAMES = ("smid", "nsmid", "warpid", "nwarpid", "gridid", "clock", "low", "high", "timer", "timer_low", "timer_high",
         "later", "work")  # fmt: skip
BLOCKS, THREADS = 300, 160


@dataclass
class Simulated:
    """A chip with its memory."""

    name: str
    memory: simt.Memory = field(default_factory=simt.Memory)

    def launch(self, source: str = SOURCE, beside: int = 1, **options: object) -> list[dict[str, np.ndarray]]:
        """Return what each thread of launches side by side read, by register: [blocks, threads] each."""
        out = [[self.memory.allocate("out", np.zeros((BLOCKS, THREADS, len(NAMES)), np.uint64))] for _ in range(beside)]
        results = simt.launch_many(
            module_of(source),
            simt.LaunchSpec("kernel", (BLOCKS, 1, 1), (THREADS, 1, 1)),
            out,
            self.memory,
            simt.LaunchOptions(chip=chip(self.name), **options),
        )  # type: ignore[arg-type]
        assert all(result.completed for result in results)
        return [dict(zip(NAMES, np.moveaxis(one.read(), 2, 0), strict=True)) for (one,) in out]


@pytest.mark.parametrize(("name", "warps"), [("l4", 48), ("h100", 64), ("h200", 64)])
def test_sms_and_warps_are_those_of_the_chip(name: str, warps: int) -> None:
    """`%nsmid`, `%nwarpid` and `%smid` are the profile's; each SM gets blocks in turn, none more than one too many."""
    (read,) = Simulated(name).launch(count=False, sanitize=False)
    sms = CHIPS[name].sms
    assert {sms} == set(read["nsmid"].flat)
    assert {warps} == set(read["nwarpid"].flat)
    assert (read["warpid"] == np.arange(THREADS) // 32).all()
    assert (read["smid"] == read["smid"][:, :1]).all()  # a block stays where it is
    shares = np.bincount(read["smid"][:, 0].astype(np.int64), minlength=sms)
    assert sms == len(shares)
    assert {BLOCKS // sms, -(-BLOCKS // sms)} == set(shares)


@pytest.fixture(scope="module")
def launches() -> list[dict[str, np.ndarray]]:
    """What two launches after another read, in batches of some blocks."""
    simulated = Simulated("h200")
    return [simulated.launch(batch_blocks=16, sanitize=False)[0] for _ in range(2)]


def test_clocks_go_on_within_a_thread_over_blocks_and_launches(launches: list[dict[str, np.ndarray]]) -> None:
    """Time passes between two readings, for a later batch of blocks, and for the next launch."""
    first, second = launches
    for read in launches:
        assert (read["later"] > read["clock"] + 50 * 32).all()
        assert (np.diff(read["clock"][::16, 0].astype(np.int64)) > 0).all()
        assert (read["clock"][:, -1] > read["clock"][:, 0]).all()  # the last warp has its turn after the first
    assert second["clock"].min() > first["later"].max() + LAUNCH_CYCLES // 2
    assert second["timer"].min() > first["timer"].max()
    assert (second["gridid"] == first["gridid"] + 1).all()
    assert 1 == len(np.unique(first["gridid"]))


def test_time_passes_in_straight_code_too() -> None:
    """Fifty steps one after the other take as long as in a loop, but for its branches."""
    (read,) = Simulated("l4").launch(SOURCE.replace("UNROLL 1", "UNROLL"), sanitize=False)
    assert (read["later"] > read["clock"] + 50 * 32).all()


def test_clocks_agree_with_each_other(launches: list[dict[str, np.ndarray]]) -> None:
    """Halves are halves of the whole; the timer runs in ns of Unix time where the clock runs in the chip's cycles."""
    for read in launches:
        assert (read["high"] == read["clock"] >> np.uint64(32)).all()
        assert (read["low"] - (read["clock"] & np.uint64(0xFFFFFFFF)) < 1000).all()
        assert (read["timer_high"] == read["timer"] >> np.uint64(32)).all()
        assert (read["timer_low"] - (read["timer"] & np.uint64(0xFFFFFFFF)) < 1000).all()
        assert (read["timer"] > EPOCH_NS).all()
        assert (read["clock"] > 10**9).all()  # a chip is not switched on for a launch
    cycles = float(launches[1]["clock"].max() - launches[0]["clock"].min())
    passed = float(launches[1]["timer"].max() - launches[0]["timer"].min())
    assert passed == pytest.approx(cycles / CHIPS["h200"].clock_mhz * 1000, abs=1000)


def test_launches_side_by_side_read_what_they_would_one_after_the_other() -> None:
    """They have numbers of their own, and each begins after the one before it."""
    first, second = Simulated("l4").launch(beside=2, sanitize=False, count=False)
    assert (second["gridid"] == first["gridid"] + 1).all()
    assert second["clock"].min() > first["clock"].min() + LAUNCH_CYCLES // 2


def test_a_run_repeats() -> None:
    """The same program reads the same again on a new chip; another program finds clocks that began elsewhere."""
    first, again = (Simulated("l4").launch(sanitize=False)[0] for _ in range(2))
    assert all((first[name] == again[name]).all() for name in NAMES)
    other = Simulated("l4").launch(SOURCE.replace("1664525u", "22695477u"), sanitize=False)[0]
    assert abs(float(other["clock"].min()) - float(first["clock"].min())) > 10**9
    assert abs(float(other["timer"].min()) - float(first["timer"].min())) > 10**9


def test_a_chip_is_taken_that_fits_where_none_is_given() -> None:
    """A launch without a chip shows one that its PTX was made for."""
    source = """extern "C" __global__ void kernel(unsigned* out) {
      asm volatile("mov.u32 %0, %%nsmid;" : "=r"(*out)); }"""
    memory = simt.Memory()
    out = memory.allocate("out", np.zeros(1, np.uint32))
    module = module_of(source)
    simt.launch(module, simt.LaunchSpec("kernel", (1, 1, 1), (1, 1, 1)), [out], memory)
    assert out.read()[0] in {one.sms for one in CHIPS.values() if one.architecture == module.target.rstrip("a")}
