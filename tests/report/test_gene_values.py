"""What the report says of each value of each gene: every trial once, no claim beyond what was tried."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stored_studies import measured_at, write_study

from evokern.analysis.genes.genes import GeneFinding
from evokern.analysis.genes.importance import GeneEffect
from evokern.declaration.genes import Mutation, Parameter, Value
from evokern.declaration.space import Space
from evokern.report import advice, gather, page
from evokern.report.advice import Advice, steps
from evokern.report.facts import Facts
from evokern.report.first_screen import first_screen
from evokern.report.gene_values import (
    GeneValues,
    LinkedText,
    ValueRow,
    decisive_choice,
    genes_with_ablation_cost,
    important_genes,
    ordered,
)
from evokern.report.genes import effects, matrix
from evokern.report.origin import words
from evokern.report.plot_marks import MARKS, REFUTED
from evokern.report.search_sections import convergence_plot, outcomes, progress_text, slow_trials
from evokern.store import ProofRecord, Verification, open_readonly
from evokern.study.trial import Evaluation, Outcome, Proposal, Trial
from evokern.wording import microseconds

GENES = (
    Mutation("CORES", ("mma", "wgmma")),
    Mutation("LAYOUT", ("xor", "padded", "plain")),
    Parameter("TILE", (64, 16, 128), default=64),
    Parameter("WARPS", (1, 2, 4), default=2),
    Parameter("STAGES", (2, 1, 3), default=2, when={"CORES": ("wgmma",)}),
    Parameter("SPLIT", (1, 2), default=1, when={"CORES": ("mma",)}),
)
SPACE = Space(GENES)
CHAMPION = {"CORES": "wgmma", "TILE": 128, "WARPS": 1, "STAGES": 3}


def wrong(text: str) -> Evaluation:
    return Evaluation(Outcome.WRONG, evidence={"check": "tolerance", "message": text})


def slow(factor: float) -> Evaluation:
    return Evaluation(Outcome.SLOW, evidence={"elite_us": 5.0, "limit_us": 5.0 * factor})


TRIALS: tuple[tuple[dict[str, Value], Evaluation], ...] = (
    ({}, measured_at(0, 8.0)),
    (CHAMPION, measured_at(1, 5.0)),
    (CHAMPION | {"WARPS": 4}, measured_at(2, 6.0)),
    ({"LAYOUT": "plain"}, wrong("o[0, 1] is 3.5, expected 1.2")),
    ({"LAYOUT": "padded", "TILE": 16}, slow(3.1)),
    ({"LAYOUT": "padded", "SPLIT": 2}, slow(3.1)),
    ({"LAYOUT": "padded", "SPLIT": 2, "WARPS": 4}, measured_at(6, 7.0)),
)


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    """A study whose trials are those above."""
    write_study(tmp_path / "r.db", 8)
    with open_readonly(tmp_path / "r.db") as reader:
        found = gather(reader, None)
    trials = tuple(
        Trial(number, Proposal(SPACE.with_changes(SPACE.default(), changes)), evaluation, float(number))
        for number, (changes, evaluation) in enumerate(TRIALS)
    )
    row = {"value": None, "time_us": 6.0, "note": "", "ratio_ci95": None}
    alone = [{**row, "gene": "TILE", "ratio": 1.05}, {**row, "gene": "CORES", "ratio": 1.4}]
    ablation = ProofRecord("ablate", 1, "2026-11-23", {"alone": alone})
    learned = replace(found.learned, effects={})
    return replace(
        found,
        record=replace(found.record, genes=GENES),
        trials=trials,
        best=trials[1],
        ablation=ablation,
        learning=lambda: learned,
        curves={"evo": trials},
    )


def line(facts: Facts, gene: str, value: Value) -> ValueRow:
    (row,) = (row for row in GeneValues(facts).genes() if row["name"] == gene)
    (found,) = (one for one in row["lines"] if one.value == str(value))
    assert isinstance(found, ValueRow)
    return found


def test_each_trial_of_a_value_is_told_once(facts: Facts) -> None:
    """Worked, slow and failed add up to the trials that have the value; numbers stand by size."""
    counted = Counter(item for trial in facts.trials for item in trial.config.items())
    told = GeneValues(facts).genes()
    assert [row["name"] for row in told] == [gene.name for gene in GENES]
    for row in told:
        for one in row["lines"]:
            failed = sum(int(part.words.split()[0]) for part in one.failed)
            assert one.worked + int(one.slow.words if one.slow else 0) + failed == int(one.trials.words)
            (value,) = (value for value in SPACE.gene(row["name"]).values if str(value) == one.value)
            assert int(one.trials.words) == counted[row["name"], value]
    assert [one.value for row in told if row["name"] == "TILE" for one in row["lines"]] == ["16", "64", "128"]
    assert ordered(["xor", "plain"]) == ["xor", "plain"]


def test_a_value_that_failed_is_told_as_what_it_is(facts: Facts) -> None:
    """One failure far from the champion is no proof that it never works; the line leads to that trial."""
    one = line(facts, "LAYOUT", "plain")
    assert (one.comparison.words.split()[0], one.comparison.words.split()[-2:]) == ("failed", ["5", "genes"])
    assert one.comparison.link == "#trial=3"
    assert [(part.words, part.link) for part in one.failed] == [
        ("1 wrong: o[0, 1] is 3.5, expected 1.2", "#gene=LAYOUT&value=plain&outcome=wrong&at=trials")
    ]
    assert one.note.startswith("never tried with CORES=wgmma")
    tile = line(facts, "TILE", 16)
    assert (tile.comparison.words.split()[0], tile.comparison.words.split()[-2:]) == ("slow", ["5", "genes"])
    assert tile.slow is not None
    assert tile.slow.link == "#gene=TILE&value=16&outcome=slow&at=trials"


def test_what_was_seen_of_a_slow_trial_is_a_value_s_best(facts: Facts) -> None:
    """Where it is faster than every time in full; a slow one that was not timed at all has none."""
    assert line(facts, "LAYOUT", "padded").best == LinkedText("7.02", "#trial=6")
    full = measured_at(7, 6.5)
    seen = replace(full, outcome=Outcome.SLOW, evidence={"elite_us": 5.0, "limit_us": 5.5})
    config = SPACE.with_changes(SPACE.default(), {"LAYOUT": "padded", "TILE": 128})
    found = replace(facts, trials=(*facts.trials, Trial(7, Proposal(config), seen, 7.0)))
    assert line(found, "LAYOUT", "padded").best == LinkedText(f"{microseconds(full.time_us or 0.0)} (slow)", "#trial=7")
    shaded = {cell.text: cell.note for gene, row in matrix(found)["genes"] for cell in row if gene == "LAYOUT"}
    champion_us = facts.trials[1].evaluation.time_us or 0.0
    assert shaded["padded"] == f"2/2 correct · +{100 * ((full.time_us or 0.0) / champion_us - 1):.0f} % (slow)"


def test_a_value_s_best_is_held_against_the_champion(facts: Facts) -> None:
    """A difference in that gene alone is a fair comparison, and one in more genes says in how many."""
    assert line(facts, "WARPS", 1).comparison == LinkedText("the champion's value", "#trial=1")
    four = line(facts, "WARPS", 4)
    assert "19.8 % slower" in four.comparison.words
    assert "only in this gene" in four.comparison.words
    assert (four.comparison.link, four.note) == ("#trial=2", "")
    padded = line(facts, "LAYOUT", "padded")
    assert (padded.best.link if padded.best else "") == "#trial=6"
    assert "40.2 % slower" in padded.comparison.words
    assert padded.comparison.words.endswith(" in 6 genes")
    refuted = replace(facts, refuted={2: "fuzz: off"})
    four = line(refuted, "WARPS", 4)
    assert [(part.words, part.link) for part in four.failed] == [
        ("1 refuted by verification: fuzz: off", "#gene=WARPS&value=4&outcome=refuted&at=trials")
    ]
    assert (four.best.link if four.best else "") == "#trial=6"
    (counted,) = (one for one in refuted.values["WARPS"] if one.value == 4)
    assert (counted.tried, counted.right, counted.best_us) == (2, 1, facts.trials[6].evaluation.time_us)


def test_genes_without_effect_in_the_champion_are_marked(facts: Facts) -> None:
    """Another choice takes the effect away; such a gene is neither at an edge nor lacks a comparison."""
    inactive = {row["name"]: row["inactive"] for row in GeneValues(facts).genes()}
    assert {name: words for name, words in inactive.items() if words} == {"SPLIT": "CORES=wgmma"}
    assert "SPLIT" not in {edge.gene for edge in GeneValues(facts).edges()}
    assert line(facts, "SPLIT", 2).note == ""
    assert line(facts, "STAGES", 2).without_effect == 5


def test_the_champion_stands_at_the_end_of_some_genes(facts: Facts) -> None:
    """The gene that costs most when taken back is decisive; a count of one has nothing below."""
    assert decisive_choice(facts) == ("CORES", "wgmma")
    edges = [(edge.gene, edge.value, edge.next_value, edge.beyond) for edge in GeneValues(facts).edges()]
    assert edges == [("TILE", 128, 256, "above"), ("STAGES", 3, 4, "above")]
    words = [edge.words for edge in GeneValues(facts).edges()]
    assert all(values in told for told, values in zip(words, ("16, 64, 128", "1, 2, 3"), strict=True))
    inner = {"CORES": "wgmma", "TILE": 64, "STAGES": 2}
    best = Trial(1, Proposal(SPACE.with_changes(SPACE.default(), inner)), measured_at(1, 5.0))
    assert GeneValues(replace(facts, best=best)).edges() == []


def advised(facts: Facts) -> list[Advice]:
    return steps(facts, GeneValues(facts))


def test_what_to_do_next_follows_from_results(facts: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify, search on where that pays, more values where times fell up to the end, profile: each with its command."""
    monkeypatch.setattr(advice, "MIN_TRIALS_FOR_STOP_ADVICE", 8)
    name = facts.record.name
    proved = replace(facts, verification=Verification(True, "passed", 1.0))
    told = advised(replace(facts, curves={"evo": (*facts.trials, replace(facts.trials[0], number=7))}))
    assert [step.short for step in told] == [
        "verify the champion",
        "profile the champion",
        "do not extend this search",
        "add values to the kernel (TILE above 128)",
    ]
    assert told[2].words.endswith(" gained nothing.")
    # The fastest with 64 took 7 µs and with 128 5; STAGES had no effect where it was 2.
    assert [found for found in ("7.02 µs with 64", "5.00 µs with 128", "256") if found not in told[3].words] == []
    assert "STAGES" not in told[3].words
    assert [bool(step.command) for step in told] == [True, True, False, False]
    assert told[1].command == f"evokern profile {name} --db r.db"
    assert advised(replace(facts, file="evokern.db"))[1].command == f"evokern profile {name}"
    assert first_screen(facts)["next"].startswith("verify the champion; ")
    found = [step.short.split()[0] for step in advised(proved)]
    assert found == ["profile", "extend", "add", "export"]


