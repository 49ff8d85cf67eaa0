"""A search in which nothing can be right ends early and says why; one that can succeed does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from engine_helpers import go, study
from typer.testing import CliRunner
from unsuccessful_kernels import NEVER, Generated, sometimes

import evokern
from evokern.analysis.no_success import no_success_hints, stop_text
from evokern.cli.app import app
from evokern.compile.failure_cause import Cause, cause_of, genes_acting_alone, genes_reaching
from evokern.declaration.genes import Config, Parameter
from evokern.declaration.space import Space
from evokern.device.recorded.table import Table, TableDevice, measured
from evokern.errors import UsageError
from evokern.hardware.profiles import chip
from evokern.search import Progress
from evokern.search._failures import NOTHING_RIGHT, SAME_CAUSE, FailureWatch
from evokern.store import open_readonly
from evokern.study.discovery import kernel_of
from evokern.study.file import read_study
from evokern.study.trial import Evaluation, Outcome, Proposal, Trial


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code below the working directory is trusted."""
    monkeypatch.chdir(tmp_path)


LINE = 12
"""Line of a generated kernel's body."""
GENES = (Parameter("A", tuple(range(8))), Parameter("B", tuple(range(8))), Parameter("C", tuple(range(8))))
WRONG = Evaluation(Outcome.WRONG, evidence={"check": "tolerance", "message": "y[0] is 1, expected 2"})


def crashed(line: int | None = 7, kind: str = "out_of_bounds") -> Evaluation:
    finding = {"kind": kind, "line": line, "file": None}
    return Evaluation(Outcome.CRASHED, evidence={"error": kind, "finding": finding})


def trial(number: int, config: Config, evaluation: Evaluation) -> Trial:
    return Trial(number, Proposal(config), evaluation)


def table(failed: Evaluation = WRONG) -> Table:
    """A recording of 512 candidates that all fail."""
    answers = dict.fromkeys(Space(GENES).grid(), failed)
    return Table("never", GENES, answers, chip("l4"), baseline_us=8.0)


def watched(genes: set[str], evaluation: Callable[[Config], Evaluation], count: int) -> FailureWatch:
    """The rule after the first candidates of the space, for causes on which these genes have an effect."""
    watch = FailureWatch(Space(GENES), lambda cause: frozenset(genes))
    for number, config in enumerate(Space(GENES).grid()):
        if number < count:
            watch.add(trial(number, config, evaluation(config)))
    return watch


def searched(generated: Generated, folder: Path, **keywords: object) -> evokern.SearchResult:
    """Search a generated kernel until a candidate is right or the search ends."""
    path = generated.write(folder)

    def until_right(progress: Progress) -> None:
        if progress.best is not None:
            raise KeyboardInterrupt

    return evokern.search(
        str(path), db=folder / "a.db", seed=1, trials=600, verify=False, on_progress=until_right, warm_start="none",
        **keywords,  # type: ignore[arg-type]
    )  # fmt: skip


def test_nothing_right_ends_a_search(tmp_path: Path) -> None:
    """After 350 evaluated trials without a right one, the session ends; the next one ends at once and says why."""
    result = go(tmp_path / "a.db", table(), sampler="random")
    evaluated = sum(result.summary["outcomes"].values())
    assert (result.end, result.best) == ("no_success", None)
    assert NOTHING_RIGHT <= evaluated <= NOTHING_RIGHT + 90  # those in flight end
    again = go(tmp_path / "a.db", table(), sampler="random")
    assert (again.end, sum(again.summary["outcomes"].values())) == ("no_success", evaluated)
    further = go(tmp_path / "a.db", table(), sampler="random", keep_going=True, trials=evaluated + 3)
    assert further.end == "trials"
    shown = CliRunner().invoke(app, ["show", "--db", "a.db"]).output
    assert "stopped early" not in shown


def test_one_cause_ends_a_search_only_if_no_gene_reaches_it() -> None:
    """40 failures of one cause suffice if each combination of the genes that reach it has failed."""
    assert not watched(set(), lambda config: crashed(), SAME_CAUSE - 1).hopeless
    assert watched(set(), lambda config: crashed(), SAME_CAUSE).hopeless
    assert watched({"C"}, lambda config: crashed(), SAME_CAUSE).hopeless
    assert not watched({"B", "C"}, lambda config: crashed(), 63).hopeless
    assert watched({"B", "C"}, lambda config: crashed(), 64).hopeless
    assert not watched({"A"}, lambda config: crashed(), 300).hopeless  # A is still 0 to 4


