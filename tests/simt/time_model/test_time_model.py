"""The time model: more work, more conflicts or fewer SMs never make a kernel faster; terms add up; sampling is fair."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import simt_tools
from hypothesis import given
from hypothesis import strategies as st

from evokern import simt
from evokern.hardware.profiles import CHIPS, Profile, chip
from evokern.simt.time_model import prediction as timemodel
from evokern.simt.time_model.latencies import latencies_of
from evokern.simt.time_model.pipes import PipeUse, demands, holds
from evokern.simt.time_model.placement import GridWork
from evokern.simt.time_model.timeline import Timeline

SOURCE = r"""
extern "C" __global__ void walk(const float* x, float* y, int n, int steps) {
  __shared__ float tile[32 * 33];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0.f;
  for (int s = 0; s < steps; s++) {
    tile[threadIdx.x * STRIDE % 1024] = x[i % n] + s;
    __syncthreads();
    sum += tile[(threadIdx.x ^ 1) * STRIDE % 1024];
    __syncthreads();
  }
  if (i < n) y[i] = sum;
}
"""


def _facts(stride: int, steps: int, blocks: int = 64) -> timemodel.LaunchFacts:
    module = simt_tools.module_of(SOURCE, (f"-DSTRIDE={stride}",))
    memory = simt.Memory()
    x, y = (memory.allocate(name, np.zeros(32 * blocks, np.float32)) for name in "xy")
    args = [x, y, np.int32(32 * blocks), np.int32(steps)]
    chosen = timemodel.sample_blocks(blocks, 3)
    result = simt.launch(
        module,
        simt.LaunchSpec("walk", (blocks, 1, 1), (32, 1, 1), blocks=chosen),
        args,
        memory,
        simt.LaunchOptions(sanitize=False),
    )
    counters = result.counters
    assert counters is not None
    latencies, h200 = latencies_of(chip("h200")), chip("h200")
    program = module.program("walk")
    timeline = Timeline(
        program, latencies, counters.conflicts(), latencies.l2,
        PipeUse(holds(program, counters, h200), demands(program, counters, h200)),
    )  # fmt: skip
    (walk,) = (timeline.walk(record, counters.warps_per_block) for record in counters.record)
    mean = sum(walk.blocks) / len(walk.blocks)
    return timemodel.LaunchFacts(
        blocks=blocks, resident=8, counters=counters, block_clocks=mean, longest_clocks=max(walk.blocks),
        pipe_wait_clocks=walk.waits["pipes"], working_set_bytes=0.0, unique_bytes=1e6,
    )  # fmt: skip


def test_more_steps_take_longer_in_proportion() -> None:
    """Four times the steps take between three and five times as long, launch aside."""
    launch = latencies_of(chip("h200")).launch_us
    short, long = (timemodel.predict(_facts(1, steps), chip("h200")).time_us - launch for steps in (50, 200))
    assert 3.0 < long / short < 5.0


def test_bank_conflicts_make_shared_memory_the_bound() -> None:
    """A stride of 32 words is a 32-way conflict, which counts in wavefronts and in time."""
    free, conflicting = _facts(1, 50), _facts(32, 50)
    assert conflicting.counters.shared_wavefronts.sum() > 20 * free.counters.shared_wavefronts.sum()
    assert timemodel.predict(conflicting, chip("h200")).time_us > timemodel.predict(free, chip("h200")).time_us


@pytest.mark.parametrize("name", CHIPS)
def test_every_chip_predicts(name: str) -> None:
    """Each chip gives a time above its launch cost, and a bound that has a name."""
    prediction = timemodel.predict(_facts(1, 10), chip(name))
    assert prediction.time_us > latencies_of(chip(name)).launch_us
    assert prediction.cause in set(timemodel.CAUSES.values())


@given(blocks=st.integers(1, 5000), fewer=st.integers(1, 60))
def test_fewer_sms_are_never_faster(blocks: int, fewer: int) -> None:
    """Taking SMs away never shortens the predicted time."""
    facts = replace(_FACTS, blocks=blocks)
    whole: Profile = chip("h200")
    part = replace(whole, sms=fewer)
    assert timemodel.predict(facts, part).time_us >= timemodel.predict(facts, whole).time_us * 0.999


@given(blocks=st.integers(1, 5000), more=st.integers(1, 2000), resident=st.integers(1, 8))
def test_more_blocks_are_never_faster(blocks: int, more: int, resident: int) -> None:
    """Blocks of the same work add to the time or fit beside the others, also where the last wave is less crowded."""
    h200 = chip("h200")

    def time_us(number: int) -> float:
        # As in a walk whose pipes are full: a block takes as many times as long as it meets blocks.
        clocks = _FACTS.block_clocks * timemodel.contention_factor(number, resident, h200)
        facts = replace(_FACTS, blocks=number, resident=resident, block_clocks=clocks, longest_clocks=clocks)
        return timemodel.predict(facts, h200).time_us

    assert time_us(blocks) <= time_us(blocks + more)


def test_blocks_that_share_an_sm_get_in_each_others_way_by_a_share() -> None:
    """One to an SM meets nobody; further ones count for a quarter each, spread over the waves that they need."""
    h200 = chip("h200")
    factors = [timemodel.contention_factor(number * h200.sms, 4, h200) for number in range(1, 7)]
    assert factors == pytest.approx([1 + timemodel.CO_RESIDENT_SHARE * others for others in (0, 1, 2, 3, 1.5, 2)])
    assert timemodel.contention_factor(1, 8, h200) == 1.0


def test_waiting_for_pipes_is_no_latency() -> None:
    """The term of latency is what is left of a block's time; the predicted time is that of the whole."""
    waiting = replace(_FACTS, pipe_wait_clocks=_FACTS.block_clocks / 4)
    terms = [timemodel.predict(facts, chip("h200")) for facts in (replace(_FACTS, pipe_wait_clocks=0.0), waiting)]
    assert terms[1].terms_us["latency"] == pytest.approx(0.75 * terms[0].terms_us["latency"])
    assert terms[1].time_us == terms[0].time_us


