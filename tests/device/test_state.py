"""No call may depend on those before it: variables of the module, the device's heap, what lies in shared memory."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from emulated_gpu import evaluated, worker
from paths import DATA

from evokern.compile.build import Target, build
from evokern.compile.cache import CompileCache, default_directory
from evokern.compile.elf import data_symbols, runtime_calls, symbols_named, variable_name
from evokern.compile.nvrtc import compile_program
from evokern.compile.records import Built, Program
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Launch, Tensor
from evokern.device.gpu import between_calls
from evokern.device.gpu.between_calls import BetweenCalls, SharedMemory, as_state_failure, reads_stale
from evokern.device.gpu.jobs import Evaluate
from evokern.device.sim.jobs import SimSettings, Simulate
from evokern.device.sim.worker import SimWorker
from evokern.errors import KernelError
from evokern.gate import Gate, Verdict
from evokern.hardware.profiles import chip
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import GateSettings, Study, TimingSettings
from evokern.study.trial import Evaluation, Outcome

FOLDER = DATA / "kernels" / "state"
KERNEL = load_kernel(FOLDER)
PROBLEM = KERNEL.problem("1024")
STUDY = Study("state", "state", ("1024",), timing=TimingSettings(race=0.0))
L4 = chip("l4")
VARIABLES = {"fingerprint": "memo::answers", "whole_hash": "memo::owner", "toggles": "flag"}
"""Cheat → a variable that it keeps its answers in."""
CHEATS = (*VARIABLES, "heap", "shared", "shared_marked")
HONEST = tuple(str(keeps) for keeps in KERNEL.genes[0].values if keeps not in CHEATS)


@functools.cache
def made(keeps: str) -> Built | Evaluation:
    return build(KERNEL, Config({"KEEPS": keeps}), (PROBLEM,), Target(L4, CompileCache(default_directory() or Path())))


def built(keeps: str) -> Built:
    found = made(keeps)
    assert isinstance(found, Built), found.reason
    return found


@functools.cache
def simulated() -> SimWorker:
    context = WorkerContext(FOLDER, (PROBLEM,), L4)
    return SimWorker(SimSettings(context, STUDY.gate, STUDY.timing, STUDY.simulation, KERNEL.space.default()))


def on_simulated(keeps: str) -> Evaluation:
    found = simulated().handle(Simulate(Config({"KEEPS": keeps}), built(keeps), None))
    assert found is not None
    return found


def told(found: Evaluation) -> tuple[str, str]:
    return found.outcome.value, str(found.evidence.get("check", ""))


@pytest.mark.parametrize("keeps", [pytest.param("fingerprint", marks=pytest.mark.thorough), "whole_hash", "toggles"])
def test_a_simulated_device_names_the_variable(keeps: str) -> None:
    """Whatever guards the kept answers, that a call leaves them is `wrong`, with the variable and the remedy."""
    found = on_simulated(keeps)
    assert told(found) == ("wrong", "state")
    assert VARIABLES[keeps] in found.evidence["variables"]
    assert VARIABLES[keeps] in found.reason
    assert "state={" in found.reason
    assert "use a workspace" in found.reason


@pytest.mark.parametrize("keeps", HONEST)
def test_a_simulated_device_measures_what_depends_on_no_earlier_call(keeps: str) -> None:
    """Declared state is restored; tickets that set themselves back, tables and printing are no state."""
    found = on_simulated(keeps)
    assert found.outcome is Outcome.MEASURED, found.reason


def test_a_simulated_device_finds_shared_memory_that_nobody_wrote() -> None:
    """What a launch before left in shared memory is not there to be read."""
    for keeps in ("shared", "shared_marked"):
        assert told(on_simulated(keeps)) == ("wrong", "sanitizer:uninitialised")


def test_the_heap_is_refused_before_anything_runs() -> None:
    """`new` and `delete` are calls of the heap in the machine code: such a candidate is not built to run."""
    found = made("heap")
    assert isinstance(found, Evaluation)
    assert told(found) == ("wrong", "state")
    assert "twice calls free and malloc" in found.reason
    assert "workspace" in found.reason


def test_the_heap_at_a_small_problem_alone_is_told_the_same_way() -> None:
    """A simulated gate compiles small problems by themselves: there too it is `state`, with the line."""
    program = simulated()
    found = program.handle(Simulate(Config({"KEEPS": "heap"}), built("none"), None))
    assert found is not None
    assert told(found) == ("wrong", "state")
    assert "on line " in found.reason


def test_restoring_is_part_of_a_predicted_time() -> None:
    """A declared variable costs a memset before each call, as a zeroed workspace does."""
    plain, restored = (on_simulated(keeps) for keeps in ("none", "restored"))
    assert plain.time_us is not None
    assert restored.time_us is not None
    assert restored.time_us > plain.time_us + 1.5


@pytest.mark.parametrize("keeps", [*VARIABLES, *(keeps for keeps in HONEST if keeps != "prints")])
def test_the_worker_of_a_gpu(keeps: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same on the live device's own code: cheats fall after their first call, honest candidates are measured."""
    here = worker(monkeypatch, KERNEL, (PROBLEM,), STUDY, L4, tmp_path / "turn")
    found = evaluated(here, Config({"KEEPS": keeps}), built(keeps))
    if keeps in VARIABLES:
        assert told(found) == ("wrong", "state")
        assert VARIABLES[keeps] in found.evidence["variables"]
    else:
        assert found.outcome is Outcome.MEASURED, found.reason