def test_different_causes_do_not_count_as_one() -> None:
    """Another line, another check or a slow trial that was not checked leaves the search its 350 trials."""
    assert not watched(set(), lambda config: crashed(7 + config.C % 2), 100).hopeless
    assert not watched(set(), lambda config: crashed(7, "trap" if config.C else "misaligned"), 100).hopeless
    slow = Evaluation(Outcome.SLOW, 9.0, evidence={"elite_us": 1.0})
    assert not watched(set(), lambda config: slow, 512).hopeless
    assert not watched(set(), lambda config: measured(1.0, "x") if config.C == 7 else crashed(), 512).hopeless


def test_trials_of_earlier_code_do_not_count() -> None:
    """Failures from before a change of the kernel are not failures of the kernel."""
    watch = FailureWatch(Space(GENES), lambda cause: frozenset(), frozenset(range(100)))
    for number, config in enumerate(Space(GENES).grid()):
        watch.add(trial(number, config, crashed()))
        assert watch.hopeless == (number >= 139)


def test_infeasible_values_need_not_fail() -> None:
    """A combination of values that no feasible candidate has is not waited for."""
    space = Space(GENES, lambda config: config.A < 5)
    watch = FailureWatch(space, lambda cause: frozenset({"A"}))
    feasible = [config for config in space.grid() if space.feasible(config)]
    for number, config in enumerate(feasible[::8]):
        watch.add(trial(number, config, crashed()))
    assert watch.hopeless


@pytest.mark.parametrize(
    ("body", "line", "genes"),
    [
        ("y[i + 100000] = 2.f * v;", LINE, {"THREADS", "ITEMS"}),
        ("y[i] = 2.f * v;", LINE, {"THREADS", "ITEMS", "UNROLL"}),
        ("y[i] = v; if (PAD == 3) __trap();", LINE, {"THREADS", "ITEMS", "UNROLL", "PAD"}),
    ],
)
def test_genes_that_reach_a_line(tmp_path: Path, body: str, line: int, genes: set[str]) -> None:
    """Only genes that have an effect on a line's addresses, values or conditions reach it."""
    kernel = kernel_of(read_study(replace(NEVER["trap"], body=body).write(tmp_path)), trust=True)
    source = (tmp_path / "kernels" / "copy" / "kernel.cu").read_text().splitlines()
    assert body in source[line - 1]
    check = "out_of_bounds" if "+ 100000" in body else "trap"
    found = genes_reaching(kernel, kernel.space, kernel.problem("1000"), Cause(check, "", line))
    assert found == genes


@pytest.mark.parametrize(
    ("generated", "joint"),
    [
        (NEVER["wrong factor"], {"UNROLL"}),
        (NEVER["race"], {"THREADS", "UNROLL"}),
        (sometimes()["tolerance, a pair, 2 %"], {"THREADS", "ITEMS", "UNROLL"}),
        (sometimes()["#error, a triple, 2 %"], {"UNROLL", "PAD", "ITEMS"}),
        (Generated(begin="  const int t = THREADS;", body="y[i] = (blockDim.x == t * PAD ? 2.f : 3.f) * x[i];"),
         {"THREADS", "ITEMS", "UNROLL", "PAD"}),
        (Generated(body="y[i + abs(THREADS * ITEMS - 576) * 1000] = 2.f * x[i];"), {"THREADS", "ITEMS", "UNROLL"}),
        (Generated(body="for (int u = 0; u < (PAD == 3 ? 1 : 2); u++) y[i] = 2.f * x[i];"), {"PAD", "UNROLL"}),
    ],
)  # fmt: skip
def test_genes_of_conditions_matter_together(tmp_path: Path, generated: Generated, joint: set[str]) -> None:
    """Bounds of loops and factors of a thread's position matter one by one; all other uses may form one condition."""
    kernel = kernel_of(read_study(generated.write(tmp_path)), trust=True)
    alone = genes_acting_alone(kernel, kernel.space, kernel.problem("1000"))
    assert {gene.name for gene in kernel.genes} - alone == joint


