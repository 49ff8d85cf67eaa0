"""What is new for a candidate at any size: slices, sets in turn, references after the launch, nothing to be read."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from gate_tools import CPU, SETTINGS, Fake
from paths import ROOT

from evokern import Slice
from evokern.declaration.kernel import Kernel, Problem, Tensor, Tolerance, Workload
from evokern.errors import KernelError
from evokern.gate import Call, Gate, Verdict
from evokern.gate.check import calls, repeated
from evokern.gate.sealed import Sealed, wipe_free_memory
from evokern.study.discovery import load_kernel
from evokern.study.settings import GateSettings

Buffers = dict[str, torch.Tensor]
_LOADED = load_kernel(ROOT / "kernels" / "matmul")
MATMUL = replace(_LOADED, workload=replace(_LOADED.workload, error={}, tolerance={"c": Tolerance(0.05, 2e-3)}))
"""The packaged kernel with a plain tolerance; tests/gate/test_bounds.py covers bounds."""
PROBLEM = MATMUL.problem("300,130,24")
CONFIG = MATMUL.space.default()
TENSORS = MATMUL.workload.buffers(PROBLEM, CONFIG)
LAUNCHES = tuple(MATMUL.launches(CONFIG, PROBLEM))


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every problem is a large one."""
    monkeypatch.setattr("evokern.gate.renewal.LARGE_ELEMENTS", 0)


def product(buffers: Buffers, number: int = 0) -> None:
    buffers["c"].copy_(buffers["a"].to(torch.float64) @ buffers["b"].to(torch.float64))


class Spy:
    """A right kernel that keeps what it was given."""

    def __init__(self) -> None:
        self.seen: list[list[Buffers]] = []
        self.running = False

    def run(self, calls: Sequence[Call]) -> None:
        self.running = True
        self.seen.append([{n: t.clone() for n, t in call.arguments.items() if n in "ab"} for call in calls])
        Fake(product).run(calls)
        self.running = False


def gate_of(kernel: Kernel = MATMUL, seed: int = 3, **settings: object) -> Gate:
    return Gate(kernel, PROBLEM, replace(SETTINGS, runs=1, **settings), CPU, seed)  # type: ignore[arg-type]


def without_slices(kernel: Kernel = MATMUL) -> Kernel:
    return replace(kernel, workload=replace(kernel.workload, slices=()))


# ------------------------------------------------------------------------------------------------- what a slice is


@pytest.mark.parametrize(
    ("folder", "problem"),
    [
        *(("kernels/matmul", text) for text in ("144,160,96", "3,5,7", "300,1,8", "72,48,40,layout=nt")),
        *(("kernels/rmsnorm", text) for text in ("5,264", "300,1024", "1,2")),
        *(("kernels/attention", text) for text in ("2,3,72,64", "1,1,33,64", "2,8,64,64,causal=1")),
        *(("kernels/attention_fp8", text) for text in ("2,3,72,64", "1,2,64,64,causal=1", "2,2,40,64,dtype=u8")),
        *(("evokern/exploits/kernel", text) for text in ("37,53,90", "136,128,16")),
    ],
)
def test_slices_of_packaged_kernels_are_the_whole_reference(folder: str, problem: str) -> None:
    """New inputs in a slice change the outputs that it names, to what its reference says, and no others."""
    kernel = load_kernel(ROOT / folder)
    at = kernel.problem(problem)
    tensors = kernel.workload.buffers(at, kernel.space.default())
    named = {name for one in kernel.workload.slices_at(at) for name in one.axes}
    assert {name for name, tensor in tensors.items() if tensor.given} <= named
    for seed in range(2):
        Gate(kernel, at, GateSettings(), CPU, seed).prove_slices(tensors)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Slice({"a": 1, "c": 1}), "cuts 'c' with extents"),
        (Slice({"a": 0, "c": 0}, reference=lambda p, t, at: {"c": t["a"] @ t["b"] + 1}), "slice of a is incorrect"),
        (Slice({"b": 1, "c": 1}, reference=lambda p, t, at: {"c": t["a"] @ t["b"][:, :1]}), "of shape"),
        (Slice({"a": 0}), "names no output"),
        (Slice({"a": 0, "z": 0}), "unknown tensor 'z'; use a, b, c"),
        (Slice({"a": 2, "c": 0}), r"axis 2, .*shape is \(300, 24\)"),
    ],
)
def test_a_slice_that_is_declared_wrong_is_refused(wrong: Slice, message: str) -> None:
    """Axes that do not fit, outputs that are not those reached, another reference: each is told before a search."""
    kernel = replace(MATMUL, workload=replace(MATMUL.workload, slices=(wrong,)))
    with pytest.raises(KernelError, match=message):
        gate_of(kernel).prove_slices(TENSORS)


