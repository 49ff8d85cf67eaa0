"""The gate: right candidates pass, each fault fails the check meant for it, and a gate without power is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from gate_tools import CONFIG, CPU, KERNEL, LAUNCHES, PROBLEM, SETTINGS, TENSORS, Fake, workload_of
from hypothesis import given, settings
from hypothesis import strategies as st

from evokern.declaration.kernel import DTYPE_BYTES, Kernel, Launch, Problem, Tensor, Tolerance, Workload
from evokern.errors import KernelError
from evokern.gate import Gate, Verdict, prove_power
from evokern.gate.data import draw, is_float, torch_dtype
from evokern.gate.guarded_buffers import GuardedBuffers


def correct_kernel(buffers: dict[str, torch.Tensor], number: int = 0) -> None:
    x = buffers["x"].to(torch.float64)
    buffers["y"].copy_(2.5 * x / x.abs().amax(dim=-1, keepdim=True).clamp_min(1e-30))


def verdict_of(kernel: Callable[[dict[str, torch.Tensor], int], None], **changes: object) -> Verdict:
    gate = Gate(replace(KERNEL, **changes), PROBLEM, SETTINGS, CPU)  # type: ignore[arg-type]
    return gate.check(Fake(kernel), LAUNCHES, TENSORS)


def outside(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """One byte at an offset from a buffer's start, as a stray pointer would reach it."""
    storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return storage[tensor.data_ptr() - storage.data_ptr() + offset :][:1]


def test_a_right_kernel_passes_and_its_error_is_recorded() -> None:
    """A right kernel passes on every input set, with its relative error and worst element."""
    verdict = verdict_of(correct_kernel)
    assert verdict.passed
    assert 0 < verdict.report["relative_error"] < 1e-7
    assert verdict.report["input_sets"] == ["normal", "large", "equal_rows", "denormal", "edges"]
    assert verdict.report["worst"]["over"] < 1


def one_nan(buffers: dict[str, torch.Tensor], number: int) -> None:
    correct_kernel(buffers)
    buffers["y"][3, 7] = float("nan")


def slightly_off(buffers: dict[str, torch.Tensor], number: int) -> None:
    correct_kernel(buffers)
    buffers["y"][2, 5] += 1e-3


def tail_missing(buffers: dict[str, torch.Tensor], number: int) -> None:
    keep = buffers["y"][-1, -1].clone()
    correct_kernel(buffers)
    buffers["y"][-1, -1] = keep


def only_normal(buffers: dict[str, torch.Tensor], number: int) -> None:
    correct_kernel(buffers)
    if buffers["x"].abs().max() > 60:
        buffers["y"].fill_(float("inf"))


def past_the_end(buffers: dict[str, torch.Tensor], number: int) -> None:
    correct_kernel(buffers)
    outside(buffers["y"], TENSORS["y"].bytes + 3).fill_(1)


def before_the_start(buffers: dict[str, torch.Tensor], number: int) -> None:
    correct_kernel(buffers)
    outside(buffers["y"], -4).fill_(1)


def around_an_input(buffers: dict[str, torch.Tensor], number: int) -> None:
    correct_kernel(buffers)
    outside(buffers["x"], TENSORS["x"].bytes).fill_(1)


def scratches_its_input(buffers: dict[str, torch.Tensor], number: int) -> None:
    correct_kernel(buffers)
    buffers["x"][0, 0] += 1


def not_reproducible(buffers: dict[str, torch.Tensor], number: int) -> None:
    correct_kernel(buffers)
    buffers["y"][0, 0] *= 1 + 1e-6 * number


def infinite(buffers: dict[str, torch.Tensor], number: int) -> None:
    buffers["y"].fill_(float("inf"))


