"""Check of the small problems: whether loops repeat, branches go both ways, and races appear where loops repeat."""

from __future__ import annotations

from evokern.analysis.check.folder import Folder, Results, problem_bytes
from evokern.analysis.check.simulated_run import MOST_BYTES, SEED, chip_for
from evokern.errors import UsageError
from evokern.study.settings import Study
from evokern.wording import count_noun

MOST_LISTED = 5
"""Maximum number of source lines in a warning."""


def loops_and_branches(folder: Folder) -> Results:
    """Check that every loop repeats and every branch goes both ways at the small problems, and look for races."""
    # These imports need torch; the earlier checks do not.
    from evokern.analysis.sanitize.repeats import RepeatSearch, one_way_branches, open_text, races_text
    from evokern.analysis.verify.fuzz import Checker, FuzzCase
    from evokern.device.sim.full_size_runs import OwnProblemRuns
    from evokern.gate import RunFailed
    from evokern.gate.comparison import tolerances
    from evokern.simt import few_rounds

    kernel, config = folder.kernel, folder.kernel.space.default()
    small = [one for one in folder.small if problem_bytes(kernel, one) <= MOST_BYTES]
    chip = next((found for one in small if (found := chip_for(kernel, config, one)) is not None), None)
    if chip is None:
        yield None, "skipped: the default candidate is infeasible on every small problem"
        return
    small = [one for one in small if chip_for(kernel, config, one) is not None]
    own = [one for one in folder.study_problems[:1] if chip_for(kernel, config, one) is not None]
    study = Study("check", kernel.name, tuple(problem.key for problem in small))
    checker = Checker(kernel, config, study, chip)
    runs = OwnProblemRuns(kernel, chip, study.simulation, tolerances(kernel, None, None), SEED)
    search = RepeatSearch(kernel, config, runs)
    try:
        for problem in small:
            failure = checker.check(FuzzCase(problem, SEED, ("normal",), 0))
            if failure is not None:
                yield False, f"the default candidate at {problem}: {failure.message}"
                return
        at_small = search.run(small, (), checker.paths)
        repeats = search.run(small, own, at_small.paths) if own else at_small
        one_way = one_way_branches(kernel, config, small, checker.paths, runs)
    except RunFailed as failed:
        key = failed.evidence.get("problem")
        where = f" at {kernel.problem(key)}" if key else ""
        yield False, f"the default candidate{where}: {failed.message or failed}"
        return
    except UsageError as error:
        yield None, f"skipped: {error}"
        return
    listed = "; ".join(map(str, small))
    never = {loop.place for loop in at_small.single} | set(at_small.fewer)
    few = [loop for loop in few_rounds(checker.paths) if loop.place not in never]
    doubts = [loop.text(kernel.source) for loop in few]
    if doubts:
        further = f", for example {' and '.join(map(str, at_small.grown))}" if at_small.grown else ""
        hides = "hides faults between rounds; add a problem at which it takes three"
        yield "warning", f"at the small problems ({listed}), {_some(doubts)}, which {hides}{further}"
    if one_way:
        lines = _some([f"line {line} of {file or kernel.source}" for file, line in sorted(one_way)])
        hides = "hides faults on the other side, such as in a tail; add a problem that takes both, for example"
        example = " and ".join(map(str, dict.fromkeys(one_way.values())))
        yield (
            "warning",
            f"at the small problems ({listed}), the branch on {lines} goes one way, which {hides} {example}",
        )
    if repeats.open:
        yield "warning", open_text(repeats.open, kernel.source)
    samples = repeats.races.values()
    watched = any(one.blocks for one in samples)
    if samples and not watched:
        yield "warning", races_text(samples)
    races = f"; {races_text(samples)}" if watched else ""
    if not (doubts or one_way or repeats.open):
        where = count_noun(len(small), "small problem")
        fewer = f" ({' and '.join(dict.fromkeys(at_small.fewer.values()))})" if at_small.fewer else ""
        every = f"every loop of the default candidate repeats{fewer}"
        yield True, f"{every}, and every branch goes both ways at {where}{races}"
    elif races:
        yield True, f"no findings{races}"


def _some(texts: list[str]) -> str:
    """Return texts as a list, shortened if it is long."""
    shown = " and ".join(texts[:MOST_LISTED])
    return shown + (f" and {len(texts) - MOST_LISTED} more" if len(texts) > MOST_LISTED else "")
