"""What a search learned: planted decisive, locked and dead genes are found with their numbers, and nothing else is."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from engine_helpers import small_table, study
from typer.testing import CliRunner

from evokern.analysis.genes.gene_report import is_decisive, model_finding, report
from evokern.analysis.genes.genes import failing_pairs, failure_reason
from evokern.analysis.genes.importance import LEAST_TRIALS, GeneEffect, importance
from evokern.api import search
from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.declaration.genes import Config, Mutation, Parameter
from evokern.declaration.space import Space
from evokern.device.recorded.table import TableDevice, measured
from evokern.study.trial import Evaluation, Outcome, Proposal, Trial

SPACE = Space(
    (
        Mutation("LOADS", ("scalar", "vector", "async")),
        Parameter("TILE", (16, 32, 64, 128)),
        Parameter("WARPS", (1, 2, 4, 8)),
        Parameter("NOISE", (0, 1, 2)),
        Parameter("STAGES", (1, 2, 3), when={"LOADS": ("async",)}),
    )
)
LOADS = {"scalar": 0.9, "vector": 0.3, "async": 0.0}


def _log_time(c: Config, rng: random.Random) -> float:
    """LOADS makes up to e^0.9, TILE up to e^0.4, WARPS and NOISE nothing, STAGES up to e^0.2 where it is active."""
    stages = 0.1 * (3 - c.STAGES) if c["LOADS"] == "async" else 0.0
    return 2 + LOADS[str(c["LOADS"])] + 0.2 * abs(math.log2(c.TILE / 64)) + stages + rng.gauss(0, 0.003)


def _trials(count: int = 200, seed: int = 1, fails: bool = False) -> list[Trial]:
    rng = random.Random(seed)
    configs = rng.sample(list(SPACE.grid()), count)
    found = []
    for number, config in enumerate(configs):
        evaluation = measured(math.exp(_log_time(config, rng)), f"code{number}")
        if fails and config.WARPS != 4:
            evidence = {"error": "CUDA_ERROR_MISALIGNED_ADDRESS", "finding": {"kind": "misaligned", "line": 61}}
            evaluation = Evaluation(Outcome.CRASHED, evidence=evidence)
        elif not fails and config["LOADS"] == "vector" and config.TILE == 128:
            evaluation = Evaluation(Outcome.WRONG, evidence={"check": "tolerance", "output": "o"})
        found.append(Trial(number, Proposal(config), evaluation))
    return found


def test_what_was_never_timed_to_the_end_is_said() -> None:
    """What a model makes of slow trials, of which a part of the time is known, is no figure of a value."""
    trials = []
    for trial in _trials(fails=True):
        evaluation = trial.evaluation
        if trial.outcome is Outcome.CRASHED:
            evaluation = measured(math.exp(_log_time(trial.config, random.Random(trial.number))), f"x{trial.number}")
        if trial.config["LOADS"] == "scalar":
            time_us = evaluation.time_us or 0.0
            evidence = {"elite_us": time_us / 4, "limit_us": time_us, "passed": True}
            evaluation = replace(evaluation, outcome=Outcome.SLOW, evidence=evidence)
        trials.append(replace(trial, evaluation=evaluation))
    found = report("t", SPACE, trials)
    assert found.partial["LOADS"] == ("scalar",)
    assert found.partial["TILE"] == ()
    assert max(found.effects["LOADS"].relative, key=lambda value: found.effects["LOADS"].relative[value]) == "scalar"
    assert found.slow == sum(trial.outcome is Outcome.SLOW for trial in trials) > 0
    effect = GeneEffect(0.6, (0.5, 0.7), 1.4, (1.2, 1.6), {"vector": 1.0, "scalar": 1.4})
    told = model_finding("LOADS", effect, 20, ("scalar",)).text
    assert told.startswith("LOADS: scalar, never timed to the end, takes 40.0 % longer than vector ")
    assert model_finding("LOADS", effect, 20, ()).text.startswith("LOADS: scalar takes 40.0 % longer than vector ")


@pytest.mark.thorough
def test_importance_finds_what_decides_with_true_effects() -> None:
    """Shares are in the true order, the intervals hold the true ratios, and dead genes decide nothing."""
    trials = [t for t in _trials() if t.outcome is Outcome.MEASURED]
    found = importance(SPACE, [t.config for t in trials], [t.log_time or 0.0 for t in trials])
    assert found is not None
    assert found.explained > 0.9
    by_share = sorted(found.effects, key=lambda name: -found.effects[name].share)
    assert by_share[:2] == ["LOADS", "TILE"]
    loads, tile = found.effects["LOADS"], found.effects["TILE"]
    assert loads.best == "async" or loads.relative["async"] < 1.2  # STAGES = 1 and 2 cost async some of its lead
    assert tile.best == 64
    assert tile.ratio == pytest.approx(math.exp(0.4), rel=0.1)
    assert tile.ratio_ci95[0] < tile.ratio < tile.ratio_ci95[1]
    assert {name for name, effect in found.effects.items() if is_decisive(effect)} >= {"LOADS", "TILE"}
    for dead in ("NOISE", "WARPS"):
        assert not is_decisive(found.effects[dead])
        assert found.effects[dead].share < 0.02
    assert sum(effect.share for effect in found.effects.values()) == pytest.approx(1.0)


def test_too_little_says_nothing() -> None:
    """With few trials, or times all alike, there is no model to be believed."""
    trials = _trials(LEAST_TRIALS - 1)
    assert importance(SPACE, [t.config for t in trials], [1.0] * len(trials)) is None
    trials = _trials(60)
    assert importance(SPACE, [t.config for t in trials], [1.0] * len(trials)) is None


def test_pairs_that_never_work_are_told_and_no_others() -> None:
    """LOADS=vector with TILE=128 fails always; both work elsewhere, and chance failures are not told."""
    trials = _trials()
    (found,) = failing_pairs(SPACE, trials, barred=())
    assert dict(found.values) == {"LOADS": "vector", "TILE": 128}
    count = sum(t.outcome is Outcome.WRONG for t in trials)
    assert (
        found.text == f"LOADS=vector with TILE=128 never works: {count} of {count} gave wrong results, tolerance of o"
    )
    # STAGES=1 matters where LOADS=async alone; elsewhere it is its default, beside TILE=64 too.
    wrong = Evaluation(Outcome.WRONG, evidence={"check": "tolerance", "output": "o"})
    bad = [t.config["LOADS"] == "async" and t.config.STAGES == 1 and t.config.TILE == 64 for t in trials]
    told = failing_pairs(
        SPACE, [replace(t, evaluation=wrong) if b else t for t, b in zip(trials, bad, strict=True)], ()
    )
    assert (
        f"TILE=64 with STAGES=1 (active with LOADS=async) never works: {sum(bad)} of {sum(bad)} gave wrong "
        "results, tolerance of o"
    ) in [failing.text for failing in told]
    rng = random.Random(3)
    crash = Evaluation(Outcome.CRASHED, evidence={"error": "x"})
    shaken = [Trial(t.number, t.proposal, crash if rng.random() < 0.3 else measured(1.0)) for t in trials]
    assert failing_pairs(SPACE, shaken, barred=()) == []


def test_two_values_matter_where_both_their_genes_do() -> None:
    """Each gene is active at two values of PATH, and both at one."""
    genes = (
        Mutation("PATH", ("scalar", "vector", "tensor")),
        Parameter("LEFT", (0, 1), when={"PATH": ("scalar", "vector")}),
        Parameter("RIGHT", (0, 1), when={"PATH": ("vector", "tensor")}),
        Parameter("NOISE", tuple(range(12))),
    )
    wrong = Evaluation(Outcome.WRONG, evidence={"check": "tolerance", "output": "o"})
    configs = sorted({Space(genes).canonical(config) for config in Space(genes).grid()}, key=lambda config: config.key)
    trials = [
        Trial(number, Proposal(c), wrong if c["PATH"] == "vector" and c.LEFT and c.RIGHT else measured(1.0))
        for number, c in enumerate(configs)
    ]
    (found,) = (one for one in failing_pairs(Space(genes), trials, barred=()) if one.where)
    assert found.text.startswith("LEFT=1 with RIGHT=1 (active with PATH=vector) never works: 12 of 12")


@pytest.mark.thorough
def test_a_share_is_told_only_where_the_forest_decides() -> None:
    """A gene whose pairs prove a few per cent is told with them, and not with 0 % of what another gene decides."""
    genes = (Mutation("PATH", ("scalar", "tensor")), Parameter("ORDER", (0, 1)), Parameter("NOISE", (0, 1, 2, 3, 4)))
    space, rng = Space((*genes, Parameter("MORE", (0, 1, 2)))), random.Random(2)
    trials = [
        Trial(
            n,
            Proposal(c),
            measured(math.exp((4 if c["PATH"] == "scalar" else 0) + 0.04 * c.ORDER + rng.gauss(0, 0.004)), f"{n}"),
        )
        for n, c in enumerate(space.grid())
    ]
    found = report("toy", space, trials)
    path, order = found.findings_of("decisive")
    assert (path.gene, order.gene) == ("PATH", "ORDER")
    assert re.search(
        r"^ORDER: 1 takes 4\.\d % longer than 0 \[.*\] over 30 pairs that differ only in this gene$", order.text
    )
    assert found.effects["ORDER"].share < 0.005
    assert found.share("ORDER") == ""
    assert re.search(r"^\d\d %|^100 %", found.share("PATH"))


def test_a_locked_gene_is_told_with_its_reason() -> None:
    """The commonest reason is told without what differs from one candidate to the next."""
    trials = _trials(100, fails=True)
    others = sum(t.config.WARPS != 4 for t in trials)
    found = report("toy", SPACE, trials)
    (locked,) = found.findings_of("locked")
    assert locked.text.startswith(f"WARPS works only with 4: {others} of {others} trials")
    assert locked.text.endswith("crashed, misaligned at line 61")
    assert found.combinations == ()


@pytest.mark.parametrize(
    ("evaluation", "expected"),
    [
        (Evaluation(Outcome.CRASHED, evidence={"error": "CUDA_ERROR_ILLEGAL_ADDRESS"}), "illegal address"),
        (
            Evaluation(Outcome.CRASHED, evidence={"error": "x", "diagnosis": "trap at line 3 (block 7)"}),
            "trap at line 3",
        ),
        (
            Evaluation(Outcome.WRONG, evidence={"check": "tolerance", "output": "o", "input_set": "large"}),
            "tolerance of o, large inputs",
        ),
        (Evaluation(Outcome.HUNG, evidence={"limit_s": 3.0}), "never ended"),
        (
            Evaluation(Outcome.OVER_RESOURCES, evidence={"constraint": "registers", "needed": 300, "available": 255}),
            "registers",
        ),
        (Evaluation(Outcome.COMPILE_ERROR, evidence={"log": "kernel.cu(42): error: no"}), "line 42: error: no"),
    ],
)
def test_reasons_leave_out_what_differs(evaluation: Evaluation, expected: str) -> None:
    """Failures for the same reason read the same."""
    assert failure_reason(evaluation) == expected


@pytest.mark.thorough
def test_show_tells_what_a_search_learned(tmp_path: Path) -> None:
    """`show --genes` in words and as JSON, from the database alone."""
    db = str(tmp_path / "runs.db")
    search(study("small"), db=db, device=TableDevice(small_table()), trials=60, sampler="evo", seed=2)
    result = CliRunner().invoke(app, ["show", "--genes", "--db", db])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("small: ")
    assert "decisive genes" in lines
    told = json.loads(CliRunner().invoke(app, ["show", "small", "--genes", "--json", "--db", db]).stdout)
    assert list(told)[:5] == ["study", "trials", "timed", "predicted", "findings"]
    assert {"gene", "kind", "text", "trials", "effect", "interval"} <= set(told["findings"][0])
    shares = [row["share"] for row in told["importance"]]
    assert shares == sorted(shares, reverse=True)


def test_few_trials_are_no_reason_for_silence(tmp_path: Path) -> None:
    """With a handful of times nothing is said to be unimportant, only that there are too few."""
    db = str(tmp_path / "runs.db")
    search(study("small"), db=db, device=TableDevice(small_table()), trials=6, sampler="random", seed=2)
    told = CliRunner().invoke(app, ["show", "--genes", "--db", db]).stdout
    assert ("too few measured trials" in told, "no clear effect" in told) == (True, False)


def test_genes_and_a_trial_are_not_asked_for_at_once(tmp_path: Path) -> None:
    """A mistake is named, not resolved by guessing."""
    db = str(tmp_path / "runs.db")
    search(study("small"), db=db, device=TableDevice(small_table()), trials=3, sampler="random")
    result = CliRunner().invoke(app, ["show", "--genes", "--trial", "1", "--db", db])
    assert (result.exit_code, "omit --trial" in result.stderr) == (2, True)