@pytest.mark.parametrize(
    ("kernel", "check", "message"),
    [
        (one_nan, "tolerance", r"y\[3, 7\] is nan.*1 of 480 elements"),
        (slightly_off, "tolerance", r"y\[2, 5\] is .*within.*1 of 480 elements"),
        (tail_missing, "tolerance", r"y\[4, 95\] was never written"),
        (only_normal, "tolerance", "large inputs at ROWS=5 COLS=96"),
        (past_the_end, "guard", "past the end of 'y', at offset 3"),
        (before_the_start, "guard", "wrote 4 bytes before the start of 'y'"),
        (around_an_input, "inputs_unchanged", "past the end of 'x'"),
        (scratches_its_input, "inputs_unchanged", "changed its input 'x'"),
        (not_reproducible, "deterministic", "two runs on the same inputs differ"),
        (infinite, "tolerance", "480 of 480"),
    ],
)
def test_each_fault_fails_its_check(
    kernel: Callable[[dict[str, torch.Tensor], int], None], check: str, message: str
) -> None:
    """Each kind of fault fails, and the evidence names the check, the place and the inputs."""
    verdict = verdict_of(kernel)
    assert not verdict.passed
    assert verdict.evidence["check"] == check
    assert re.search(message, verdict.evidence["message"]), verdict.evidence["message"]


@pytest.mark.parametrize("kernel", [one_nan, infinite, tail_missing, correct_kernel])
def test_evidence_and_report_are_json(kernel: Callable[[dict[str, torch.Tensor], int], None]) -> None:
    """Whatever a candidate computes, its record is JSON that every reader takes: no NaN, no Infinity."""
    verdict = verdict_of(kernel)
    json.dumps([dict(verdict.evidence), dict(verdict.report)], allow_nan=False)


def test_a_kernel_declared_not_deterministic_may_differ_within_the_tolerance() -> None:
    """Bitwise equality is asked of deterministic kernels alone; the tolerance of all."""
    assert verdict_of(not_reproducible, deterministic=False).passed


def test_a_faulty_candidate_does_not_spoil_the_next_one() -> None:
    """Guards, inputs and outputs are made anew: a right kernel passes after any faulty one."""
    gate = Gate(KERNEL, PROBLEM, SETTINGS, CPU)
    for faulty in (past_the_end, around_an_input, scratches_its_input, one_nan):
        assert not gate.check(Fake(faulty), LAUNCHES, TENSORS).passed
        assert gate.check(Fake(correct_kernel), LAUNCHES, TENSORS).passed


def test_inputs_are_new_for_every_candidate() -> None:
    """No candidate sees the inputs that another one saw."""
    gate, seen = Gate(KERNEL, PROBLEM, SETTINGS, CPU), []

    def remember(buffers: dict[str, torch.Tensor], number: int) -> None:
        correct_kernel(buffers)
        if number == 0:
            seen.append(buffers["x"].clone())

    for _ in range(3):
        gate.check(Fake(remember), LAUNCHES, TENSORS)
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


def check(kernel: Kernel, run: Callable[[dict[str, torch.Tensor], int], None]) -> Verdict:
    tensors = dict(kernel.workload.buffers(Problem({}), CONFIG))
    return Gate(kernel, Problem({}), SETTINGS, CPU).check(Fake(run), (Launch("k", (1,), (1,), ("x", "y")),), tensors)


def test_a_result_beyond_the_dtype_may_be_infinite_or_the_largest_value_of_its_sign() -> None:
    """Overflow that the exact result has too is right; overflow of a representable result is wrong."""
    kernel = workload_of("f16", lambda p, i: {"y": i["x"] * 1e5}, Tolerance(1e-2, 1e-2))

    def overflow(buffers: dict[str, torch.Tensor], number: int) -> None:
        buffers["y"].copy_(buffers["x"].to(torch.float64) * 1e5)

    def saturate(buffers: dict[str, torch.Tensor], number: int) -> None:
        buffers["y"].copy_((buffers["x"].to(torch.float64) * 1e5).clamp(-65504, 65504))

    def wrong_sign(buffers: dict[str, torch.Tensor], number: int) -> None:
        buffers["y"].copy_((buffers["x"].to(torch.float64) * 1e5).abs())

    assert check(kernel, overflow).passed
    assert check(kernel, saturate).passed
    assert not check(kernel, wrong_sign).passed


def test_an_integer_nobody_wrote_is_found_though_it_equals_the_poison() -> None:
    """Poison differs between runs, so that an unwritten integer cannot be right by luck."""
    kernel = workload_of("i8", lambda p, i: {"y": torch.full((4, 8), -1.0, dtype=torch.float64)}, Tolerance(0, 0))

    def partly(buffers: dict[str, torch.Tensor], number: int) -> None:
        buffers["y"][:3] = -1

    assert not check(kernel, partly).passed

    def wholly(buffers: dict[str, torch.Tensor], number: int) -> None:
        buffers["y"].fill_(-1)

    assert check(kernel, wholly).passed