def test_no_sm_is_done_before_its_busiest_pipe() -> None:
    """Blocks that keep each other waiting less than they should still take what their work takes of the pipes."""
    h200 = chip("h200")
    quick = replace(_FACTS, blocks=4 * h200.sms, block_clocks=1.0, longest_clocks=1.0, pipe_wait_clocks=0.0)
    found = timemodel.predict(quick, h200)
    busiest = max(time for name, time in found.terms_us.items() if name not in ("latency", "launch", "l2", "dram"))
    hidden = (busiest**timemodel.OVERLAP_EXPONENT + found.terms_us["l2"] ** timemodel.OVERLAP_EXPONENT) ** (
        1 / timemodel.OVERLAP_EXPONENT
    )
    assert found.time_us == pytest.approx(found.terms_us["launch"] + hidden)


def test_loads_hide_behind_work_in_part() -> None:
    """What the chip loads makes a launch longer than its SMs' work, but by less than the loads take alone."""
    h200 = chip("h200")
    none, some = (replace(_FACTS, unique_bytes=size, working_set_bytes=1e9) for size in (0.0, 1e7))
    quick, slow = (timemodel.predict(facts, h200) for facts in (none, some))
    loaded = slow.terms_us["dram"]
    # The first wave's share, here all, is waited for once more.
    assert loaded < slow.time_us - quick.time_us < 2 * loaded


@given(total=st.integers(1, 100_000), wanted=st.integers(1, 40))
def test_samples_are_spread_symmetrically(total: int, wanted: int) -> None:
    """First and last block are in the sample, and its mean is the grid's: exact for work that changes evenly."""
    blocks = timemodel.sample_blocks(total, wanted)
    assert len(set(blocks)) == len(blocks) == min(total, wanted)
    assert all(0 <= block < total for block in blocks)
    assert sum(blocks) / len(blocks) == pytest.approx((total - 1) / 2, abs=1.0)


def test_a_single_wave_waits_for_dram() -> None:
    """Bytes from DRAM are waited for in full where all blocks start at once, and hidden behind other waves else."""
    h200 = chip("h200")
    cold = replace(_FACTS, blocks=8 * h200.sms, working_set_bytes=1e9, unique_bytes=1e7)

    def waits(resident: int) -> float:
        far, near = (replace(cold, resident=resident, unique_bytes=size) for size in (1e7, 0.0))
        return timemodel.predict(far, h200).time_us - timemodel.predict(near, h200).time_us

    alone = 1e7 / h200.dram_bytes_per_s * 1e6
    assert waits(8) >= alone
    assert waits(1) < alone


