"""On a GPU: what a call leaves behind is found, what is declared is restored, and it costs what it should."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from live_bench import Bench
from paths import DATA

from evokern.study.discovery import load_kernel
from evokern.study.trial import Evaluation, Outcome

pytestmark = pytest.mark.gpu

PROBLEM = "16384"
CHEATS = {
    "fingerprint": "memo::answers",
    "whole_hash": "memo::answers",
    "toggles": "flag",
    "heap": "malloc",
    "shared": "",
    "shared_marked": "",
}
"""Cheat → what the message of the check `state` names."""
KERNEL = load_kernel(DATA / "kernels" / "state")
HONEST = tuple(str(keeps) for keeps in KERNEL.genes[0].values if keeps not in CHEATS)


@pytest.fixture(scope="module")
def answers() -> dict[str, Evaluation]:
    """What the live device says of every case, honest ones before and after the cheats."""
    cases = [*HONEST, *CHEATS]
    with Bench("state", PROBLEM) as bench:
        found = dict(zip(cases, bench.run([bench.config(KEEPS=keeps) for keeps in cases]), strict=True))
        bench.forget()
        (found["none again"],) = bench.run([bench.config(KEEPS="none")])
    return found


@pytest.mark.parametrize("keeps", HONEST)
def test_honest_candidates_are_measured(answers: dict[str, Evaluation], keeps: str) -> None:
    """Declared state is restored; tickets that set themselves back, tables and printing are no state."""
    assert answers[keeps].outcome is Outcome.MEASURED, answers[keeps].reason


@pytest.mark.parametrize("keeps", [keeps for keeps, names in CHEATS.items() if names])
def test_what_a_call_leaves_in_memory_is_state(answers: dict[str, Evaluation], keeps: str) -> None:
    """Answers kept under a fingerprint or a whole hash, a flag that toggles, the heap."""
    found = answers[keeps]
    assert (found.outcome, found.evidence.get("check")) == (Outcome.WRONG, "state"), found.reason
    assert CHEATS[keeps] in found.reason


@pytest.mark.parametrize("keeps", ["shared", "shared_marked"])
def test_what_a_call_leaves_in_shared_memory_is_no_answer(answers: dict[str, Evaluation], keeps: str) -> None:
    """Overwritten, it makes the candidate wrong before it is timed: by `state` where that can be told."""
    found = answers[keeps]
    assert found.outcome is Outcome.WRONG, found.reason
    assert found.evidence["check"] in ("state", "tolerance", "deterministic"), found.reason


def test_shared_memory_is_told_as_state(answers: dict[str, Evaluation]) -> None:
    """One that takes any number it finds there shows that its answer hangs on what shared memory held."""
    found = answers["shared"]
    assert found.evidence["check"] == "state", found.reason
    assert "shared memory" in found.reason


def test_restoring_is_timed(answers: dict[str, Evaluation]) -> None:
    """A memset and a copy are nodes of the graph that is timed: each takes longer than nothing, and less than 5 µs."""
    plain = answers["none again"].time_us
    assert plain is not None
    for keeps in ("restored", "first_bytes"):
        took = answers[keeps].time_us
        assert took is not None
        assert 0.3 < took - plain < 10.0, (keeps, took, plain)


def test_candidates_after_a_cheat_are_unharmed(answers: dict[str, Evaluation]) -> None:
    """The same candidate before and after takes the same time."""
    before, after = answers["none"].time_us, answers["none again"].time_us
    assert before is not None
    assert after is not None
    assert after == pytest.approx(before, rel=0.1)


def test_watching_and_overwriting_take_less_than_a_millisecond() -> None:
    """What a candidate with a large variable costs besides its calls, in wall time; without one nothing is asked."""
    import torch

    from evokern.compile.build import Target, build
    from evokern.compile.records import Built
    from evokern.declaration.genes import Config
    from evokern.device.gpu.between_calls import SharedMemory
    from evokern.device.gpu.cuda import Candidate
    from evokern.device.gpu.profile import live_gpu

    gpu = live_gpu(0)
    torch.cuda.set_device(0)
    torch.cuda.set_stream(torch.cuda.Stream())
    shared = SharedMemory(gpu.profile)
    config = Config({"KEEPS": "whole_hash"})
    made = build(KERNEL, config, (KERNEL.problem(PROBLEM),), Target(gpu.profile, None))
    assert isinstance(made, Built)
    candidate, use = Candidate(made), made.programs[0].uses
    took = {"watch": [0.0], "overwrite": [0.0]}
    for _ in range(20):
        for name, act in (
            ("watch", lambda: candidate.changed(0)),
            ("overwrite", lambda: shared.overwrite(made.builds[0].launches, use, partly=False)),
        ):
            torch.cuda.synchronize()
            began = time.perf_counter()
            assert not act()
            torch.cuda.synchronize()
            took[name].append(time.perf_counter() - began)
    middle = {name: sorted(times)[len(times) // 2] for name, times in took.items()}
    print({name: f"{1e6 * value:.0f} µs" for name, value in middle.items()})
    # Four questions, and five overwritings, of one candidate.
    assert 5 * middle["overwrite"] < 1e-3, took
    assert 4 * middle["watch"] < 2e-3, took
    candidate.unload()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
@pytest.mark.parametrize("keeps", ["restored", "first_bytes"])
def test_an_exported_program_restores_it(tmp_path: Path, keeps: str) -> None:
    """Built with nvcc it checks and times itself, with a memset or a copy in each call of its graph."""
    from evokern.declaration.genes import Config
    from evokern.device.gpu.profile import live_gpu
    from evokern.export.standalone import Provenance, standalone

    profile, problem = live_gpu(0).profile, KERNEL.problem(PROBLEM)
    (tmp_path / "best.cu").write_text(standalone(KERNEL, Config({"KEEPS": keeps}), problem, profile, Provenance()))
    subprocess.run(
        ["nvcc", f"-arch={profile.architecture}", "best.cu", "-o", "best"], cwd=tmp_path, check=True, timeout=300
    )
    done = subprocess.run(["./best"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    print(done.stdout, done.stderr)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "PASS")


def test_overwriting_reaches_every_sm() -> None:
    """A launch after it finds no word of what a launch before it left, on any SM, in blocks of 1 KB to 100 KB."""
    import torch

    from evokern.compile.nvrtc import compile_program
    from evokern.compile.records import Built, Program
    from evokern.declaration.kernel import Launch, i32
    from evokern.device.gpu.between_calls import SharedMemory
    from evokern.device.gpu.cuda import Candidate
    from evokern.device.gpu.profile import live_gpu
    from evokern.gate import Call

    source = """
