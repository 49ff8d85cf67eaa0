"""Every state space keeps the contract of its accesses: what is stored is loaded, and what is outside takes no part."""

from __future__ import annotations

import numpy as np
import pytest
from simt_tools import module_of

from evokern import simt
from evokern.simt.batch import LaunchStopped
from evokern.simt.machine import Inputs, Machine, Observers
from evokern.simt.memory.buffers import LOCAL_WINDOW, SHARED_WINDOW
from evokern.simt.operations.spaces import AtomicAccess, by_state_space, space_accesses
from evokern.simt.sanitizer.findings import Collector
from evokern.simt.settings import Geometry, Options

SPACES = ("shared", "local", "global")
SOURCE = """extern "C" __global__ void kernel(int* out, int at) {
  __shared__ volatile int tile[32];
  volatile int mine[32];
  for (int i = 0; i < 32; i++) mine[i] = i;
  tile[threadIdx.x] = mine[at];
  __syncthreads();
  out[threadIdx.x] = tile[at];
}"""


def _machine() -> tuple[Machine, simt.Buffer, Collector]:
    """Return a machine of one warp that has all spaces, a buffer of 128 bytes, and where findings go."""
    memory, collector = simt.Memory(), Collector(None)
    buffer = memory.allocate("out", np.zeros(32, np.uint32))
    program = module_of(SOURCE).program("kernel")
    inputs = Inputs(np.zeros((1, 16), np.uint8), {})
    machine = Machine(program, memory, Geometry((1, 1, 1), (32, 1, 1), 1, 1), inputs, Options(), Observers([collector]))
    machine.load([(0, 0)])
    return machine, buffer, collector


def _addresses(space: str, buffer: simt.Buffer) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.uint64(buffer.address if space == "global" else 0) + np.arange(32, dtype=np.uint64) * np.uint64(4)


@pytest.mark.parametrize("space", SPACES)
def test_what_is_stored_is_loaded(space: str) -> None:
    """Each lane reads what it wrote, and nothing is reported."""
    machine, buffer, collector = _machine()
    access = space_accesses(machine.state, 0, 4)[space]
    everyone, address = machine.state.batch.active, _addresses(space, buffer)
    assert access.store(everyone, address, 0, lambda sound: sound.lanes.astype(np.uint32) * 3) is everyone
    sound, found = access.load(everyone, address, 0)
    assert sound is everyone
    assert [3 * lane for lane in range(32)] == found.tolist()
    assert collector.findings == ()


@pytest.mark.parametrize("space", SPACES)
def test_lanes_outside_take_no_part(space: str) -> None:
    """Half of the lanes run past the end: they are reported, and the others go on without them."""
    machine, buffer, collector = _machine()
    access = space_accesses(machine.state, 0, 4)[space]
    size = {"shared": machine.state.shared.size, "local": machine.state.local.size, "global": buffer.size}[space]
    everyone, address = machine.state.batch.active, _addresses(space, buffer)
    sound = access.store(everyone, address, size - 64, lambda some: np.ones(some.count, np.uint32))
    assert sound is not None
    assert list(range(16)) == sound.lanes.tolist()
    assert [("out_of_bounds", 16)] == [(finding.kind, finding.count) for finding in collector.findings]


@pytest.mark.parametrize("space", SPACES)
def test_a_misaligned_address_ends_the_launch(space: str) -> None:
    """An element of four bytes at an odd address stops everything, with a finding."""
    machine, buffer, collector = _machine()
    access = space_accesses(machine.state, 0, 4)[space]
    with pytest.raises(LaunchStopped):
        access.load(machine.state.batch.active, _addresses(space, buffer), 1)
    assert ["misaligned"] == [finding.kind for finding in collector.findings]


@pytest.mark.parametrize("space", ["shared", "global"])
def test_updates_see_memory(space: str) -> None:
    """An update reads what was stored and leaves what it makes of it."""
    machine, buffer, _ = _machine()
    access = space_accesses(machine.state, 0, 4)[space]
    assert isinstance(access, AtomicAccess)
    everyone, address = machine.state.batch.active, _addresses(space, buffer)
    access.store(everyone, address, 0, lambda sound: sound.lanes.astype(np.uint32))
    access.update(everyone, address, 0, lambda active, memory, index: np.add.at(memory, index, 7))
    assert [lane + 7 for lane in range(32)] == access.load(everyone, address, 0)[1].tolist()


def test_generic_addresses_are_sorted_by_window() -> None:
    """Each lane's address reaches the space whose window it lies in, as an address within that space."""
    machine, buffer, _ = _machine()
    batch = machine.state.batch
    base = np.array([SHARED_WINDOW, LOCAL_WINDOW, buffer.address], np.uint64)[np.arange(32) % 3]
    address = base + np.arange(32, dtype=np.uint64) * np.uint64(4)
    found = {name: (part.lanes.tolist(), where.tolist()) for name, part, where in
             by_state_space(batch, "generic", {name: name for name in SPACES})(batch.active, address)}  # fmt: skip
    for place, (name, start) in enumerate(zip(SPACES, (0, 0, buffer.address), strict=True)):
        lanes = list(range(place, 32, 3))
        assert (lanes, [start + 4 * lane for lane in lanes]) == found[name]
