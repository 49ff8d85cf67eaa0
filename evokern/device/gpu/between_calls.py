"""What a candidate may leave for its next call, looked for or overwritten between them.

Variables of the module that the kernel does not declare must stay as they were. A GPU does not clear shared memory:
a kernel of our own writes into all of it before the checked calls and between repeated ones, either every word, in
blocks so large that an SM takes one, or a part of the words, in blocks as large as the candidate's own. Which words
stay is drawn anew each time: a candidate that marks what it keeps with a word or two finds its mark in some blocks, and
false numbers behind it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from evokern.compile.build import Target, compile_rendered
from evokern.compile.cache import CompileCache, default_directory
from evokern.compile.module_state import state_evidence
from evokern.compile.records import Built, EntryUse, Program
from evokern.declaration.foreign import ForeignCandidate
from evokern.declaration.kernel import Kernel, Launch, Problem, Scalar
from evokern.declaration.render import Rendered
from evokern.device.gpu.cuda import Candidate
from evokern.device.gpu.jobs import Evaluate
from evokern.errors import DeviceError
from evokern.gate import Call, RunFailed, Verdict
from evokern.gate.bench import Bench
from evokern.hardware.profiles import Profile
from evokern.study.trial import Outcome

SOURCE = """
// Writes numbers that hang on a seed into shared memory; of 256 words about `kept` stay as they are.
extern "C" __global__ void overwrite(unsigned seed, unsigned kept, unsigned words) {
  extern __shared__ unsigned memory[];
  volatile unsigned* word = memory;  // nobody reads them here
  for (unsigned i = threadIdx.x; i < words; i += blockDim.x) {
    unsigned x = (i + 0x9e3779b9u * blockIdx.x) ^ seed;  // mixed as MurmurHash3's fmix32 does
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    x ^= x >> 16;
    if ((x & 255u) >= kept) word[i] = x;
  }
}
"""
KEPT = 128
"""Of 256 words those that a partial overwriting leaves as they are."""
_ROUNDS = 2
"""Blocks for each SM in a launch that overwrites everything: an SM that is done early may take a second one."""
_TRIES = 3
"""Times that memory is overwritten before a candidate is held not to read it."""
SUSPECTS = ("tolerance", "deterministic", "repeat", "timed_runs")
"""Checks that a candidate fails which computes from what it finds in shared memory."""


class SharedMemory:
    """Overwrites the shared memory of one GPU."""

    def __init__(self, chip: Profile) -> None:
        """Compile and load the kernel.

        Raises:
            DeviceError: it does not compile.
        """
        folder = default_directory()
        rendered = Rendered(SOURCE, "overwrite.cu", {}, (), ("overwrite",))
        program = compile_rendered(rendered, Target(chip, None if folder is None else CompileCache(folder)))
        if not isinstance(program, Program):
            raise DeviceError(f"evokern's own kernel does not compile: {program.message}")
        self._chip = chip
        self._candidate = Candidate(Built((program,), (), (), "", 0.0))

    def disturb(self, launches: Sequence[Launch], uses: Mapping[str, EntryUse]) -> None:
        """Enqueue what overwrites shared memory: a part as the launches use it, or everything, as the draw has it.

        Args:
            launches: of the candidate.
            uses: what its entries use.
        """
        chosen = random.SystemRandom()
        sizes = {launch.shared_bytes + uses[launch.entry].static_shared_bytes for launch in launches} - {0}
        if sizes and chosen.random() < 0.5:
            for size in sorted(sizes):
                self._enqueue(self.partly(size, chosen.getrandbits(32)))
        else:
            self._enqueue(self.wholly(chosen.getrandbits(32)))

    def wholly(self, seed: int) -> Launch:
        """Return the launch that overwrites every word of every SM."""
        return _launch(self._chip.sms * _ROUNDS, 1024, self._chip.shared_bytes_per_block, seed, 0)

    def partly(self, size: int, seed: int) -> Launch:
        """Return the launch that overwrites a part of the words, in blocks of so many bytes."""
        chip = self._chip
        held = min(chip.shared_bytes_per_sm // (size + chip.shared_bytes_reserved), chip.blocks_per_sm)
        return _launch(chip.sms * max(held, 1), 64, min(size, chip.shared_bytes_per_block), seed, KEPT)

    def _enqueue(self, launch: Launch) -> None:
        self._candidate.prepare(0, Call((launch,), {})).enqueue()


def _launch(blocks: int, threads: int, size: int, seed: int, kept: int) -> Launch:
    words = size // 4
    arguments = tuple(Scalar("u32", value) for value in (seed, kept, words))
    return Launch("overwrite", blocks, threads, arguments, shared_bytes=4 * words)  # type: ignore[arg-type]


class BetweenCalls:
    """What is done between the calls of one candidate at one problem."""

    def __init__(
        self,
        kernel: Kernel,
        job: Evaluate,
        candidate: Candidate,
        problem: Problem,
        shared: SharedMemory | None,
    ) -> None:
        """Take the candidate.

        Args:
            kernel: knows which state is declared.
            job: the candidate's configuration and build.
            candidate: the same, loaded.
            problem: the problem.
            shared: overwrites shared memory; None where there is none to overwrite.
        """
        self._kernel, self._job, self._candidate, self._problem = kernel, job, candidate, problem
        self._shared = shared
        self._build = job.built.build(problem)

    def disturb(self) -> None:
        """Overwrite what launches before left in shared memory."""
        if self._shared is not None:
            self._shared.disturb(self._build.launches, self._job.built.programs[self._build.program].uses)

    def require_state(self) -> None:
        """Require that the calls so far, which have ended, left only declared variables changed.

        Raises:
            RunFailed: the candidate is wrong by the check `state`.
        """
        program = self._build.program
        if names := self._candidate.changed(program):
            known = [variable.name for variable in self._job.built.variables[program] if variable.used]
            foreign = isinstance(self._job.config, ForeignCandidate)
            raise RunFailed(
                Outcome.WRONG, state_evidence(names, self._problem, self._kernel.state, known, foreign=foreign)
            )

    def blamed(self, verdict: Verdict, bench: Bench, call: Callable[[], None]) -> Verdict:
        """Return a verdict of the check `state` where a wrong candidate computes from what it finds in shared memory.

        Args:
            verdict: what it was found wrong by.
            bench: its buffers.
            call: runs the call of the first input set and waits.

        Raises:
            RunFailed: it crashed or hung.
        """
        stale = self._shared is not None and reads_stale(bench, verdict, call, self.disturb)
        return blamed(verdict) if stale else verdict


def reads_stale(bench: Bench, verdict: Verdict, call: Callable[[], None], disturb: Callable[[], None]) -> bool:
    """Tell whether a wrong candidate computes from what launches before left in shared memory.

    The same call on the same inputs gives the same answer twice, and another one once shared memory was overwritten.

    Args:
        bench: buffers, in whose first input set the call works.
        verdict: what the candidate was found wrong by.
        call: runs the first call and waits.
        disturb: overwrites shared memory.

    Raises:
        RunFailed: the candidate crashed or hung.
    """
    in_place = any(tensor.role == "inout" for tensor in bench.tensors.values())
    if verdict.evidence.get("check") not in SUSPECTS or in_place:
        return False
    arguments = bench.arguments(0, 0)
    outputs = [arguments[name] for name, tensor in bench.tensors.items() if tensor.role == "output"]

    def answer() -> list[torch.Tensor]:
        call()
        return [output.reshape(-1).view(torch.uint8).clone() for output in outputs]

    def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
        return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))

    answer()
    before = answer()
    if not same(before, answer()):
        return False
    for _ in range(_TRIES):
        disturb()
        if not same(before, answer()):
            return True
    return False


def blamed(verdict: Verdict) -> Verdict:
    """Return a verdict as one of the check `state`, with what was found at first in its message."""
    message = (
        "the answer to the same call changes when shared memory is overwritten before it: the kernel reads shared "
        "memory that it has not written in this call, and finds what launches before left there; write it first, or "
        f"take a workspace. {verdict.evidence['message']}"
    )
    found = {**verdict.evidence, "check": "state", "message": message, "found_by": verdict.evidence["check"]}
    return replace(verdict, evidence=found)
