"""Timed calls: whoever answers from memory is found by a few calls of the graph, and nobody honest is troubled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from emulated_gpu import Clock, StepKernel

from evokern.declaration.kernel import Kernel, Problem, Slice, Tensor, Tolerance, Workload
from evokern.device.gpu.timed_calls import StepsAround
from evokern.gate import Gate, renewal
from evokern.gate.buffer_set import BufferSet
from evokern.gate.recorded_outputs import Copy
from evokern.gate.timed_plan import MOST_COPIES, TimedCalls
from evokern.hardware.profiles import chip
from evokern.study.settings import GateSettings

CPU = torch.device("cpu")
ROWS, COLUMNS, INNER = 96, 80, 40
TENSORS = {
    "x": Tensor("f16", (ROWS, INNER)),
    "w": Tensor("f32", (INNER, COLUMNS)),
    "y": Tensor("f32", (ROWS, COLUMNS), "output"),
    "memo": Tensor("f32", (ROWS * COLUMNS + 64,), "workspace"),
}
Buffers = Mapping[str, torch.Tensor]


def product(problem: Problem, given: Buffers) -> dict[str, torch.Tensor]:
    return {"y": given["x"] @ given["w"]}


def kernel_of(reference: Callable[[Problem, Buffers], Mapping[str, torch.Tensor]], tensors: Mapping[str, Tensor],
              **tolerance: Tolerance) -> Kernel:  # fmt: skip
    workload = Workload(lambda p, c: tensors, reference, tolerance or {"y": Tolerance(1e-4, 1e-4)},
                        lambda p: 1.0, lambda p: 1.0)  # fmt: skip
    return Kernel("plan", (), (), lambda c, p: (), workload)


PRODUCT = kernel_of(product, TENSORS)


def bench_of(
    kernel: Kernel = PRODUCT, tensors: Mapping[str, Tensor] = TENSORS, sets: int = 2, seed: int = 1
) -> BufferSet:
    gate = Gate(kernel, Problem({}), GateSettings(guard_bytes=256), CPU, seed=seed)
    bench = gate.bench(tensors, ["normal"] * sets, runs=1)
    bench.refresh()
    bench.poison()
    return bench


def right(buffers: Buffers) -> None:
    buffers["y"].copy_(buffers["x"].double() @ buffers["w"].double())


@dataclass
class RunResult:
    """What came of a graph of calls."""

    clock: Clock
    bench: BufferSet

    @property
    def timed(self) -> TimedCalls:
        assert self.clock.timed is not None
        return self.clock.timed

    @property
    def fault(self) -> dict[str, Any] | None:
        return self.timed.fault()

    def left_right(self) -> bool:
        """Whether inputs are as they were drawn, and outputs and guards as they must be."""
        found = self.bench.verify()
        return not (any(w.bad for w in found.worst) or any(found.inputs_changed) or any(found.guards_changed))


def run_graph(call: Callable[[Buffers], Any], bench: BufferSet | None = None, *, rounds: int = 4, samples: int = 3,
        still: bool = False) -> RunResult:  # fmt: skip
    """Run a graph of so many calls of each set."""
    bench = bench or bench_of()

    def of_set(index: int) -> Callable[[], Buffers | None]:
        def enqueue() -> Buffers | None:
            answer = call(bench.arguments(index))
            return answer if isinstance(answer, dict) else None

        return enqueue

    calls = [of_set(index) for index in range(bench.sets)]
    around = StepsAround(TimedCalls(bench, still=still), StepKernel(chip("l4")))  # type: ignore[arg-type]
    clock = Clock(calls, around, rounds)
    clock.prepare()
    for _ in range(samples):
        clock.take(1)
    clock.settle()
    return RunResult(clock, bench)


# ------------------------------------------------------------------------------------------------------------- honest


@pytest.mark.parametrize("rounds", [1, 2, 3, 7])
@pytest.mark.parametrize("sets", [1, 2, 4])
def test_who_computes_every_call_is_right(sets: int, rounds: int) -> None:
    """However many calls a graph has: nothing is found, and inputs, outputs and guards are left as they must be."""
    found = run_graph(right, bench_of(sets=sets), rounds=rounds)
    assert found.fault is None
    assert found.left_right()
    assert found.timed.report()["changed"] in (["w"], ["x"])


def test_the_answers_of_every_replay_are_compared() -> None:
    """One wrong call in one replay is enough."""
    calls = iter(range(10**6))

    def once(buffers: Buffers) -> None:
        right(buffers)
        if 8 * 5 <= next(calls) < 8 * 6:  # the sixth replay, of eight calls
            buffers["y"].add_(1)

    assert run_graph(right, samples=9).fault is None
    assert run_graph(once, samples=9).fault is not None


def test_positions_and_changes_are_drawn_per_candidate() -> None:
    """No two candidates on one bench get the same, and in time every call and every row of an input is drawn."""
    bench = bench_of(sets=4)
    seen = [run_graph(right, bench, rounds=3, samples=1).timed for _ in range(60)]
    assert {one.report()["drawn"][0] for one in seen} == set(range(12))
    pieces = [tuple(one._pieces) for one in seen]
    assert {tuple(one.changed) for one in seen} == {("w",), ("x",)}
    assert len(set(pieces)) == len(pieces)
    rows = {piece.start // INNER for one in pieces for piece in one if piece.name == "x"}
    assert len(rows) > 12


@pytest.mark.parametrize("sliced", [False, True])
def test_a_large_problem_has_few_whole_references(sliced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes stays, position apart, until its set is renewed; a declared slice is computed by itself instead."""
    monkeypatch.setattr(renewal, "LARGE_FLOPS", 0.5)
    wholes = [0]

    def counted(problem: Problem, given: Buffers) -> dict[str, torch.Tensor]:
        wholes[0] += given["x"].shape[0] == ROWS and given["w"].shape[1] == COLUMNS
        return product(problem, given)

    slices = (Slice({"x": 0, "y": 0}), Slice({"w": 1, "y": 1})) if sliced else ()
    kernel = kernel_of(counted, TENSORS)
    kernel = replace(kernel, workload=replace(kernel.workload, slices=slices))
    bench, seen = bench_of(kernel), []
    for _ in range(12):
        found = run_graph(right, bench, samples=1)
        assert found.fault is None
        assert found.left_right()
        fault = run_graph(lambda b: skips_what_holds_numbers(Memory(), b), bench, samples=1).fault
        assert fault is not None
        seen.append(found.timed)
    assert wholes[0] == (2 if sliced else 4)  # of each set, and of its change
    assert len({tuple(one._pieces) for one in seen}) == (12 if sliced else 2)
    bench.refresh(whole=True)
    assert not bench.changes
    assert run_graph(right, bench).fault is None