def test_launches_that_follow_one_another_add_up() -> None:
    """The time of a sequence is the sum of its launches'."""
    one = timemodel.predict(_FACTS, chip("l4"))
    both = timemodel.total([one, one])
    assert both.time_us == 2 * one.time_us
    assert both.terms_us["launch"] == 2 * one.terms_us["launch"]


_FACTS = _facts(1, 20)


def test_work_hides_all_traffic_of_bulk_copies() -> None:
    """The schedule contains the waits for bulk copies, so the longest component is the time."""
    h200 = chip("h200")
    facts = replace(_facts(1, 8, blocks=640), working_set_bytes=1e12, unique_bytes=3e7)
    texts = tuple("cp.async.bulk.x [a]" if n % 2 else one for n, one in enumerate(facts.counters.instructions))
    loads = np.where(np.arange(len(texts)) % 2, 10, 0)
    bulk = replace(facts, counters=replace(facts.counters, instructions=texts, load_sectors=loads))
    found, without = timemodel.predict(bulk, h200), timemodel.predict(facts, h200)
    launch = latencies_of(h200).launch_us
    assert found.time_us == pytest.approx(launch + max(found.terms_us.values()), rel=0.01)
    assert without.time_us > launch + max(without.terms_us.values()) * 1.05


def _products(blocks: int, flops: float, of_block: float) -> timemodel.LaunchFacts:
    """Return a launch whose blocks multiply fp16 for some clocks."""
    facts = _facts(1, 8)
    counters = replace(facts.counters, mma={"m16n8k16.f32.f16.f16.f32": (1, flops * len(facts.counters.blocks))})
    return replace(
        facts, counters=counters, blocks=blocks, resident=1, block_clocks=of_block, longest_clocks=of_block,
        working_set_bytes=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize(
    "size, least, most, published", [(2048, 0.60, 0.75, (68.83, 70.89)), (4096, 0.77, 0.90, (53.02, 54.91))]
)
def test_long_products_on_an_l4_reach_its_power_limit(
    size: int, least: float, most: float, published: tuple[float, float], share: float
) -> None:
    """Products at such shares of an L4's peak slow down to the published rates (torch-performance-test-data #120)."""
    l4, flops = chip("l4"), 2.0 * size**3
    free = flops / ((least + share * (most - least)) * l4.sms * l4.tensor_peak_flops_per_clock)
    waves = 4
    predicted = timemodel.predict(_products(l4.sms * waves, flops / l4.sms / waves, free / waves), l4)
    for rate in published:
        assert flops / predicted.time_us / 1e6 == pytest.approx(rate, rel=0.25)
    assert (predicted.cause == "power-bound") == (predicted.terms_us.get("power") == predicted.time_us)
    assert "power" in predicted.terms_us


def test_the_power_limit_keeps_the_order_and_spares_short_and_waiting_launches() -> None:
    """A faster launch stays faster; a launch below the limit keeps its time; products cost as much in any block."""
    l4 = chip("l4")
    free = replace(l4, sustained_flops={})
    times = [timemodel.predict(_products(580, 2e8, clocks), l4).time_us for clocks in range(20_000, 900_000, 20_000)]
    assert times == sorted(times)
    slow, fast = (timemodel.predict(_products(580, 2e8, clocks), l4) for clocks in (260_000, 220_000))
    assert 1.3 * timemodel.predict(_products(580, 2e8, 260_000), free).time_us < slow.time_us
    for facts in (_products(580, 2e6, 2_200), _products(58, 1e6, 1_200), _products(580, 2e8, 900_000)):
        assert timemodel.predict(facts, l4).time_us == timemodel.predict(facts, free).time_us
    uneven = _products(580, 2e8, 220_000)
    issued = timemodel.block_clocks(uneven.counters, l4)["issue"]
    equal = np.full(580, 220_000.0)
    work = GridWork({"issue": np.full(580, issued)}, equal, np.zeros(580))
    assert timemodel.predict(replace(uneven, work=work), l4).time_us == pytest.approx(fast.time_us, rel=0.02)


def test_every_sustained_rate_has_a_source_and_is_below_the_peak() -> None:
    """The power limit never raises a rate."""
    for one in CHIPS.values():
        peaks = {"f16": one.tensor_peak_flops_per_clock, "f32": one.fp32_flops_per_clock}
        for kind, rate in one.sustained_flops.items():
            assert rate < peaks[kind] * one.sms * one.clock_mhz * 1e6
        assert not one.sustained_flops or "sustained_flops" in one.sources