def test_in_place_buffers_start_from_their_inputs_and_workspaces_as_declared() -> None:
    """`inout` is reset before every run, `zero` workspaces are zero, others are poisoned."""

    def tensors(p: object, c: object) -> dict[str, Tensor]:
        return {
            "y": Tensor("f32", (16,), role="inout"),
            "z": Tensor("i32", (3,), role="workspace", initial="zero"),
            "w": Tensor("f32", (3,), role="workspace"),
        }

    workload = Workload(tensors, lambda p, i: {"y": i["y"] + 1}, {"y": Tolerance(1e-6, 1e-6)}, lambda p: 1, lambda p: 1)
    states = []

    def increment(buffers: dict[str, torch.Tensor], number: int) -> None:
        states.append((int(buffers["z"].sum()), bool(buffers["w"].isnan().all())))
        buffers["z"] += 1
        buffers["y"] += 1

    kernel = replace(KERNEL, workload=workload)
    gate = Gate(kernel, Problem({}), SETTINGS, CPU)
    launches = (Launch("k", (1,), (1,), ("y", "z", "w")),)
    assert gate.check(Fake(increment), launches, tensors(None, None)).passed
    assert set(states) == {(0, True)}


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (lambda p, i: {"z": i["x"]}, r"returned \['z'\]; .*\['y'\]"),
        (lambda p, i: {"y": i["x"][:2]}, r"shape \(2, 8\); declared shape: \(4, 8\)"),
        (lambda p, i: {"y": i["x"].float()}, "must compute in torch.float64"),
        (lambda p, i: {"y": i["x"] / 0}, "NaN or infinity"),
        (lambda p, i: i["nothing"], "raised KeyError"),
    ],
)
def test_an_unsound_reference_is_the_users_mistake(reference: Callable[..., object], message: str) -> None:
    """Wrong names, shapes, dtypes, NaN and exceptions each get their message."""
    with pytest.raises(KernelError, match=message):
        check(workload_of("f32", reference, Tolerance(1e-3, 1e-3)), lambda buffers, number: None)


def test_the_gate_proves_its_power_or_names_the_tolerance() -> None:
    """Degenerate kernels fail on a sound workload; a tolerance that lets one through is refused by its numbers."""
    prove_power(Gate(KERNEL, PROBLEM, SETTINGS, CPU), LAUNCHES, TENSORS)
    loose = Gate(KERNEL, PROBLEM, replace(SETTINGS, atol=6.0), CPU)
    with pytest.raises(KernelError, match=r"writes zeros passes at ROWS=5 COLS=96 with the tolerance y: atol = 6"):
        prove_power(loose, LAUNCHES, TENSORS)
    copying = workload_of("f32", lambda p, i: {"y": i["x"] * 1.0001}, Tolerance(0.0, 1e-2))
    with pytest.raises(KernelError, match="copies its input 'x'"):
        prove_power(
            Gate(copying, Problem({}), SETTINGS, CPU),
            (Launch("k", (1,), (1,), ("x", "y")),),
            copying.workload.buffers(Problem({}), CONFIG),
        )


def test_a_kernel_that_copies_may_be_searched() -> None:
    """Where copying an input is right to the last bit, a kernel that copies says nothing against the gate."""
    copying = workload_of("f32", lambda p, i: {"y": i["x"]}, Tolerance(0.0, 1e-6))
    prove_power(
        Gate(copying, Problem({}), SETTINGS, CPU),
        (Launch("k", (1,), (1,), ("x", "y")),),
        copying.workload.buffers(Problem({}), CONFIG),
    )


