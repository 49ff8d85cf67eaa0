"""Detection and removal of state that a candidate leaves for its next call.

Undeclared module variables must keep their initial values. A GPU does not clear shared memory, so a special kernel
overwrites it before the checked calls and between repeated ones. It alternates between two modes:

- It overwrites every word, in blocks so large that an SM runs one at a time.
- It overwrites random words, in blocks as large as the candidate's. A candidate that marks its stored data with a word
  or two then finds its mark in some blocks, but wrong data after it.

The kernel requests the largest shared memory that an SM supports, and candidates keep that partition. A new partition
would erase the contents, including such marks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from evokern.compile.build import compile_internal
from evokern.compile.module_state import state_evidence
from evokern.compile.records import Built, EntryUse
from evokern.declaration.foreign import ForeignCandidate
from evokern.declaration.kernel import Kernel, Launch, Problem, Scalar
from evokern.device.gpu.cuda import Candidate
from evokern.device.gpu.jobs import Evaluate
from evokern.gate import Call, RunFailed, Verdict
from evokern.gate.buffer_set import BufferSet
from evokern.hardware.profiles import Profile
from evokern.study.trial import Outcome

SOURCE = """
// Overwrites shared memory with one word, or with numbers that depend on a seed; keeps about `kept` of 256 words.
extern "C" __global__ void overwrite(unsigned seed, unsigned kept, unsigned words, bool alike) {
  extern __shared__ unsigned memory[];
  volatile unsigned* word = memory;  // the kernel does not read them
  for (unsigned i = threadIdx.x; i < words; i += blockDim.x) {
    unsigned x = (i + 0x9e3779b9u * blockIdx.x) ^ seed;  // fmix32 of MurmurHash3
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    x ^= x >> 16;
    if ((x & 255u) >= kept) word[i] = alike ? seed : x;
  }
}
"""
KEPT = 128
"""Number of words out of 256 that a partial overwrite keeps."""
_ENTRY = "overwrite"
_ROUNDS = 2
"""Blocks per SM in a launch that overwrites everything, because an SM that finishes early may run a second block."""
WORDS = (0x3F000000, 0x40200000, 0, 0xFFFFFFFF)
"""Words that fill shared memory to test whether a result depends on it: 0.5, 2.5, 0 and NaN as floats. All words are
equal, so the position of a block does not matter; a candidate takes some of these values for its stored data."""
AFFECTED_CHECKS = ("tolerance", "deterministic", "repeat", "timed_runs")
"""Checks that a candidate can fail when it uses old contents of shared memory."""


class SharedMemory:
    """Kernel that overwrites the shared memory of one GPU."""

    def __init__(self, chip: Profile) -> None:
        """Compile and load the kernel.

        Raises:
            DeviceError: the kernel does not compile.
        """
        self.values = random.Random(random.SystemRandom().getrandbits(62))
        """Source of the values; a device seeds it for each candidate."""
        program = compile_internal(SOURCE, f"{_ENTRY}.cu", _ENTRY, chip)
        self._chip = chip
        self._candidate = Candidate(Built((program,), (), (), "", 0.0))
        self._candidate.prefer_shared_memory(0, _ENTRY)

    def fill(self, word: int) -> None:
        """Enqueue a launch that fills the shared memory of every SM with one word."""
        self._enqueue(self.full_launch(word, alike=True))

    def overwrite(self, launches: Sequence[Launch], uses: Mapping[str, EntryUse], *, partly: bool) -> None:
        """Enqueue launches that overwrite shared memory.

        Args:
            launches: launches of the candidate.
            uses: resources of its entry points.
            partly: overwrite part of the shared memory that the launches use, if any; otherwise everything.
        """
        sizes = {launch.shared_bytes + uses[launch.entry].static_shared_bytes for launch in launches} - {0}
        if sizes and partly:
            for size in sorted(sizes):
                self._enqueue(self.partial_launch(size, self.values.getrandbits(32)))
        else:
            self._enqueue(self.full_launch(self.values.getrandbits(32)))

    def full_launch(self, seed: int, *, alike: bool = False) -> Launch:
        """Return the launch that overwrites all shared memory of every SM, with one value or with different values."""
        return _launch(self._chip.sms * _ROUNDS, 1024, self._chip.shared_bytes_per_block, seed, 0, alike)

    def partial_launch(self, size: int, seed: int) -> Launch:
        """Return the launch that overwrites some of the words; each thread block has `size` bytes of shared memory."""
        chip = self._chip
        held = min(chip.shared_bytes_per_sm // (size + chip.shared_bytes_reserved), chip.blocks_per_sm)
        return _launch(chip.sms * max(held, 1), 64, min(size, chip.shared_bytes_per_block), seed, KEPT)

    def _enqueue(self, launch: Launch) -> None:
        self._candidate.prepare(0, Call((launch,), {})).enqueue()


def _launch(blocks: int, threads: int, size: int, seed: int, kept: int, alike: bool = False) -> Launch:
    words = size // 4
    arguments = (*(Scalar("u32", value) for value in (seed, kept, words)), Scalar("bool", alike))
    return Launch(_ENTRY, blocks, threads, arguments, shared_bytes=4 * words)  # type: ignore[arg-type]


class BetweenCalls:
    """Actions between the calls of one candidate on one problem."""

    def __init__(
        self,
        kernel: Kernel,
        job: Evaluate,
        candidate: Candidate,
        problem: Problem,
        shared: SharedMemory | None,
    ) -> None:
        """Prepare the actions for one candidate.

        Args:
            kernel: kernel with the declared state.
            job: configuration and build of the candidate.
            candidate: the loaded candidate.
            problem: the problem.
            shared: object that overwrites shared memory; None if that is not needed.
        """
        self._kernel, self._job, self._candidate, self._problem = kernel, job, candidate, problem
        self._shared = shared
        self._times = 0
        self._build = job.built.build(problem)

    def overwrite(self) -> None:
        """Overwrite shared memory, alternately in full and in part."""
        if self._shared is not None:
            uses = self._job.built.programs[self._build.program].uses
            self._shared.overwrite(self._build.launches, uses, partly=self._times % 2 == 1)
            self._times += 1

    def require_state(self) -> None:
        """Check that the completed calls changed only declared variables.

        Raises:
            RunFailed: the candidate fails the check `state`.
        """
        program = self._build.program
        if names := self._candidate.changed(program):
            known = [variable.name for variable in self._job.built.variables[program] if variable.used]
            foreign = isinstance(self._job.config, ForeignCandidate)
            raise RunFailed(
                Outcome.WRONG, state_evidence(names, self._problem, self._kernel.state, known, foreign=foreign)
            )

    def explain(self, verdict: Verdict, bench: BufferSet, call: Callable[[], None]) -> Verdict:
        """Return a failure of the check `state` if a wrong candidate uses old contents of shared memory.

        Args:
            verdict: verdict of the failed check.
            bench: buffers of the candidate.
            call: function that runs the call of the first input set and waits.

        Raises:
            RunFailed: the candidate crashed or hung.
        """
        stale = self._shared is not None and reads_stale(bench, verdict, call, self._shared.fill)
        return as_state_failure(verdict) if stale else verdict


def reads_stale(bench: BufferSet, verdict: Verdict, call: Callable[[], None], fill: Callable[[int], None]) -> bool:
    """Return whether a wrong candidate uses old contents of shared memory from earlier launches.

    Its call on the same inputs then returns the same result twice if shared memory holds the same word. With another
    word it returns another result.

    Args:
        bench: buffers; the call uses the first input set.
        verdict: verdict of the failed check.
        call: function that runs the first call and waits.
        fill: function that fills shared memory with a word.

    Raises:
        RunFailed: the candidate crashed or hung.
    """
    in_place = any(tensor.role == "inout" for tensor in bench.tensors.values())
    if verdict.evidence.get("check") not in AFFECTED_CHECKS or in_place:
        return False
    arguments = bench.arguments(0, 0)
    outputs = [arguments[name] for name, tensor in bench.tensors.items() if tensor.role == "output"]

    def answer(word: int) -> list[torch.Tensor]:
        fill(word)
        call()
        return [output.reshape(-1).view(torch.uint8).clone() for output in outputs]

    def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
        return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))

    first = answer(WORDS[0])
    return same(first, answer(WORDS[0])) and not all(same(first, answer(word)) for word in WORDS[1:])


def as_state_failure(verdict: Verdict) -> Verdict:
    """Return a verdict as a failure of the check `state` that includes the original message."""
    message = (
        "the result of the same call depends on the previous contents of shared memory: the kernel reads shared "
        "memory before writing to it in this call, and finds data from earlier launches. Write to shared memory "
        "first, or use a "
        f"workspace. {verdict.evidence['message']}"
    )
    found = {**verdict.evidence, "check": "state", "message": message, "found_by": verdict.evidence["check"]}
    return replace(verdict, evidence=found)