def test_slices_may_depend_on_the_problem() -> None:
    """Those of one layout are refused at the other, and a function that raises is named with the problem."""
    weights = MATMUL.problem("72,48,40,layout=nt")
    tensors = MATMUL.workload.buffers(weights, CONFIG)
    assert [one.axes for one in MATMUL.workload.slices_at(weights)] == [{"a": 0, "c": 0}, {"b": 0, "c": 1}]
    fixed = replace(MATMUL, workload=replace(MATMUL.workload, slices=MATMUL.workload.slices_at(PROBLEM)))
    with pytest.raises(KernelError, match="extent"):
        Gate(fixed, weights, GateSettings(), CPU, 0).prove_slices(tensors)
    broken = replace(MATMUL, workload=replace(MATMUL.workload, slices=lambda p: p["order"]))
    with pytest.raises(KernelError, match="slices raised KeyError"):
        Gate(broken, weights, GateSettings(), CPU, 0).prove_slices(tensors)


def test_a_slice_that_reaches_more_than_it_says_is_refused() -> None:
    """Rows of x that change all of y through a sum are no slice."""
    workload = Workload(
        lambda p, c: {"x": Tensor("f32", (90, 8)), "y": Tensor("f32", (90, 8), "output")},
        lambda p, t: {"y": t["x"] + t["x"].sum()},
        {"y": Tolerance(1e-3, 1e-3)},
        lambda p: 1,
        lambda p: 1,
        slices=(Slice({"x": 0, "y": 0}),),
    )
    kernel = replace(MATMUL, workload=workload)
    with pytest.raises(KernelError, match="slice of x is incorrect"):
        gate_of(kernel).prove_slices(workload.buffers(PROBLEM, CONFIG))


@pytest.mark.parametrize("axes", [{}, {"a": (0, 0), "c": (0, 1)}, {"a": 0, "c": (0, 1)}, {"a": -1, "c": 0}])
def test_a_slice_without_sense_is_refused(axes: Mapping[str, int]) -> None:
    """No tensor, an axis twice, other numbers of axes, axes from the end."""
    with pytest.raises(KernelError, match="Slice"):
        Slice(axes)


# ------------------------------------------------------------------------------------------- what is new, and how much


@pytest.mark.usefixtures("large")
def test_slices_reach_a_share_of_the_outputs_and_all_inputs_in_time() -> None:
    """Each candidate gets 64 rows and columns at least of every set that is kept; after some, every input is new."""
    gate, spy = gate_of(input_sets=("normal", "large", "denormal")), Spy()
    for _ in range(6):
        assert gate.check(spy, LAUNCHES, TENSORS).passed
    for before, after in itertools.pairwise(spy.seen):
        for old, new in zip(before, after, strict=True):
            rows = (old["a"] != new["a"]).any(1).sum()
            columns = (old["b"] != new["b"]).any(0).sum()
            assert (int(rows), int(columns)) == (64, 64)
    for index in range(3):
        for name, axis in (("a", 1), ("b", 0)):
            drawn = [calls[index][name] for calls in spy.seen]
            touched = torch.stack([(one != two).any(axis) for one, two in itertools.pairwise(drawn)])
            assert bool(touched.any(0).all())


@pytest.mark.usefixtures("large")
def test_one_in_a_hundred_outputs_where_that_is_more() -> None:
    """Of 20,000 rows 200 are renewed; with few rows as many as there are."""
    for rows, expected in (("20000,8,8", 200), ("9,8,8", 9), ("100,8,8", 64)):
        at = MATMUL.problem(rows)
        tensors = MATMUL.workload.buffers(at, CONFIG)
        bench = Gate(MATMUL, at, SETTINGS, CPU, 1).bench(tensors, ("normal",), 1)
        bench.refresh()
        before = bench.arguments(0)["a"].clone()
        bench.refresh()
        assert int((bench.arguments(0)["a"] != before).any(1).sum()) == expected