def test_large_outputs_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing set by set finds what comparing all at once finds."""
    monkeypatch.setattr("evokern.gate.comparison.ELEMENTS_AT_ONCE", 40)
    monkeypatch.setattr("evokern.gate.comparison.MAX_TOGETHER", 1)
    assert verdict_of(correct_kernel).passed
    assert verdict_of(only_normal).evidence["input_set"] == "large"


@pytest.mark.parametrize("name", DTYPE_BYTES)
@pytest.mark.parametrize("kind", ["normal", "large", "equal_rows", "denormal"])
def test_inputs_are_of_their_kind_in_every_dtype(name: str, kind: str) -> None:
    """Every dtype is drawn finite; rows are equal or subnormal where they should be."""
    tensor = Tensor(name, (6, 40))
    out = torch.empty(tensor.shape, dtype=torch_dtype(name))
    draw(tensor, kind, out, torch.Generator().manual_seed(3))  # type: ignore[arg-type]
    wide = out.to(torch.float64)
    assert bool(wide.isfinite().all())
    assert out.element_size() == DTYPE_BYTES[name]
    if kind == "equal_rows":
        assert bool((wide == wide[:, :1]).all())
        assert len(set(wide[:, 0].tolist())) > 1
    elif is_float(name):
        tiny = torch.finfo(torch_dtype(name)).smallest_normal
        assert bool((wide.abs() < tiny).all()) == (kind == "denormal")
        assert bool((wide < 0).any())
    else:
        assert tensor.low <= int(wide.min())
        assert int(wide.max()) <= tensor.high


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 700), min_size=1, max_size=4),
    sets=st.integers(1, 3),
    where=st.floats(0, 1, exclude_max=True),
)
def test_every_byte_outside_the_buffers_is_guarded(sizes: list[int], sets: int, where: float) -> None:
    """Changing any one byte is seen exactly when it lies in no buffer, and in the right set."""
    guarded = GuardedBuffers({f"t{n}": Tensor("u8", (size,)) for n, size in enumerate(sizes)}, sets, 256, CPU)
    for name in guarded.tensors:
        guarded.bytes_of(name).fill_(0)
    flat = int(where * guarded.memory.numel())
    chosen, offset = divmod(flat, guarded.memory.shape[1])
    address = guarded.memory[chosen, offset:].data_ptr()
    starts = {name: guarded.bytes_of(name)[chosen].data_ptr() for name in guarded.tensors}
    inside = any(start <= address < start + guarded.tensors[name].bytes for name, start in starts.items())
    guarded.memory[chosen, offset] += 1
    expected = [int(index == chosen and not inside) for index in range(sets)]
    assert guarded.broken_guards().tolist() == expected
    assert all((start - guarded.memory[chosen].data_ptr()) % 256 == 0 for start in starts.values())
    assert guarded.memory.stride(0) % 256 == 0


def all_a_little_off(buffers: dict[str, torch.Tensor], number: int) -> None:
    correct_kernel(buffers)
    buffers["y"] += 0.9 * 1e-6 * (1 + buffers["y"].abs())


def test_a_tolerance_spent_everywhere_is_not_rounding() -> None:
    """Errors within the tolerance at every element, but near it at all of them, are no rounding errors."""
    tolerance = {"y": Tolerance(1e-6, 1e-6)}
    workload = replace(KERNEL.workload, tolerance=tolerance)
    verdict = verdict_of(all_a_little_off, workload=workload)
    assert verdict.evidence["check"] == "tolerance_spent"
    assert verdict_of(correct_kernel, workload=workload).report["tolerance_spent"] < 0.3


def remembers(by: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[dict[str, torch.Tensor], int], None]:
    memory: dict[object, torch.Tensor] = {}

    def kernel(buffers: dict[str, torch.Tensor], number: int) -> None:
        correct_kernel(buffers)
        buffers["y"].copy_(memory.setdefault(by(buffers), buffers["y"].clone()))

    return kernel


@pytest.mark.parametrize(
    "by", [lambda b: b["y"].data_ptr(), lambda b: (b["y"].data_ptr(), float(b["x"][0, 0]), float(b["x"][3, 9]))]
)
def test_answers_remembered_from_another_call_are_found(by: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """A candidate that answers by address, or by a sample of its inputs, passes once and not when repeated."""
    gate = Gate(KERNEL, PROBLEM, replace(SETTINGS, runs=1), CPU, seed=1)
    kernel = Fake(remembers(by))
    assert gate.check(kernel, LAUNCHES, TENSORS).passed
    assert gate.repeat(kernel, LAUNCHES, TENSORS).evidence["check"] == "repeat"
    assert gate.repeat(Fake(correct_kernel), LAUNCHES, TENSORS).passed