def test_who_should_search_on_is_told_how(facts: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the last quarter brought a per cent, or the best came late; more trials where those were the limit."""
    few = [step for step in advised(facts) if step.short == "extend the search"]
    assert "7 evaluated trials" in few[0].words
    assert "6 genes" in few[0].words
    monkeypatch.setattr(advice, "MIN_TRIALS_FOR_STOP_ADVICE", 8)
    ended = replace(facts.sessions[-1], ended="2026-11-25", end_reason="budget")
    found = replace(facts, sessions=(ended,))

    def on(best_us: float, **record: Any) -> list[Advice]:
        better = (*facts.trials, replace(facts.trials[1], number=7, evaluation=measured_at(7, best_us)))
        told = replace(found, curves={"evo": better}, record=replace(found.record, **record))
        return [step for step in advised(told) if step.short == "extend the search"]

    assert on(3.0)[0].command == f"evokern resume {facts.record.name} --db r.db --extend 30m"
    assert on(4.99)[0].words.endswith("(number 8 of 8).")
    assert on(5.5) == []
    found = replace(facts, sessions=(replace(ended, end_reason="trials"),))
    more = on(3.0, trials_limit=30)[0]
    assert more.command.endswith("--trials 60")
    assert "60 trials" in more.words
    assert "7 existing" in more.words
    stopped = replace(facts, sessions=(replace(ended, end_reason="interrupted"),))
    assert [step.command for step in advised(stopped) if step.short == "resume the search"] == [
        f"evokern resume {facts.record.name} --db r.db"
    ]


def test_what_was_predicted_is_to_be_measured(facts: Facts) -> None:
    """On the chip that was simulated, from what was found here."""
    record = replace(facts.record, predicted=True, device="sim:l4")
    told = next(step for step in advised(replace(facts, record=record, file="my runs.db")) if "measure" in step.short)
    assert told.short == "measure on a real L4"
    name = facts.record.name
    assert told.command.startswith(f"evokern search {name}.toml --device cuda:0 "), "it is no study of the package"
    assert told.command.endswith(f"--db measured.db --warm-start 'my runs.db:{name}'")


def test_a_simpler_candidate_that_an_ablation_found_is_to_be_tried(facts: Facts) -> None:
    """As the study's file would have it: what it takes back, held at the defaults."""
    assert facts.ablation is not None
    rows = [
        {"gene": "", "value": None, "time_us": 8.0, "ratio": 1.6},
        {"gene": "CORES", "value": "wgmma", "time_us": 5.5, "ratio": 1.1},
        {"gene": "TILE", "value": 128, "time_us": 5.0, "ratio": 1.0},
        {"gene": "WARPS", "value": 1, "time_us": 5.0, "ratio": 1.0},
        {"gene": "STAGES", "value": 3, "time_us": 5.0, "ratio": 1.0},
    ]
    taken = replace(facts.ablation, result={**facts.ablation.result, "path": rows})
    told = next(step for step in advised(replace(facts, ablation=taken)) if "simpler" in step.short)
    assert "As fast with 2 of the 4 changes" in told.words
    assert "not verified: the default with CORES=wgmma, TILE=128 (5.00 µs)" in told.words
    assert "genes = { WARPS = [2], STAGES = [2] }" in told.words
    name = facts.record.name
    assert told.command == f"evokern search {name}.toml --db simpler.db --warm-start r.db:{name}"


def test_nothing_is_advised_while_a_search_runs_or_without_a_champion(facts: Facts) -> None:
    """Whoever watches it can wait for its end."""
    running = replace(facts, sessions=(*facts.sessions[:-1], replace(facts.sessions[-1], ended=None)))
    assert advised(facts)
    assert advised(running) == advised(replace(facts, best=None)) == []
    assert first_screen(running)["next"] == ""


def test_beyond_an_end_that_a_constraint_sets_is_no_advice(facts: Facts) -> None:
    """The values' section has the reason."""
    why = "tile_within_rows: needs 256 rows, has 128 rows (never filled)"
    barred = replace(facts, neighbours={("TILE", 256): {"reason": why}})
    assert all("TILE" not in step.words for step in advised(barred))
    assert [edge.why for edge in GeneValues(barred).edges() if edge.gene == "TILE"] == [why]


def test_a_gene_whose_values_take_the_same_is_not_decisive(facts: Facts) -> None:
    """The model may give it a share of what slow trials differ in; the first screen and its section leave it out."""
    even = GeneEffect(0.6, (0.5, 0.7), 1.0, (1.0, 1.0), {})
    shares = {"LAYOUT": replace(even, share=0.4), "WARPS": even, "CORES": replace(even, share=0.1)}
    learned = replace(facts.learned, effects=shares)
    assert important_genes(replace(facts, learning=lambda: learned)) == ["WARPS", "LAYOUT", "CORES"]
    default, four = facts.trials[0], facts.trials[2]
    further = (
        replace(four, number=7, evaluation=replace(four.evaluation, time_us=facts.trials[1].evaluation.time_us)),
        replace(default, number=8, evaluation=replace(four.evaluation, time_us=facts.trials[1].evaluation.time_us)),
    )
    found = replace(facts, learning=lambda: learned, trials=(*facts.trials, *further))
    assert important_genes(found) == ["LAYOUT"], "the best with each value of the others takes the same"
    told = first_screen(replace(found, ablation=None))["decides"]["genes"]
    assert [(gene["name"], gene["default"]) for gene in told] == [("LAYOUT", True)]
    measured = first_screen(found)["decides"]["genes"]
    assert [gene["name"] for gene in measured] == ["CORES", "LAYOUT"], "what an ablation measured goes before the model"
    assert decisive_choice(replace(found, ablation=None)) == ("LAYOUT", "xor")


def test_what_slow_trials_have_in_common_is_told(facts: Facts) -> None:
    """A value of the gene that decides most, with which none was timed, where a third of them have it."""
    timed = facts.trials[1]
    assert decisive_choice(facts) == ("CORES", "wgmma")
    plain = [t for t in facts.trials if t.config["CORES"] != "wgmma"]
    lost = [replace(t, evaluation=slow(2.2)) for t in plain]
    told = slow_trials(replace(facts, trials=(timed, *lost)))
    values = {t.config["CORES"] for t in plain}
    assert f"; {len(lost)} of them have CORES={' or '.join(sorted(values))}" in told


def test_what_the_champion_cannot_take_is_told_with_the_reason(facts: Facts) -> None:
    """And with which second change it could; one that takes the decisive choice back only where there is no other."""
    why = "wgmma_reads_swizzled_tiles: chunks are swizzled"
    together: dict[str, Value] = {"CORES": "mma", "WARPS": 4, "TILE": 128}

    def remark(seconds: dict[str, Value]) -> str:
        barred: dict[tuple[str, Value], dict[str, Any]] = {("LAYOUT", "padded"): {"reason": why, "together": seconds}}
        return line(replace(facts, neighbours=barred), "LAYOUT", "padded").note

    seconds = r"; feasible together with (.*); never tried with CORES=wgmma"
    for given, told in (
        (together, "WARPS=4 (tried in 1 trial) or TILE=128 (not tried)"),
        ({"CORES": "mma"}, "CORES=mma (tried in 3 trials)"),
    ):
        words = remark(given)
        assert why in words
        assert re.findall(seconds, words) == [told]


def test_a_model_that_explains_little_ranks_nothing(facts: Facts) -> None:
    """What was measured by taking a choice back stands before it, and what comes of it is called a hint."""
    effect = GeneEffect(0.6, (0.5, 0.7), 1.2, (1.1, 1.3), {"xor": 1.0, "plain": 1.2})
    for explained, weak in ((0.19, True), (0.8, False)):
        learned = replace(facts.learned, effects={"LAYOUT": effect, "CORES": effect}, explained=explained)
        found = replace(facts, learning=lambda learned=learned: learned)  # type: ignore[misc]
        decides = first_screen(found)["decides"]
        assert [(gene["name"], gene["share"]) for gene in decides["genes"]] == [
            ("CORES", "+40.0 % without it"),
            ("LAYOUT", "60 % [50 % to 70 %]"),
        ]
        assert (decides["by_ablation"], decides["by_model"], decides["weak"]) == (True, True, weak)
        told = effects(found)
        assert (told["weak"], "only a hint" in told["about"]) == (weak, weak)
        assert told["ablated"] == "CORES, TILE"
        assert (learned.share("LAYOUT") == "") is weak
        # A value of which a part of the time was seen is marked as such.
        part = replace(learned, partial={"LAYOUT": ("plain",)})
        told = effects(replace(facts, learning=lambda part=part: part))  # type: ignore[misc]
        rows = {row[0]: row[3:5] for row in told["effects"].rows}
        assert rows == {"CORES": ("xor", "plain"), "LAYOUT": ("xor", "plain (slow only)")}


def test_values_that_never_gave_a_time_are_listed(facts: Facts) -> None:
    """Each with what became of its trials, and a link to them."""
    never = GeneValues(facts).never_timed()
    for one in never:
        gene, _, rest = one.words.partition("=")
        value = rest.partition(" (")[0]
        mine = [t for t in facts.trials if str(t.config[gene]) == value]
        assert mine
        assert not any(
            t.outcome in (Outcome.MEASURED, Outcome.DUPLICATE) and t.number not in facts.refuted for t in mine
        )
        assert one.link
    assert matrix(facts)["never"] == never != []


def test_slow_means_one_thing_everywhere(facts: Facts) -> None:
    """How many, and by what factor, come of the trials; legend, outcomes and words say the same."""
    assert slow_trials(facts).startswith("2 of 7 trials were slow: ")
    assert "slower than 3.1 times the best time so far; 2 stopped at their first launches" in slow_trials(facts)
    meaning = slow_trials(facts).partition(": ")[2]
    assert dict(words(facts)["words"])["slow"] == meaning == matrix(facts)["slow"]
    assert outcomes(facts)["slow"] == slow_trials(facts) == first_screen(facts)["slow"]
    label = next(mark.label for mark in MARKS if mark.kind == "slow")
    assert [bar.name for bar in outcomes(facts)["outcomes"].rows if "slow" in bar.name] == [f"{label}, not checked"]
    other = replace(facts.trials[4], evaluation=slow(2.2))
    told = slow_trials(replace(facts, trials=(*facts.trials[:4], other, *facts.trials[5:])))
    assert "slower than 2.2 to 3.1 times the best time" in told
    # A few samples that lost against the best so far end a trial, too: no factor is told of those.
    raced = replace(
        facts.trials[4], evaluation=replace(measured_at(4, 6.0), outcome=Outcome.SLOW, evidence={"elite_us": 5.0})
    )
    far = replace(facts.trials[5], evaluation=slow(113.2))
    told = slow_trials(replace(facts, trials=(*facts.trials[:4], raced, far, *facts.trials[6:])))
    assert "slower than the best time so far; 1 stopped at their first launches (slower than 113 times" in told
    assert "not checked" in told
    predicted = replace(facts, record=replace(facts.record, predicted=True))
    told = slow_trials(predicted)
    assert "predicted to be slower than 3.1 times the best time" in told
    assert "the default candidate's predicted time" in told
    assert "not checked" in told
    assert "the control has its own best" not in told
    assert "the control has its own best" in slow_trials(replace(predicted, control={}))
    drawn = tuple(
        replace(t, proposal=replace(t.proposal, control=t.number == 4)) if t.outcome is Outcome.SLOW else t
        for t in facts.trials
    )
    controlled = replace(facts, trials=drawn, control={}, record=replace(facts.record, control="random"))
    told = slow_trials(controlled).partition(": ")[0]
    assert "1 proposed by the control (random)" in told
    assert "1 by the sampler (evo)" in told


def test_refuted_trials_are_no_best_of_the_curve(facts: Facts) -> None:
    """The curve's steps and the sentence are of trials that stand, and a refuted one has a mark of its own."""
    trials = (*facts.trials, replace(facts.trials[1], number=7, evaluation=measured_at(7, 3.0)))
    eight = (*trials, replace(facts.trials[0], number=8))
    found = replace(facts, trials=eight, curves={"evo": eight}, refuted={7: "fuzz: off"})
    assert "trial 1 (its 2nd of 9 evaluated trials)" in progress_text(found)
    plot = convergence_plot(found, over_time=False)
    assert plot is not None
    assert [words for kind, _, words in plot.marks if kind == "refuted"] == [f"{MARKS[REFUTED].label}: 1"]
    assert progress_text(found).count("gained nothing") == 2
    assert progress_text(found).endswith("almost stopped improving")
    late = progress_text(replace(found, refuted={}))
    assert "trial 7 (" in late
    assert late.endswith("still improving")


def test_the_page_has_the_section_and_leads_to_it(tmp_path: Path) -> None:
    """First screen and outcomes link to the values of each gene."""
    write_study(tmp_path / "r.db", 40, control="random")
    with open_readonly(tmp_path / "r.db") as reader:
        text = page(reader)
    assert "<h2>Results of each gene value</h2>" in text
    assert text.count('href="#values"') == 3, "the list of sections, the first screen, the outcomes"


def test_without_a_champion_nothing_is_held_against_one(tmp_path: Path) -> None:
    """Every trial was wrong: values are counted, and there is nothing to widen."""
    write_study(tmp_path / "r.db", 30, only_wrong=True)
    with open_readonly(tmp_path / "r.db") as reader:
        facts = gather(reader, None)
    assert (advised(facts), GeneValues(facts).edges()) == ([], [])
    every = [one for row in GeneValues(facts).genes() for one in row["lines"] if one.trials.link]
    assert {one.comparison.words for one in every} == {"no champion to compare with"}
    assert all(one.failed[0].words.startswith(f"{one.trials.words} wrong: ") for one in every)


def test_every_gene_of_the_section_can_be_jumped_to(tmp_path: Path) -> None:
    """A line of links above the table leads to each gene's values."""
    write_study(tmp_path / "r.db", 40)
    with open_readonly(tmp_path / "r.db") as reader:
        text = page(reader)
        names = [gene["name"] for gene in GeneValues(gather(reader, None)).genes()]
    assert names
    for name in names:
        assert (text.count(f'href="#values-of-{name}"'), text.count(f'id="values-of-{name}"')) == (1, 1)


def test_no_gene_is_without_effect_that_an_ablation_found_costly(facts: Facts) -> None:
    """Equal code in the pairs that there were is left out of the findings then."""
    dead = GeneFinding("CORES", "dead", "CORES changes no machine code: equal in 3 of 3 pairs", 3)
    learned = replace(facts.learned, findings=(dead,))
    assert genes_with_ablation_cost(facts)[0] == "CORES"
    told = [text for _, text in effects(replace(facts, learning=lambda: learned))["findings"].rows]
    alone = [text for _, text in effects(replace(facts, learning=lambda: learned, ablation=None))["findings"].rows]
    assert (dead.text in told, dead.text in alone) == (False, True)