@pytest.mark.thorough
def test_state_that_appears_while_calls_are_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What changes only after the checked calls is found once the timed ones are over, and once the repeated ones."""
    from emulated_gpu import Candidate

    whole = Candidate.changed
    for quiet in (2, 3):  # questions: after the first call, after the others, after the timed ones, after all
        asked = iter(range(100))

        def changed(self: Any, program: int, quiet: int = quiet, asked: Any = asked) -> list[str]:
            return whole(self, program) if next(asked) >= quiet else []

        monkeypatch.setattr(Candidate, "changed", changed)
        here = worker(monkeypatch, KERNEL, (PROBLEM,), STUDY, L4, tmp_path / "turn")
        found = evaluated(here, Config({"KEEPS": "whole_hash"}), built("whole_hash"))
        assert told(found) == ("wrong", "state")
        assert found.timings


# ---------------------------------------------------------------------------------------------------- declarations


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (["counter"], "is not a mapping"),
        ({"": 0}, "not a variable name"),
        ({"counter": 256}, "bytes or a number from 0 to 255"),
        ({"counter": True}, "bytes or a number from 0 to 255"),
        ({"counter": b""}, "bytes or a number from 0 to 255"),
        ({"counter": "0"}, "bytes or a number from 0 to 255"),
    ],
)
def test_a_declaration_that_is_none_is_refused(state: Any, says: str) -> None:
    """With what was given, and how it is written."""
    with pytest.raises(KernelError, match=says):
        replace(KERNEL, state=state)


def test_a_wrong_number_of_bytes_is_named() -> None:
    """Nothing is filled up or cut off in silence."""
    kernel = replace(KERNEL, state={"factors": b"\0" * 12})
    with pytest.raises(KernelError, match=r"12 bytes for 'factors', but the variable has 8"):
        build(kernel, Config({"KEEPS": "first_bytes"}), (PROBLEM,), Target(L4, None))


def test_a_wrong_name_is_told_with_the_finding() -> None:
    """Whoever declares `counts::cals` reads which variable is meant."""
    kernel = replace(KERNEL, state={"flagg": 0})
    assert "flagg" in _message(kernel, "toggles")
    assert "did you mean 'flag'?" in _message(kernel, "toggles")


def _message(kernel: Kernel, keeps: str) -> str:
    from evokern.compile.module_state import state_evidence

    known = [variable.name for variable in built(keeps).variables[0] if variable.used]
    return str(state_evidence(known, PROBLEM, kernel.state, known)["message"])


def test_declared_state_is_part_of_a_fingerprint() -> None:
    """A candidate that is restored differently does something else; one without such a variable does not."""
    other = replace(KERNEL, state={"counts::calls": 1, "factors": KERNEL.state["factors"]})
    for keeps, same in (("restored", False), ("none", True)):
        again = build(other, Config({"KEEPS": keeps}), (PROBLEM,), Target(L4, None))
        assert isinstance(again, Built)
        assert (again.fingerprint == built(keeps).fingerprint) is same


def test_variables_that_no_code_uses_cost_nothing() -> None:
    """Headers define many; a module whose code refers to none has none to watch."""
    assert built("none").variables == ((),)
    (watched,) = built("restored").variables
    assert [(one.name, one.restored) for one in watched if one.used] == [("counts::calls", 0)]
    (constants,) = built("constants").variables
    assert [(one.name, one.size, one.restored) for one in constants if one.used] == [("halves", 16, None)]


# ---------------------------------------------------------------------------------------------------- machine code

SOURCE = """
namespace a { __device__ int inside; namespace { __device__ int hidden = 3; } static __device__ int own = 4; }
template <int N> __device__ int many = N;
template <class T, int N> struct Box {
  static int count;
  __device__ int next() { static int kept; return kept++; }
};
template <class T, int N> int Box<T, N>::count = N;
struct Kind { enum Of { plain, other }; };
template <Kind::Of K, int... N> struct Shelf { struct Board { static int width; }; };
template <Kind::Of K, int... N> int Shelf<K, N...>::Board::width = sizeof...(N);
__device__ __noinline__ int held(int n) { return *(int*)malloc(n); }
extern "C" __global__ void counts(int* y) {
  static int calls;
  y[0] = calls++ + a::inside++ + a::hidden++ + a::own++ + many<3>++ + many<5>++
      + Box<float2, 4>::count++ + Box<int*, 8>::count++ + Box<int, 2>().next()
      + Shelf<Kind::other, 1, 2>::Board::width++;
}
extern "C" __global__ void allocates(int* y) { y[0] = held(y[1]); }
extern "C" __global__ void prints(int* y) { printf("%d", y[0]); }
"""


@pytest.fixture(scope="module")
def program() -> Program:
    found = compile_program(SOURCE, "kernel.cu", {}, (), ("counts", "allocates", "prints"), "sm_89")
    assert isinstance(found, Program)
    return found


def test_variables_are_known_by_their_names_in_the_source(program: Program) -> None:
    """Namespaces, nameless ones, internal linkage, templates and their static members, variables of functions."""
    sizes = {one.name: one.size for one in data_symbols(program.cubin)}
    names = {variable_name(symbol) for symbol in sizes}
    assert {"a::inside", "a::hidden", "a::own", "many", "counts::calls"} <= names
    assert {"Box::count", "Box::next::kept", "Shelf::Board::width", "std::numeric_limits::digits"} <= names
    counted = {"inside": 1, "a::inside": 1, "b::inside": 0, "many": 2, "calls": 1, "nside": 0, "count": 3, "Box": 0}
    for name, count in counted.items():
        assert len(symbols_named(name, sizes)) == count, name
    (symbol,) = symbols_named("hidden", sizes)
    assert symbols_named(symbol, sizes) == [symbol]


def test_the_call_graph_tells_who_uses_the_heap(program: Program) -> None:
    """A kernel beside one that allocates is not blamed, and printing is no allocation."""
    calls = {entry: runtime_calls(program.cubin, entry) for entry in ("counts", "allocates", "prints")}
    assert calls == {"counts": set(), "allocates": {"malloc"}, "prints": {"vprintf"}}


# --------------------------------------------------------------------------------------------------- shared memory


def overwriting() -> SharedMemory:
    memory = SharedMemory.__new__(SharedMemory)  # launches are made without a GPU
    memory._chip, memory.values = chip("h200"), random.Random(1)
    return memory


def test_overwriting_reaches_every_sm() -> None:
    """All of it in blocks that leave no room for a second one; a part of it as a candidate's blocks share an SM."""
    whole, partly = overwriting().full_launch(7), overwriting().partial_launch(40_000, 7)
    h200 = chip("h200")
    assert (whole.blocks, whole.shared_bytes) == (2 * h200.sms, h200.shared_bytes_per_block)
    assert (partly.blocks, partly.shared_bytes) == (h200.sms * (h200.shared_bytes_per_sm // 41_024), 40_000)
    assert [one.args[1].value for one in (whole, partly)] == [0, between_calls.KEPT]  # type: ignore[union-attr]


def test_overwriting_compiles_and_writes_what_it_says() -> None:
    """On the PTX machine: every word, or about half of them, and nothing outside of the block's memory."""
    import numpy as np

    from evokern import simt
    from evokern.compile.isolated import compile_ptx

    text = between_calls.SOURCE.replace("volatile unsigned* word = memory;", "unsigned* word = memory;").replace(
        "bool alike) {", "bool alike, unsigned* seen) {"
    )
    text = text.rstrip()[:-1] + "  for (unsigned i = threadIdx.x; i < words; i += blockDim.x) seen[i] = memory[i];\n}\n"
    made = compile_ptx(text, "overwrite.cu", {}, (), ("overwrite",), (8, 9))
    assert isinstance(made, Program)
    module = simt.parse(made.ptx)
    for kept, least, most in ((0, 250, 256), (128, 90, 166)):
        memory = simt.Memory()
        seen = memory.allocate("seen", np.zeros(256, np.uint32))
        arguments = [np.uint32(5), np.uint32(kept), np.uint32(256), np.bool_(False), seen]
        result = simt.launch(
            module,
            simt.LaunchSpec("overwrite", (1, 1, 1), (64, 1, 1), dynamic_shared=1024),
            arguments,
            memory,
            simt.LaunchOptions(sanitize=False),
        )
        assert result.findings == ()
        assert least <= np.count_nonzero(seen.read()) <= most


def test_in_turn_everything_and_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate without shared memory has everything overwritten each time, others in turn all and a part."""
    memory, enqueued = overwriting(), list[Launch]()
    monkeypatch.setattr(memory, "_enqueue", enqueued.append)
    whole = chip("h200").shared_bytes_per_block
    for size, wanted in ((1000, [whole, 1000, whole]), (0, [whole, whole, whole])):
        one = replace(
            built("none"), builds=(replace(built("none").builds[0], launches=(Launch("twice", 1, 32, (), size),)),)
        )
        job = Evaluate(Config({"KEEPS": "none"}), one, None)
        between = BetweenCalls(KERNEL, job, cast(Any, None), PROBLEM, memory)
        enqueued.clear()
        for _ in range(3):
            between.overwrite()
        assert [launch.shared_bytes for launch in enqueued] == wanted
    memory.fill(7)
    assert [argument.value for argument in enqueued[-1].args[:2]] == [7, 0]  # type: ignore[union-attr]


@pytest.mark.parametrize("stale", [True, False])
def test_what_hangs_on_shared_memory_is_told(stale: bool) -> None:
    """Equal answers over the same shared memory, and another one over another: only then it is `state`."""
    tensors: Mapping[str, Tensor] = KERNEL.workload.tensors(PROBLEM, KERNEL.space.default())
    gate = Gate(KERNEL, PROBLEM, GateSettings(), torch.device("cpu"), 0)
    bench = gate.bench(tensors, ("normal",), 1)
    bench.refresh()
    held = {"word": 0}

    def call() -> None:
        given = bench.arguments(0, 0)
        given["y"].copy_((held["word"] % 7 if stale else 3.0) * given["x"])

    def fill(word: int) -> None:
        held["word"] = word

    wrong = Verdict(False, {"check": "tolerance", "message": "y[0] is off"})
    assert reads_stale(bench, wrong, call, fill) is stale
    assert not reads_stale(bench, Verdict(False, {"check": "guard", "message": ""}), call, fill)
    said = as_state_failure(wrong).evidence
    assert (said["check"], said["found_by"]) == ("state", "tolerance")
    assert said["message"].endswith("y[0] is off")