def test_genes_that_act_alone_need_each_value_only() -> None:
    """Each value must have failed, but not each combination; a gene of a condition still needs all combinations."""
    configs = list(Space(GENES).grid())
    for alone, hopeless in (({"A", "B", "C"}, True), ({"A", "B"}, True), ({"C"}, False)):
        watch = FailureWatch(Space(GENES), lambda cause: frozenset("ABC"), alone=lambda alone=alone: frozenset(alone))
        for number in range(SAME_CAUSE):
            watch.add(trial(number, configs[number * 73 % 512], crashed()))
        assert watch.hopeless == hopeless


def test_trials_in_flight_are_awaited() -> None:
    """If the trials in flight may end the search, no further ones start; a second cause lifts this."""
    watch = watched(set(), lambda config: crashed(), 35)
    assert (watch.undecided(4), watch.undecided(5)) == (False, True)
    assert not watched(set(), lambda config: crashed(), SAME_CAUSE).undecided(5)
    assert not watched(set(), lambda config: crashed(7 + config.C % 2), 35).undecided(5)


def test_tolerances_on_other_inputs_are_other_causes() -> None:
    large, normal = (replace(WRONG, evidence={**WRONG.evidence, "input_set": one}) for one in ("large", "normal"))
    assert watched(set(), lambda config: large, SAME_CAUSE).hopeless
    assert not watched(set(), lambda config: large if config.C else normal, SAME_CAUSE).hopeless


def test_a_static_assertion_names_its_genes(tmp_path: Path) -> None:
    """A failure outside the kernel's function depends on the genes that it names, and an unknown place on all."""
    kernel = kernel_of(read_study(sometimes()["static_assert, a pair, 2 %"].write(tmp_path)), trust=True)
    problem = kernel.problem("1000")
    assert genes_reaching(kernel, kernel.space, problem, Cause("compile_error", "", 2)) == {"THREADS", "ITEMS"}
    assert genes_reaching(kernel, kernel.space, problem, Cause("x", "elsewhere.h", 2)) == {g.name for g in kernel.genes}
    assert genes_reaching(kernel, kernel.space, problem, Cause("tolerance")) == {g.name for g in kernel.genes}


def test_shared_memory_depends_on_the_genes_of_its_size(tmp_path: Path) -> None:
    kernel = kernel_of(read_study(NEVER["shared memory of a gene"].write(tmp_path)), trust=True)
    found = genes_reaching(kernel, kernel.space, kernel.problem("1000"), Cause("shared memory", shared=True))
    assert found == {"PAD"}


def test_causes() -> None:
    """A cause names the check and the line; a right or slow candidate has none."""
    assert cause_of(crashed()) == Cause("out_of_bounds", "", 7)
    assert cause_of(WRONG) == Cause("tolerance")
    assert cause_of(measured(1.0, "x")) is None


def _checked(shares: dict[str, float | str]) -> Evaluation:
    return replace(WRONG, gate={"1000": {"checks": {"of_tolerance": shares}}})


def test_the_explanation_names_inputs_and_remedies() -> None:
    """It says which kinds of inputs pass and which fail, with the values, and what to do."""
    configs = list(Space(GENES).grid())
    large = [trial(n, configs[n], _checked({"normal": 0.2, "large": 52.0 + n, "edges": 0.1})) for n in range(3)]
    told = " ".join(no_success_hints("k", large))
    assert "normal and edges inputs pass in every trial" in told
    assert "large inputs fail in 3 of 3 trials (largest error 54 × the tolerance)" in told
    assert "set large=" in told and "--inputs normal" in told
    none = " ".join(no_success_hints("k", [trial(0, configs[0], _checked({"normal": "nan", "large": "inf"}))]))
    assert "no kind of inputs passes" in none and "--inputs" not in none
    assert no_success_hints("k", [*large, trial(9, configs[9], measured(1.0, "x"))]) == []