def test_inputs_that_hang_together_are_left_alone() -> None:
    """An input that is drawn by a function of the kernel's, or of which nothing may change, keeps its values."""
    for closed in (
        replace(TENSORS["x"], change="nothing"),
        replace(TENSORS["x"], draw=lambda g: torch.ones(ROWS, INNER)),
    ):
        tensors = {**TENSORS, "x": closed}
        found = [
            run_graph(right, bench_of(kernel_of(product, tensors), tensors, seed=seed), samples=1) for seed in range(4)
        ]
        assert [one.timed.changed for one in found] == [["w"]] * 4
        assert not any(one.fault for one in found)


def test_what_is_kept_holds_rows_from_everywhere_and_those_that_change() -> None:
    """At least 64 rows of an output that has them, elements that the change reaches, and some that were poisoned."""
    for seed in range(8):
        timed = run_graph(right, bench_of(seed=seed)).timed
        kept = timed._answers._pieces["y"]
        rows = {piece.start // COLUMNS for piece in kept}
        assert len(rows) >= 64
        assert timed._answers._expected["y"]["new"][0].shape == (len(kept), 32)
        poisoned = {e for name, at, size in timed._poisoned if name == "y" for e in range(at // 4, (at + size) // 4)}
        assert sum(bool(set(range(piece.start, piece.start + piece.count)) & poisoned) for piece in kept) >= 12
        if "x" in timed.changed:
            assert {piece.start // INNER for piece in timed._pieces if piece.name == "x"} & rows


# ------------------------------------------------------------------------------------------------------------- cheats


class Memory:
    """What a cheat keeps between calls, told apart by output buffers."""

    def __init__(self) -> None:
        self.of: dict[int, Any] = {}


def skips_what_holds_numbers(memory: Memory, buffers: Buffers) -> None:
    """Leave an output alone that holds no poison."""
    if bool(buffers["y"].isnan().any()):
        right(buffers)


def computes_where_poisoned(memory: Memory, buffers: Buffers) -> None:
    """Write only the elements that hold poison."""
    answer = buffers["x"].double() @ buffers["w"].double()
    buffers["y"].copy_(torch.where(buffers["y"].isnan(), answer, buffers["y"].double()))


def skips_every_second_call(memory: Memory, buffers: Buffers) -> None:
    """Work in every second call of a buffer: no poison, no stamp, one bit."""
    key = buffers["y"].data_ptr()
    memory.of[key] = not memory.of.get(key, False)
    if memory.of[key]:
        right(buffers)


def watches_one_input(memory: Memory, buffers: Buffers) -> None:
    """Work when `w` is another one than in the call before."""
    key, seen = buffers["y"].data_ptr(), hash(buffers["w"].numpy().tobytes())
    if memory.of.get(key) != seen:
        memory.of[key] = seen
        right(buffers)


def first_replays_only(memory: Memory, buffers: Buffers) -> None:
    """Stop working when it has worked often enough."""
    memory.of[0] = memory.of.get(0, 0) + 1
    if memory.of[0] <= 6:
        right(buffers)


def memo_under_a_sample(memory: Memory, buffers: Buffers) -> None:
    """Answer from the workspace while four elements of the inputs are those of the call before."""
    memo, x, w = buffers["memo"], buffers["x"].view(-1), buffers["w"].view(-1)
    sample = torch.cat([x[:: len(x) // 2][:2].float(), w[:: len(w) // 2][:2]])
    if not bool((memo[-4:] == sample).all()):
        right(buffers)
        memo[-4:] = sample
        memo[:-64] = buffers["y"].view(-1)
    buffers["y"].view(-1).copy_(memo[:-64])


def memo_under_everything(memory: Memory, buffers: Buffers) -> None:
    """Answer from the workspace when the inputs, all of them, are known; it remembers many."""
    key = hash((buffers["x"].numpy().tobytes(), buffers["w"].numpy().tobytes()))
    known = memory.of.setdefault(key, set())
    if buffers["memo"].data_ptr() in known:
        buffers["y"].view(-1).copy_(buffers["memo"][:-64])
        return
    right(buffers)
    memory.of = {key: {buffers["memo"].data_ptr()}} if len(memory.of) > 8 else memory.of
    known.add(buffers["memo"].data_ptr())
    buffers["memo"][:-64] = buffers["y"].view(-1)


CHEATS = (skips_what_holds_numbers, computes_where_poisoned, skips_every_second_call, first_replays_only,
          memo_under_a_sample, memo_under_everything)  # fmt: skip


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("cheat", CHEATS, ids=[cheat.__name__ for cheat in CHEATS])
def test_who_answers_from_memory_is_found(cheat: Callable[[Memory, Buffers], None], rounds: int) -> None:
    """Each falls by what was kept, or by what the timed runs left, whatever is drawn."""
    for seed in range(2):
        memory = Memory()
        found = run_graph(lambda buffers, m=memory: cheat(m, buffers), bench_of(seed=seed), rounds=rounds, samples=5)  # type: ignore[misc]
        assert found.fault is not None or not found.left_right()


def test_who_watches_one_input_is_found_in_time() -> None:
    """Inputs change one at a time, each for some candidate: a cheat whose own input did not change answers wrongly."""
    found = []
    for seed in range(8):
        memory = Memory()
        one = run_graph(lambda buffers, m=memory: watches_one_input(m, buffers), bench_of(seed=seed))  # type: ignore[misc]
        found.append(one.fault is not None)
        assert found[-1] == (one.timed.changed == ["x"])
    assert 1 <= sum(found) <= 7


def test_a_fault_says_what_changed_where() -> None:
    """Element, call and change stand in the message; what is results for the previous inputs is called that."""
    fault = run_graph(lambda buffers: skips_what_holds_numbers(Memory(), buffers), rounds=3, samples=1).fault
    assert fault is not None
    assert (fault["check"], fault["stale"], fault["poisoned"]) == ("timed_runs", True, False)
    assert f"call {fault['call'] + 1} of 6 in a timed graph, after {fault['changed'][0]!r} changed" in fault["message"]
    assert fault["message"].endswith("results for the previous inputs")
    assert fault["over"] > 1
    nothing = run_graph(lambda buffers: None, rounds=3).fault
    assert nothing is not None
    assert (nothing["got"], nothing["stale"]) == ("nan", False)


# ------------------------------------------------------------------------------------------------ all kinds of kernel


def test_what_is_computed_in_place_begins_anew_in_drawn_calls() -> None:
    """A call that works on its own result is compared where its buffer was written anew before it."""
    tensors = {"x": Tensor("f32", (8, 64)), "y": Tensor("f32", (8, 64), "inout")}
    kernel = kernel_of(lambda p, given: {"y": given["y"] + given["x"]}, tensors)
    for rounds in (1, 4):
        assert run_graph(lambda b: b["y"].add_(b["x"]), bench_of(kernel, tensors), rounds=rounds).fault is None
        fault = run_graph(lambda b: None, bench_of(kernel, tensors), rounds=rounds).fault
        assert fault is not None
    large = {name: replace(tensor, shape=(1024, 128)) for name, tensor in tensors.items()}
    assert not run_graph(lambda b: b["y"].add_(b["x"]), bench_of(kernel, large)).timed.active


def test_integers_are_left_alone() -> None:
    """Tables and lengths keep their values; a kernel of nothing but them is still checked on poisoned outputs."""
    tensors = {"n": Tensor("i32", (300,)), "y": Tensor("i32", (300,), "output")}
    kernel = kernel_of(lambda p, given: {"y": given["n"] + 1}, tensors, y=Tolerance(0, 0))
    found = run_graph(lambda b: b["y"].copy_(b["n"] + 1), bench_of(kernel, tensors))
    assert found.fault is None
    assert found.left_right()
    assert found.timed.changed == []
    kept = bench_of(kernel, tensors)
    kept.write_reference()
    assert run_graph(lambda b: None, kept).fault is not None


def test_more_changes_where_little_does_not_show() -> None:
    """An output that hardly depends on a few elements gets larger changes, and the bench remembers how large."""
    tensors = {"x": Tensor("f32", (64, 512), large=0.5), "y": Tensor("f32", (512,), "output")}
    # Of a mean of 64 rows two that change differ by 0.03, in deviation.
    kernel = kernel_of(lambda p, given: {"y": given["x"].mean(0)}, tensors, y=Tolerance(0.025, 0))
    bench = bench_of(kernel, tensors)
    found = run_graph(lambda b: b["y"].copy_(b["x"].double().mean(0)), bench)
    assert found.fault is None
    assert (found.timed.changed, bench.reach["x"] > 0) == (["x"], True)


def test_a_change_that_never_shows_is_none() -> None:
    """Where no change shows beyond the tolerance inputs stay as they are, and the report says so."""
    tensors = {"x": Tensor("f32", (64, 512)), "y": Tensor("f32", (64,), "output")}
    kernel = kernel_of(lambda p, given: {"y": given["x"].mean(1)}, tensors, y=Tolerance(9, 0))
    found = run_graph(lambda b: b["y"].copy_(b["x"].double().mean(1)), bench_of(kernel, tensors))
    assert (found.fault, found.timed.changed) == (None, [])
    assert found.timed.settled


def test_a_baseline_may_lay_its_answer_out_as_it_likes() -> None:
    """Its outputs are read where and as they are: transposed, wider, in memory of its own; a wrong one is found."""
    for answer in (
        lambda b: {"y": b["x"].double() @ b["w"].double()},
        lambda b: {"y": (b["w"].double().t() @ b["x"].double().t()).t()},
        lambda b: {"y": (b["x"].double() @ b["w"].double()).float()},
    ):
        assert run_graph(answer).fault is None
        wrong = run_graph(lambda b, answer=answer: {"y": answer(b)["y"] + 1}).fault  # type: ignore[misc]
        assert wrong is not None


def test_a_baseline_that_prepared_its_inputs_sees_none_change() -> None:
    """The same bytes are written, with the values that they have: its prepared copies stay right."""
    bench = bench_of()
    prepared = [product(Problem({}), {n: t.double() for n, t in bench.given(i).items()}) for i in range(bench.sets)]
    order = iter(prepared * 100)
    found = run_graph(lambda b: next(order), bench, still=True)
    assert (found.fault, found.left_right() or True) == (None, True)
    assert found.timed.changed == []


def test_a_repeated_graph_leaves_new_inputs_alone() -> None:
    """After the bench drew inputs anew, the graph changes nothing of them once it was told to be quiet."""
    found = run_graph(right)
    found.bench.refresh()
    found.timed.reset_versions()
    found.clock.replay()
    assert found.left_right()


def assert_no_overlap(copies: Sequence[Copy]) -> None:
    """No copy of a step writes what another one of the same execution reads or writes: they happen at once."""

    def span(tensor: torch.Tensor) -> tuple[int, int]:
        return tensor.data_ptr(), tensor.data_ptr() + tensor.numel()

    for turn in ("even", "odd"):
        own = [copy for copy in copies if copy.turn in ("always", turn)]
        written = sorted(span(copy.to) for copy in own)
        read = [span(copy.source) for copy in own if copy.source is not None]
        assert all(before[1] <= after[0] for before, after in pairwise(written))
        for first, end in written:
            assert not any(begin < end and first < last for begin, last in read)


@pytest.mark.parametrize("sets", [1, 4])
def test_a_step_fits_into_the_parameters_of_a_kernel(sets: int) -> None:
    """With many inputs, outputs and workspaces too no step has more copies than there is room for."""
    tensors = {f"x{n}": Tensor("f32", (256, 256)) for n in range(9)}
    tensors |= {f"y{n}": Tensor("f32", (256, 256), "output") for n in range(5)}
    tensors |= {"z": Tensor("f32", (200, 256), "inout"), "s": Tensor("f32", (256, 256), "workspace")}

    def reference(problem: Problem, given: Buffers) -> dict[str, torch.Tensor]:
        return {f"y{n}": given[f"x{n}"] + given["x8"] for n in range(5)} | {"z": given["z"] + 1}

    kernel = kernel_of(reference, tensors, **{n: Tolerance(1e-5, 0) for n, t in tensors.items() if t.role != "input"})
    bench = bench_of(kernel, tensors, sets)

    def call(buffers: Buffers) -> None:
        for name, value in reference(Problem({}), {n: t.double() for n, t in buffers.items()}).items():
            buffers[name].copy_(value)

    for rounds in (1, 3):
        found = run_graph(call, bench, rounds=rounds, samples=1)
        assert found.fault is None
        for index in range(found.timed.calls + 1):
            found.timed.captured(index, None)
            step = found.timed.step(index)
            if step is not None:
                assert 0 < len(step[1]) <= MOST_COPIES
                assert_no_overlap(step[1])
