"""Marginal candidates: errors close to a tolerance are decided by fresh inputs, equally in all searches of one seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from gate_tools import CONFIG, CPU, KERNEL, LAUNCHES, SETTINGS, Fake

from evokern.declaration.genes import Config
from evokern.gate import Call, Gate, Verdict
from evokern.gate.check import MAX_DRAWS, candidate_seed

PROBLEM = KERNEL.problem("32,96")
TENSORS = KERNEL.workload.buffers(PROBLEM, CONFIG)
Noise = Callable[[int, torch.Generator], torch.Tensor]


class Rounds:
    """A kernel whose errors, as shares of the tolerance, are drawn by its inputs, and that counts its runs."""

    def __init__(self, scale: float, first: float = 0.0) -> None:
        """Draw errors that decrease exponentially; in the first run, `first` is the error of one element."""
        self.scale, self.first = scale, first
        self.runs = 0

    def run(self, calls: Sequence[Call]) -> None:
        self.runs += 1
        Fake(self._compute).run(calls)

    def _compute(self, buffers: dict[str, torch.Tensor], number: int) -> None:
        x = buffers["x"].double()
        exact = KERNEL.workload.reference(PROBLEM, {"x": x})["y"]
        seed = int(buffers["x"].view(torch.int32).long().sum()) % (1 << 62)
        chance = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        share = -self.scale * chance.clamp_min(1e-12).log()
        if self.runs == 1 and self.first:
            share[0, 0] = self.first
        # Half a unit of float32 is 0.006 of the tolerance.
        buffers["y"].copy_(exact + share * (1e-6 + 1e-5 * exact.abs()))


def gate() -> Gate:
    settings = {"input_sets": ("normal",), "runs": 1}
    return Gate(KERNEL, PROBLEM, SETTINGS.__class__(**{**vars(SETTINGS), **settings}), CPU)


def judged(one: Gate, rounds: Rounds, secret: int, config: Config = CONFIG) -> Verdict:
    """Check a candidate as a GPU worker does."""
    one.reseed(candidate_seed(secret, config, PROBLEM, "check"))
    verdict = one.check(rounds, LAUNCHES, TENSORS)
    one.reseed(candidate_seed(secret, config, PROBLEM, "fresh inputs"))
    return one.retest(verdict, rounds, LAUNCHES, TENSORS)


@pytest.fixture(params=[False, True], ids=["small", "large"])
def large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether candidates share inputs."""
    if request.param:
        monkeypatch.setattr("evokern.gate.renewal.LARGE_ELEMENTS", 0)
    return bool(request.param)


@pytest.mark.usefixtures("large")
def test_the_seed_decides_and_not_the_candidates_before() -> None:
    """Two searches of one seed agree on outcome, message and draws, whatever ran before; other seeds differ."""
    found = []
    for secret in range(8):
        alone, later = gate(), gate()
        for other in range(secret % 3 + 1):
            judged(later, Rounds(0.02), other, CONFIG)
        pair = [(judged(one, rounds := Rounds(0.11), secret), rounds.runs) for one in (alone, later)]
        (first, runs), (second, again) = pair
        assert (first.passed, first.evidence, runs) == (second.passed, second.evidence, again)
        found.append((first.passed, runs))
    assert len({runs for _, runs in found}) > 1, "the seed decides how many draws are needed"


def test_a_candidate_runs_until_it_is_decided(large: bool) -> None:
    """Errors far below half of a tolerance need one draw; errors near it need more, up to a limit."""
    clear = Rounds(0.02)
    assert (judged(gate(), clear, 1).marginal, clear.runs) == (False, 1)
    for scale, passes in ((0.062, True), (0.11, False)):
        for secret in range(4):
            near = Rounds(scale)
            verdict = judged(gate(), near, secret)
            assert verdict.marginal or near.runs == 1
            assert verdict.passed is passes, (scale, secret, verdict.evidence)
            assert near.runs <= MAX_DRAWS + large


def test_an_error_above_the_tolerance_on_shared_inputs_is_decided_by_fresh_ones(large: bool) -> None:
    """Inputs that candidates share depend on earlier candidates, so a slight excess there is no proof."""
    verdict = judged(gate(), Rounds(0.02, first=1.2), 3)
    assert (verdict.passed, verdict.marginal) == (large, large)
    assert not large or verdict.report["checks"]["of_tolerance"]["normal"] < 0.5, "the report is of fresh inputs"
    assert not judged(gate(), Rounds(0.02, first=2.5), 3).passed
    assert not judged(gate(), Rounds(0.3, first=1.2), 3).passed
