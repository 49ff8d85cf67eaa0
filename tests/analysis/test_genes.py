"""What a search learned of its genes, in words and intervals."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

from evokern.analysis.genes.genes import gene_findings
from evokern.declaration.genes import Config, Gene, Mutation, Parameter
from evokern.declaration.space import Space
from evokern.device.recorded.table import measured
from evokern.study.trial import Evaluation, Outcome, Proposal, Trial

GENES: tuple[Gene, ...] = (
    Mutation("LOAD", ("scalar", "async")),
    Parameter("TILE", (16, 32, 64, 128)),
    Parameter("WARPS", (2, 4, 8)),
    Parameter("UNROLL", (1, 2, 4)),
    Parameter("HINT", (0, 1)),
)


def trial(number: int, config: Config) -> Trial:
    """Only 4 warps work, tiles of 128 spill, UNROLL is dead in code, HINT in time, LOAD decides."""
    if config.WARPS != 4:
        crashed = {"error": "CUDA_ERROR_MISALIGNED_ADDRESS", "diagnosis": "misaligned address at line 61"}
        return Trial(number, Proposal(config), Evaluation(Outcome.CRASHED, evidence=crashed))
    if config.TILE == 128:
        evidence = {"constraint": "registers", "needed": 300, "available": 255}
        return Trial(number, Proposal(config), Evaluation(Outcome.OVER_RESOURCES, evidence=evidence))
    noise = 0.001 * math.sin(number)
    value = math.log(5.0) + (0.25 if config["LOAD"] == "scalar" else 0.0) + 0.05 * abs(config.TILE - 32) / 32 + noise
    return Trial(
        number,
        Proposal(config),
        Evaluation(Outcome.MEASURED, math.exp(value), fingerprint=config.replace(UNROLL=1).key),
    )


def everything(count: int | None = None) -> list[Trial]:
    configs = list(Space(GENES).grid())
    random.Random(1).shuffle(configs)
    return [trial(number, config) for number, config in enumerate(configs[:count])]


def test_what_both_arms_tried_is_no_pair() -> None:
    """A configuration that sampler and control have both proposed says of no gene that it changes nothing."""
    once = everything(120)
    twice = [*once, *(replace(one, number=one.number + len(once)) for one in once)]
    dead = [
        {finding.gene for finding in gene_findings(GENES, trials) if finding.kind == "dead"} for trials in (once, twice)
    ]
    assert dead[0] == dead[1] <= {"UNROLL", "HINT"}


def test_each_gene_gets_the_verdict_that_it_deserves() -> None:
    """Dead in code, dead in time, locked to a value, a barred value, decisive with effect and interval."""
    found = {(f.gene, f.kind): f for f in gene_findings(GENES, everything())}
    assert set(found) == {
        ("UNROLL", "dead"),
        ("HINT", "dead"),
        ("WARPS", "locked"),
        ("TILE", "barred"),
        ("LOAD", "decisive"),
        ("TILE", "decisive"),
    }
    assert found["WARPS", "locked"].text == (
        "WARPS works only with 4: 96 of 96 trials with other values crashed, misaligned address at line 61"
    )
    assert found["TILE", "barred"].text.startswith("TILE=128 never works: ")
    assert "does not change the machine code" in found["UNROLL", "dead"].text
    assert "does not change the time" in found["HINT", "dead"].text
    load = found["LOAD", "decisive"]
    assert load.interval is not None
    assert load.interval[0] <= math.expm1(0.25) <= load.interval[1]
    assert load.text.startswith("LOAD: scalar takes 28.")


def test_what_was_only_slow_works() -> None:
    """A value of which a candidate was stopped by racing gave a right answer: it is not barred, nor another locked."""
    trials = everything()
    slow = next(t.number for t in trials if t.config.WARPS == 8)
    stopped = measured(9.0, "slow")
    stopped = replace(stopped, outcome=Outcome.SLOW, evidence={"elite_us": 5.0})
    right = [replace(t, evaluation=stopped) if t.number == slow else t for t in trials]
    before, after = ({f.text for f in gene_findings(GENES, found) if f.gene == "WARPS"} for found in (trials, right))
    assert before == {
        "WARPS works only with 4: 96 of 96 trials with other values crashed, misaligned address at line 61"
    }
    assert after == {"WARPS=2 never works: 48 of 48 crashed, misaligned address at line 61"}


def test_what_was_predicted_slow_was_never_asked() -> None:
    """A candidate that is predicted slow did not meet the gate: it neither makes a value work nor counts as failed."""
    trials = everything()
    slow = next(t.number for t in trials if t.config.WARPS == 8)
    unchecked = Evaluation(Outcome.SLOW, 99.0, evidence={"elite_us": 5.0, "predicted_us": 99.0})
    asked = [replace(t, evaluation=unchecked) if t.number == slow else t for t in trials]
    assert not unchecked.passed_gate
    assert {f.text for f in gene_findings(GENES, asked) if f.gene == "WARPS"} == {
        "WARPS works only with 4: 95 of 95 trials with other values crashed, misaligned address at line 61"
    }


def test_decisive_genes_come_last_and_by_effect() -> None:
    """What can be ignored stands first, then what cannot work, then what matters most to least."""
    kinds = [finding.kind for finding in gene_findings(GENES, everything())]
    assert kinds == sorted(kinds, key=["dead", "locked", "barred", "decisive"].index)
    effects = [f.effect for f in gene_findings(GENES, everything()) if f.kind == "decisive"]
    assert effects == sorted(effects, reverse=True)


def test_few_trials_give_no_verdict() -> None:
    """Nothing is said on thin evidence, nor on none."""
    assert gene_findings(GENES, []) == ()
    assert gene_findings(GENES, everything(2)) == ()


def test_findings_are_json_values() -> None:
    """They can be stored and printed as they are."""
    for finding in gene_findings(GENES, everything()):
        assert json.dumps(finding.as_dict(), allow_nan=False)
        assert set(finding.as_dict()) == {"gene", "kind", "text", "trials", "effect", "interval"}