def test_the_explanation_names_the_limit() -> None:
    """It says what candidates need, what the limit is, and what to do."""
    configs = list(Space(GENES).grid())

    def over(n: int) -> Trial:
        evidence = {"constraint": "static_shared_memory", "needed": 50000 + n, "available": 49152, "unit": "bytes"}
        return trial(n, configs[n], Evaluation(Outcome.OVER_RESOURCES, evidence=evidence))

    (told,) = no_success_hints("k", [over(0), over(8)])
    assert "every candidate exceeds static_shared_memory: needs 50,000 to 50,008 bytes, limit 49,152" in told
    (told,) = [line for line in no_success_hints("k", [over(0), trial(1, configs[1], WRONG)]) if "exceed" in line]
    assert "1 of 2 candidates exceed static_shared_memory" in told and "Constraint" in told
    assert "too much shared memory" in stop_text([over(0), over(1)])
    assert "out of bounds at line 7" in stop_text([trial(0, configs[0], crashed())])
    assert stop_text([trial(0, configs[0], WRONG)]) == "stopped early: none of 1 evaluated trial was right"


def test_show_and_resume_say_it(tmp_path: Path) -> None:
    """The stop is stored: `show` names it, and `resume` ends at once with exit code 1, the reason and the remedy."""
    go(tmp_path / "evokern.db", table(), sampler="random")
    shown = CliRunner().invoke(app, ["show"])
    assert "stopped early: none of 3" in shown.output and "--keep-going" in shown.output
    found = json.loads(CliRunner().invoke(app, ["show", "--json"]).output)
    assert (found["end"], found["best"]) == ("no_success", None)


def test_failures_teach_which_values_cannot_work(tmp_path: Path) -> None:
    """Before anything is right, values that never compile (62 % of the space) are avoided by most later trials."""
    error = Evaluation(Outcome.COMPILE_ERROR, evidence={"log": "no", "message": "no"})
    answers = {c: error if c.A >= 3 else WRONG for c in Space(GENES).grid()}
    go(tmp_path / "a.db", Table("never", GENES, answers, chip("l4")), trials=150)
    with open_readonly(tmp_path / "a.db") as reader:
        trials = list(reader.trials(reader.study(None)))
    late = [one.config.A >= 3 for one in trials[30:]]
    assert sum(late) / len(late) < 1 / 5


def test_inputs_must_be_normal() -> None:
    with pytest.raises(UsageError, match="use normal"):
        evokern.search(study(), device=TableDevice(table()), inputs="large")


@pytest.mark.parametrize("name", ["undefined name", "index far outside", "wrong factor"])
def test_a_kernel_that_can_never_be_right_ends_early(tmp_path: Path, name: str) -> None:
    _ends(NEVER[name], tmp_path, SAME_CAUSE)


@pytest.mark.parametrize("name", ["tolerance, one value, 25 %", "shared, half"])
def test_a_kernel_that_can_be_right_does_not_end_early(tmp_path: Path, name: str) -> None:
    assert searched(sometimes()[name], tmp_path).best is not None


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NEVER)
def test_all_kernels_that_can_never_be_right_end_early(tmp_path: Path, name: str) -> None:
    """The race has two causes: blocks of one warp have none, and are wrong in another way."""
    _ends(NEVER[name], tmp_path, NOTHING_RIGHT + 90 if name == "race" else SAME_CAUSE)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sometimes())
def test_no_kernel_that_can_be_right_ends_early(tmp_path: Path, name: str) -> None:
    assert searched(sometimes()[name], tmp_path).best is not None


def _ends(generated: Generated, folder: Path, most: int) -> None:
    """A search ends by one of the rules, or is refused because the default fails whatever the genes' values are."""
    try:
        result = searched(generated, folder)
    except UsageError as refused:
        assert "the default candidate of copy" in str(refused)
        return
    evaluated = sum(n for outcome, n in result.summary["outcomes"].items() if Outcome(outcome).evaluated)
    assert (result.end, result.best) == ("no_success", None)
    assert evaluated <= most


def test_normal_inputs_are_a_label(tmp_path: Path) -> None:
    """With `inputs="normal"`, a kernel that fails on large inputs is right; all later sessions and results say so."""
    path = NEVER["wrong on large inputs"].write(tmp_path)
    for given in ("normal", None):
        result = evokern.search(
            str(path), db=tmp_path / "a.db", seed=1, trials=1, inputs=given, verify=False, warm_start="none"
        )
        assert result.best is not None
        assert "only normal inputs were checked" in result.summary["verified_reason"]