@pytest.mark.usefixtures("large")
def test_references_are_computed_after_the_launch_and_wholes_once() -> None:
    """No reference is computed before a candidate has run; what a slice does not reach is not computed again."""
    asked: list[tuple[int, ...]] = []
    spy = Spy()
    launched = 0

    def reference(p: Problem, t: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        assert len(spy.seen) == launched + 1
        assert not spy.running
        asked.append((len(t["a"]), t["b"].shape[1]))
        return {"c": t["a"] @ t["b"]}

    gate = gate_of(replace(MATMUL, workload=replace(MATMUL.workload, reference=reference)), input_sets=("normal",))
    for launched in range(4):  # noqa: B007 (the reference looks at it)
        assert gate.check(spy, LAUNCHES, TENSORS).passed
    assert asked == [(300, 130), *[(64, 130), (300, 64)] * 3]


@pytest.mark.usefixtures("large")
def test_a_wrong_answer_to_new_or_old_elements_is_found() -> None:
    """Kept references judge the elements that are not new; an answer of the candidate before is wrong in new ones."""
    gate = gate_of(input_sets=("normal",))
    kept: list[torch.Tensor] = []

    def keeps(buffers: Buffers, number: int) -> None:
        product(buffers)
        kept.append(buffers["c"].clone())

    assert gate.check(Fake(keeps), LAUNCHES, TENSORS).passed
    verdict = gate.check(Fake(lambda buffers, number: buffers["c"].copy_(kept[0])), LAUNCHES, TENSORS)
    assert verdict.evidence["bad"] > 5000

    def off(buffers: Buffers, number: int) -> None:
        product(buffers)
        buffers["c"][7, 7] += 1

    for _ in range(4):
        assert gate.check(Fake(off), LAUNCHES, TENSORS).evidence["index"] == [7, 7]
        assert gate.check(Fake(product), LAUNCHES, TENSORS).passed


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("every", [1, 3, 8])
def test_without_slices_every_set_is_new_every_so_many_candidates(every: int) -> None:
    """Each set is renewed whole once in N candidates, and not all of them at once."""
    gate, spy = gate_of(without_slices(), input_sets=("normal", "large", "denormal"), renew_every=every), Spy()
    for _ in range(2 * every + 1):
        assert gate.check(spy, LAUNCHES, TENSORS).passed
    new = [
        [not torch.equal(old["a"], now["a"]) for old, now in zip(before, after, strict=True)]
        for before, after in itertools.pairwise(spy.seen)
    ]
    assert [sum(column) for column in zip(*new, strict=True)] == [2, 2, 2]
    assert every == 1 or max(map(sum, new)) < 3


@pytest.mark.usefixtures("large")
def test_rows_of_equal_values_and_the_zero_tensor_are_renewed_whole() -> None:
    """What cannot be cut in pieces is renewed as if there were no slices; the rest of such a set by slices."""
    gate, spy = gate_of(input_sets=("equal_rows", "edges"), renew_every=3), Spy()
    for _ in range(10):
        assert gate.check(spy, LAUNCHES, TENSORS).passed
    for sets in spy.seen:
        assert bool((sets[0]["b"] == sets[0]["b"][:, :1]).all())
        assert [bool(sets[2][name].any()) for name in "ab"].count(False) == 1
    changes = [not torch.equal(one[0]["b"], two[0]["b"]) for one, two in itertools.pairwise(spy.seen)]
    assert changes.count(True) == 3


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("kernel", [MATMUL, without_slices()], ids=["slices", "none"])
def test_a_repeated_call_gets_other_inputs(kernel: Kernel) -> None:
    """An answer remembered for a set of buffers is found at any size, with slices and without."""
    for share in (1.0, 1 / 16):
        bench = gate_of(kernel).bench(TENSORS, ("normal",) * 4, 1)
        bench.refresh()
        before = [bench.arguments(index)["a"].clone() for index in range(4)]
        bench.refresh(share, repetition=True)
        new = [not torch.equal(bench.arguments(index)["a"], before[index]) for index in range(4)]
        assert sum(new) == (4 if kernel.workload.slices else 1)
        bench.poison()
    gate = gate_of(kernel)
    bench = gate.bench(TENSORS, ("normal",) * 4, 1)
    bench.refresh()
    bench.poison()
    answers: dict[int, torch.Tensor] = {}

    def remembers(buffers: Buffers, number: int) -> None:
        product(buffers)
        buffers["c"].copy_(answers.setdefault(buffers["c"].data_ptr(), buffers["c"].clone()))

    made = calls(bench, LAUNCHES)
    Fake(remembers).run(made)
    assert not any(one.bad for one in bench.verify().worst)
    assert not repeated(bench, lambda _: Fake(remembers).run(made), problem=PROBLEM).passed


@pytest.mark.usefixtures("large")
def test_a_new_best_gets_everything_new() -> None:
    """Asked for whole, no input is as it was, whatever is kept otherwise."""
    for kernel in (MATMUL, without_slices()):
        gate, spy = gate_of(kernel, input_sets=("normal", "large")), Spy()
        assert gate.check(spy, LAUNCHES, TENSORS).passed
        assert gate.check(spy, LAUNCHES, TENSORS, whole=True).passed
        for old, new in zip(*spy.seen, strict=True):
            assert all(float((old[name] == new[name]).double().mean()) < 0.05 for name in "ab")


@pytest.mark.usefixtures("large")
def test_no_clock_decides_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one seed the inputs of every candidate are the same, however long its references take."""
    taken = []
    for seconds in (0.0, 1e6):
        monkeypatch.setattr("time.perf_counter", lambda s=seconds: s)
        monkeypatch.setattr("time.monotonic", lambda s=seconds: s)
        gate, spy = gate_of(without_slices(), input_sets=("normal", "edges")), Spy()
        for _ in range(5):
            gate.check(spy, LAUNCHES, TENSORS)
        taken.append([call["a"] for calls in spy.seen for call in calls])
    monkeypatch.undo()
    assert all(torch.equal(one.nan_to_num(), two.nan_to_num()) for one, two in zip(*taken, strict=True))


def test_small_problems_are_new_whole_for_every_candidate() -> None:
    """Where a reference costs little no input is kept."""
    gate, spy = gate_of(input_sets=("normal", "large")), Spy()
    for _ in range(3):
        assert gate.check(spy, LAUNCHES, TENSORS).passed
    for before, after in itertools.pairwise(spy.seen):
        assert all(float((old["a"] == new["a"]).double().mean()) < 0.05 for old, new in zip(before, after, strict=True))


# ----------------------------------------------------------------------------------------- what a candidate can read


def tensors_of(value: object, seen: set[int]) -> Iterator[torch.Tensor]:
    """Yield every tensor that hangs on an object of the gate."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from tensors_of(one, seen)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_of(one, seen)
    elif type(value).__module__.startswith("evokern.gate"):
        yield from tensors_of(vars(value), seen)


def found_in(gate: Gate, needles: Sequence[bytes]) -> int:
    """Return how many of some bytes lie in what the gate keeps."""
    memory = [
        tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for tensor in tensors_of(gate, set())
        if tensor.dtype is not torch.bool
    ]
    return sum(any(needle in raw for raw in memory) for needle in needles)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("sealed", [True, False])
def test_no_reference_or_answer_can_be_read_while_a_candidate_runs(
    sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all that the gate keeps there is neither a row of a reference, in any type, nor an answer left by others."""
    monkeypatch.setattr("evokern.gate.buffer_set.EXPOSED_DEVICES", ("cpu",) if sealed else ())
    gate, counts = gate_of(input_sets=("normal", "large")), []

    def searches(buffers: Buffers, number: int) -> None:
        exact = buffers["a"].to(torch.float64) @ buffers["b"].to(torch.float64)
        rows = [exact[row, column : column + 4] for row in range(0, 300, 25) for column in range(0, 120, 30)]
        needles = [row[:1].numpy().tobytes() for row in rows] + [row[:2].float().numpy().tobytes() for row in rows]
        answers = [row.to(torch.float16).numpy().tobytes() for row in rows]
        counts.append((found_in(gate, needles), found_in(gate, answers)))
        product(buffers)

    for _ in range(3):
        assert gate.check(Fake(searches), LAUNCHES, TENSORS).passed
    # The second call of a check finds the first one's right answers nowhere: they are to other inputs.
    assert [answers for _, answers in counts] == [0] * 6
    if sealed:
        assert [references for references, _ in counts] == [0] * 6
    else:
        assert any(references for references, _ in counts)  # the search would find them


@pytest.mark.parametrize("at_once", [1 << 24, 4000])
def test_sealed_rows_come_back_and_look_like_nothing(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is what was put there; at rest it has no pattern, nor one it had before. Few share a key."""
    monkeypatch.setattr("evokern.gate.sealed._WORDS_AT_ONCE", at_once)
    sealed = Sealed(2, 5000, CPU, random.Random(1), active=True, together=True)
    words = torch.zeros((2, 5000), dtype=torch.int64)
    seen = []
    sealed.put([0, 1], words)
    words[0] = 7
    for row in (0, 1, 0):
        sealed.put([row], words)
        assert all(torch.equal(sealed.get(number), words[number]) for number in range(2))
        assert torch.equal(torch.cat([plain for _, plain in sealed.plain()]), words)
        seen.append(sealed.memory[row].clone())
    bits = np.unpackbits(seen[0].numpy().view(np.uint8))
    assert abs(float(bits.mean()) - 0.5) < 0.01
    assert not any(torch.equal(one, two) for one, two in ((seen[0], seen[1]), (seen[0], seen[2])))
    assert wipe_free_memory(CPU) == 0


@pytest.mark.parametrize("sealed", [True, False])
def test_inputs_that_were_changed_are_mended_and_blamed(sealed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that puts NaN into its inputs is wrong, no mistake of the reference's, and harms no later one."""
    monkeypatch.setattr("evokern.gate.buffer_set.EXPOSED_DEVICES", ("cpu",) if sealed else ())
    gate = gate_of(input_sets=("normal", "large"))

    def spoils(buffers: Buffers, number: int) -> None:
        product(buffers)
        buffers["b"].fill_(float("nan"))

    for _ in range(2):
        verdict = gate.check(Fake(spoils), LAUNCHES, TENSORS)
        assert (verdict.evidence["check"], verdict.evidence["message"][:22]) == (
            "inputs_unchanged",
            "changed its input 'b' ",
        )
        assert gate.check(Fake(product), LAUNCHES, TENSORS).passed


@pytest.mark.usefixtures("large")
def test_inputs_that_a_crash_left_changed_are_mended() -> None:
    """Where a candidate did not come to its end nobody looked at its inputs: they are as before for the next one."""
    gate = gate_of(input_sets=("normal", "large"))
    assert gate.check(Fake(product), LAUNCHES, TENSORS).passed

    def dies(buffers: Buffers, number: int) -> None:
        buffers["a"].fill_(1)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        gate.check(Fake(dies), LAUNCHES, TENSORS)
    assert gate.check(Fake(product), LAUNCHES, TENSORS).passed


def test_each_of_several_new_slices_must_have_a_finite_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference that is not finite in one of them is the reference's mistake, not the candidate's."""
    monkeypatch.setattr("evokern.gate.renewal.LARGE_ELEMENTS", 0)
    asked = itertools.count()

    def reference(p: Problem, t: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        answer = t["a"] @ t["b"]
        if next(asked) == 1:  # the first slice after the whole one; another one follows
            answer[0, 0] = torch.inf
        return {"c": answer}

    gate = gate_of(replace(MATMUL, workload=replace(MATMUL.workload, reference=reference)), input_sets=("normal",))
    assert gate.check(Fake(product), LAUNCHES, TENSORS).passed
    with pytest.raises(KernelError, match="NaN or infinity"):
        gate.check(Fake(product), LAUNCHES, TENSORS)


# ------------------------------------------------------------------------------------------------- integers' own draws


def table_kernel(draw: Callable[[torch.Generator], torch.Tensor], change: object = "nothing") -> tuple[Kernel, Buffers]:
    tensors = {
        "x": Tensor("f32", (40, 6)),
        "table": Tensor("i32", (40,), low=0, high=39, draw=draw, change=change),  # type: ignore[arg-type]
        "y": Tensor("f32", (40, 6), "output"),
    }
    workload = Workload(
        lambda p, c: tensors,
        lambda p, t: {"y": t["x"][t["table"].long()]},
        {"y": Tolerance(1e-6, 1e-6)},
        lambda p: 1,
        lambda p: 1,
    )
    return replace(MATMUL, workload=workload), tensors  # type: ignore[return-value]


def gather(buffers: Buffers, number: int = 0) -> None:
    assert sorted(buffers["table"].tolist()) == list(range(40)), "the table is no permutation any more"
    buffers["y"].copy_(buffers["x"][buffers["table"].long()])


def swapped(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return values.roll(1)


@pytest.mark.parametrize("change", ["nothing", swapped])
def test_a_table_is_drawn_and_changed_as_it_is_declared(change: object) -> None:
    """On every input set, and in the repetitions, a permutation stays one; new calls see another one."""
    kernel, tensors = table_kernel(lambda g: torch.randperm(40, generator=g), change)
    gate, seen = Gate(kernel, PROBLEM, SETTINGS, CPU, 3), []

    def watches(buffers: Buffers, number: int) -> None:
        gather(buffers)
        seen.append(tuple(buffers["table"].tolist()))

    verdict: Verdict = gate.check(Fake(watches), LAUNCHES, tensors)  # type: ignore[arg-type]
    assert verdict.passed, verdict.evidence
    assert gate.repeat(Fake(watches), LAUNCHES, tensors).passed  # type: ignore[arg-type]
    assert len(set(seen[:6])) == 6
    last, touched = seen[8:14], seen[16:22]
    assert [one == two for one, two in zip(last, touched, strict=True)] == [change == "nothing"] * 6


def test_two_declarations_of_one_table_share_buffers() -> None:
    """A function made anew with each call of `tensors` makes no other tensor of it."""
    one, two = (table_kernel(lambda g: torch.randperm(40, generator=g))[1] for _ in range(2))
    assert one == two
    gate = Gate(table_kernel(lambda g: torch.randperm(40, generator=g))[0], PROBLEM, SETTINGS, CPU, 3)
    assert gate.bench(one, ("normal",), 1) is gate.bench(two, ("normal",), 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda g: torch.arange(39), r"`draw` of a i32 tensor of shape \(40,\) returned \(39,\)"),
        (lambda g: torch.arange(40) + 2**31, "values that i32 cannot represent"),
        (lambda g: torch.arange(40) + 0.5, "values that i32 cannot represent"),
        (lambda g: [1, 2], "returned list"),
        (lambda g: 1 / 0, "raised ZeroDivisionError"),
    ],
)
def test_a_draw_that_does_not_fit_is_the_user_s_mistake(draw: Callable[..., object], message: str) -> None:
    """Shape, range, whole numbers, and exceptions each get their message."""
    kernel, tensors = table_kernel(draw)  # type: ignore[arg-type]
    with pytest.raises(KernelError, match=message):
        Gate(kernel, PROBLEM, SETTINGS, CPU).check(Fake(gather), LAUNCHES, tensors)  # type: ignore[arg-type]


def test_a_change_that_raises_is_the_user_s_mistake_too() -> None:
    """It is told by its name, as a draw is."""

    def change(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        raise ZeroDivisionError("no such row")

    kernel, tensors = table_kernel(lambda g: torch.randperm(40, generator=g), change)
    gate = Gate(kernel, PROBLEM, SETTINGS, CPU)
    assert gate.check(Fake(gather), LAUNCHES, tensors).passed  # type: ignore[arg-type]
    with pytest.raises(
        KernelError, match=r"`change` of a i32 tensor of shape \(40,\) raised ZeroDivisionError: no such row"
    ):
        gate.repeat(Fake(gather), LAUNCHES, tensors)  # type: ignore[arg-type]


def test_what_may_change_is_one_of_three() -> None:
    """A word that is neither is refused."""
    with pytest.raises(KernelError, match="'elements', 'nothing', or a function"):
        Tensor("i32", (4,), change="some")  # type: ignore[arg-type]