extern "C" __global__ void mark(int words) {
  extern __shared__ unsigned memory[];
  volatile unsigned* word = memory;
  for (int i = threadIdx.x; i < words; i += blockDim.x) word[i] = 0xC0FFEE01u;
}
extern "C" __global__ void find(unsigned* found, int words) {
  extern __shared__ unsigned memory[];
  volatile unsigned* word = memory;
  unsigned count = 0;
  for (int i = threadIdx.x; i < words; i += blockDim.x) count += word[i] == 0xC0FFEE01u;
  atomicAdd(found, count);
}
"""
    gpu = live_gpu(0)
    torch.cuda.set_device(0)
    torch.cuda.set_stream(torch.cuda.Stream())
    torch.empty(1, device="cuda")
    major, minor = gpu.profile.compute_capability
    made = compile_program(source, "mark.cu", {}, (), ("mark", "find"), f"sm_{major}{minor}")
    assert isinstance(made, Program)
    candidate = Candidate(Built((made,), (), (), "", 0.0))
    shared = SharedMemory(gpu.profile)
    seen: dict[tuple[int, bool], int] = {}
    for size in (1024, 40_000, 100_000):
        blocks = gpu.profile.sms * max(1, gpu.profile.shared_bytes_per_sm // (size + 1024))
        words = size // 4
        for overwritten in (False, True):
            found = torch.zeros(1, dtype=torch.int32, device="cuda")
            mark = Launch("mark", blocks, 64, (i32(words),), shared_bytes=size)
            find = Launch("find", blocks, 64, ("found", i32(words)), shared_bytes=size)
            candidate.prepare(0, Call((mark,), {})).enqueue()
            if overwritten:
                shared._enqueue(shared.full_launch(123))
            candidate.prepare(0, Call((find,), {"found": found})).enqueue()
            torch.cuda.synchronize()
            seen[size, overwritten] = int(found)
    print(seen)
    assert any(count for (_, overwritten), count in seen.items() if not overwritten), "the test itself sees nothing"
    assert [count for (_, overwritten), count in seen.items() if overwritten] == [0, 0, 0]
    candidate.unload()


def test_a_part_that_is_overwritten_leaves_marks_and_spoils_what_they_vouch_for() -> None:
    """A mark stays in half of the blocks, with false numbers behind it; blocks are of 516 bytes.

    Where an SM divided its memory anew between the two launches, no mark would be left.
    """
    import torch

    from evokern.compile.build import Target, build
    from evokern.compile.records import Built
    from evokern.declaration.genes import Config
    from evokern.device.gpu.between_calls import SharedMemory
    from evokern.device.gpu.cuda import Candidate
    from evokern.device.gpu.profile import live_gpu
    from evokern.gate import Call

    gpu = live_gpu(0)
    torch.cuda.set_device(0)
    torch.cuda.set_stream(torch.cuda.Stream())
    shared = SharedMemory(gpu.profile)
    made = build(KERNEL, Config({"KEEPS": "shared_marked"}), (KERNEL.problem(PROBLEM),), Target(gpu.profile, None))
    assert isinstance(made, Built)
    candidate, launches, uses = Candidate(made), made.builds[0].launches, made.programs[0].uses
    x, y = torch.ones(16384, device="cuda"), torch.zeros(16384, device="cuda")
    call = candidate.prepare(0, Call(launches, {"x": x, "y": y}))
    spoilt = []
    for _ in range(20):
        for partly in (False, True):
            shared.overwrite(launches, uses, partly=partly)
            call.enqueue()
        torch.cuda.synchronize()
        spoilt.append(int((y.view(-1, 128) != 2).any(dim=1).sum()))
    print(spoilt)
    assert 128 / 4 < sorted(spoilt)[10] < 128 * 3 / 4, spoilt
    assert min(spoilt) > 128 / 16, spoilt
    candidate.unload()
