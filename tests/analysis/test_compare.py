"""Comparing two results: from samples whose truth is known, from databases and from exported programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_helpers import tiny_table
from stored_studies import MEASURED, record
from typer.testing import CliRunner

from evokern.analysis.compare.compare import ComparedRun, RunTiming, compare, compare_paired, markdown
from evokern.analysis.compare.compared_runs import compared_run, pair_programs
from evokern.cli.app import app
from evokern.device import StartReport
from evokern.errors import UsageError
from evokern.store import Store
from evokern.study.trial import Proposal, Timing, Trial


def samples(time_us: float, seed: int, count: int = 20) -> tuple[float, ...]:
    """Samples of one run: an offset of that day, autocorrelated noise, now and then a disturbed one."""
    rng = np.random.default_rng(seed)
    state, found = 0.0, []
    for _ in range(count):
        state = 0.7 * state + rng.normal(0, 0.004)
        found.append(state + (rng.random() < 0.03) * rng.exponential(0.1))
    return tuple(float(x) for x in time_us * np.exp(np.array(found) + rng.normal(0, 0.004)))


def stored_run(label: str, times: Sequence[float], seed: int, **changes: object) -> ComparedRun:
    readings = {f"p{n}": RunTiming(t, None, samples(t, 1000 * seed + n)) for n, t in enumerate(times)}
    found = ComparedRun(label, "attention", "NVIDIA H200", False, readings, {"TILE": 64}, {"driver": label})
    return replace(found, **changes)  # type: ignore[arg-type]


def alarms(slower: float, problems: int = 1) -> int:
    pairs = [
        compare(stored_run("old", [5.4] * problems, 2 * n), stored_run("new", [5.4 * slower] * problems, 2 * n + 1))
        for n in range(100)
    ]
    return sum(one.verdict == "slower" for one in pairs)


@pytest.mark.thorough
@pytest.mark.parametrize("problems", [1, 3])
def test_equal_runs_seldom_alarm(problems: int) -> None:
    """Of 100 pairs of equal runs at most 5 alarm at level 0.01."""
    assert alarms(1.0, problems) <= 5


@pytest.mark.thorough
def test_five_percent_is_found() -> None:
    """Of 100 pairs with 5 % more time at least 95 alarm; two percent are below the threshold and seldom do."""
    assert alarms(1.05) >= 95
    assert alarms(1.02) <= 10


def test_faster_is_no_alarm() -> None:
    """What is faster is said to be faster."""
    found = compare(stored_run("old", [5.4], 1), stored_run("new", [4.9], 2))
    assert (found.verdict, found.lines[0].delta) == ("faster", 1.0)


def test_predicted_times_are_compared_as_they_are() -> None:
    """Predictions have no noise, so that the threshold alone decides."""
    old = stored_run("old", [5.0], 1, predicted=True, readings={"p": RunTiming(5.0)})
    new = replace(old, label="new", readings={"p": RunTiming(5.16)})
    assert compare(old, new).verdict == "slower"
    assert compare(old, replace(new, readings={"p": RunTiming(5.14)})).verdict == "same"


def test_intervals_must_not_overlap_where_no_samples_are_known() -> None:
    """Of an exported program only the interval is known: slower means beyond the threshold and apart."""
    old = stored_run("old", [5.0], 1, readings={"p": RunTiming(5.0, (4.8, 5.2))})
    near = replace(old, readings={"p": RunTiming(5.3, (5.1, 5.5))})
    assert compare(old, near).verdict == "same"
    assert compare(old, replace(old, readings={"p": RunTiming(5.3, (5.25, 5.4))})).verdict == "slower"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernel": "matmul"}, "different kernels"),
        ({"device": "NVIDIA L4"}, "different chips"),
        ({"predicted": True}, "predicted times and the other has measured"),
        ({"readings": {"q": RunTiming(5.0)}}, "no problem in common"),
        ({"readings": {"p0": RunTiming(5.0)}}, "neither samples nor a confidence interval"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes: dict[str, object], message: str) -> None:
    """Other kernels, chips and shapes are named with what each run is."""
    with pytest.raises(UsageError, match=message):
        compare(stored_run("old", [5.4], 1), stored_run("new", [5.4], 2, **changes))


def test_problems_of_one_run_alone_are_left_out_and_said() -> None:
    """A study with more problems is compared at the common ones."""
    found = compare(stored_run("old", [5.4, 9.0], 1), stored_run("new", [5.4], 2))
    assert [line.problem for line in found.lines] == ["p0"]
    assert found.remarks == ("skipped p1: only old has a time for it",)


def test_problems_are_told_by_whichever_run_knows_their_names() -> None:
    """Lines, remarks and refusals name a problem's fields where either run knows them; JSON has its key."""
    old = stored_run("old", [5.4, 9.0], 1, words={"p0": "B=2 S=512", "p1": "B=2 S=1024"})
    found = compare(old, stored_run("new", [5.4], 2))
    assert [found.in_words(line) for line in found.lines] == ["B=2 S=512"]
    assert found.remarks == ("skipped B=2 S=1024: only old has a time for it",)
    assert "| B=2 S=512 |" in markdown(found)
    assert found.as_dict()["problems"][0]["problem"] == "p0"
    with pytest.raises(UsageError, match="old has B=2 S=512 and B=2 S=1024, new has q"):
        compare(old, stored_run("new", [], 2, readings={"q": RunTiming(5.0)}))


def test_paired_programs_decide_by_the_playoff() -> None:
    """Programs that run in turn are judged by the sequential test, in whichever order they were given."""
    rng = np.random.default_rng(3)
    order: list[str] = []

    def run(binary: Path) -> float:
        order.append(binary.name)
        return float({"old": 5.0, "new": 5.4}[binary.name] * np.exp(rng.normal(0, 0.003)))

    played = pair_programs([Path("old"), Path("new")], run)
    assert order[:4] == ["old", "new", "new", "old"]
    old, new = stored_run("old", [5.0], 1), stored_run("new", [5.4], 2)
    slower = compare_paired(old, new, played)
    assert (slower.verdict, round(slower.ratio, 2)) == ("slower", 1.08)
    back = compare_paired(new, old, pair_programs([Path("new"), Path("old")], run))
    assert (back.verdict, round(back.ratio, 2)) == ("faster", 0.93)


def database(path: Path, time_us: float, seed: int) -> None:
    """Write a study of one measured trial."""
    table = tiny_table()
    taken = samples(time_us, seed)
    timing = Timing(float(np.median(taken)), (min(taken), max(taken)), taken, clock_mhz=1980.0)
    evaluation = replace(MEASURED, time_us=timing.median_us, timings=(timing,))
    with Store(path) as store:
        study = store.create(record(), {"kernel.cu": ""})
        session = store.session(study, table.space())
        session.write_start_report(StartReport((), {"driver": f"58{seed}.95"}))
        config = table.space().default()
        session.propose(0, Proposal(config, {}, {}), 1.0)
        session.record(Trial(0, Proposal(config), evaluation, 2.0), 2.0)
        session.ended(3.0, "trials")


def invoke(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["compare", *words])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.thorough
def test_the_command_compares_two_databases(tmp_path: Path) -> None:
    """Exit 1 when slower, 0 when not; versions that differ stand side by side; Markdown goes to a file."""
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    database(old, 5.4, 1)
    database(new, 5.9, 2)
    code, told, _ = invoke(str(old), f"{new}:small", "--stored", "--markdown", str(tmp_path / "c.md"))
    assert code == 1
    assert "tiny on NVIDIA H200: slower" in told
    assert "581.95" in told
    text = (tmp_path / "c.md").read_text()
    assert text.startswith("### evokern: tiny on NVIDIA H200: 🔴 slower")
    assert "| driver | 581.95 | 582.95 |" in text
    code, told, _ = invoke(str(new), str(old), "--stored", "--json")
    assert (code, json.loads(told)["verdict"]) == (0, "faster")


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    """A file or study that is not there, or is no export, is the user's mistake with a remedy."""
    database(tmp_path / "old.db", 5.4, 1)
    (tmp_path / "own.cu").write_text("// mine\nint main() {}\n")
    for words, message in (
        ((str(tmp_path / "old.db"), "gone.db"), "there is no file gone.db"),
        ((str(tmp_path / "old.db"), f"{tmp_path / 'old.db'}:other"), "no study 'other'"),
        ((str(tmp_path / "own.cu"), str(tmp_path / "old.db")), "is not a program exported by evokern"),
        (
            (str(tmp_path / "old.db"), str(tmp_path / "old.db"), "--level", "2"),
            "--level 2.0 --threshold 0.03: both must be between 0 and 1",
        ),
    ):
        code, _, told = invoke(*words)
        assert (code, message in told) == (2, True), told


def test_an_export_is_read_back(tmp_path: Path) -> None:
    """Kernel, chip, problem, time, interval and choices of an exported program come back from its first comment."""
    path = tmp_path / "best.cu"
    path.write_text(
        "// attention: the fastest variant that evokern found, with the check of its own answers.\n//\n"
        "// device:  NVIDIA H200\n// compiler: nvrtc 13.0\n"
        "// time:    5.432 µs, 95 % interval 5.401 to 5.466\n// kernel:  attention, code 0123456789ab\n"
        "// problem: B=2, H=8, S=512, D=64, dtype=f16\n// configuration:\n//     BLOCK_M = 64\n//     SWIZZLE = xor\n\n"
        "int main() {}\n"
    )
    found = compared_run(str(path))
    assert (found.kernel, found.device, found.predicted) == ("attention", "NVIDIA H200", False)
    assert found.readings == {"2,8,512,64,dtype=f16": RunTiming(5.432, (5.401, 5.466))}
    assert found.config == {"BLOCK_M": "64", "SWIZZLE": "xor"}
    assert found.words == {"2,8,512,64,dtype=f16": "B=2 H=8 S=512 D=64 dtype=f16"}


def test_markdown_cannot_be_broken_by_what_is_compared() -> None:
    """A bar or a line break in a value does not break the table."""
    old = stored_run("old", [5.4], 1, config={"A": "x|y\nz"})
    assert "| A | x\\|y\\\\nz | – |" in markdown(compare(old, stored_run("new", [5.4], 2)))


def test_another_users_program_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exported program is code that runs: one that others may write is refused until it is trusted."""
    from evokern.analysis.compare import compared_runs
    from evokern.errors import InternalError

    def build_and_run(sources: list[Path], level: float) -> None:
        raise InternalError("built")

    monkeypatch.setattr(compared_runs, "pairing_obstacle", lambda device: None)
    monkeypatch.setattr(compared_runs, "pair", build_and_run)
    (tmp_path / "one.cu").write_text(
        "// k: the fastest variant\n// device: NVIDIA H200\n// time: 5.4 µs\n// kernel: k, code 01\n// problem: N=2\n"
        "// configuration:\n"
    )
    path = str(tmp_path / "one.cu")
    assert invoke(path, path)[0] == 3, "the user's own is built"
    (tmp_path / "one.cu").chmod(0o666)
    code, _, told = invoke(path, path)
    assert code == 2
    assert f"{path} is a program that would be built and run, and anybody can write to {path}" in told
    assert invoke(path, path, "--trust")[0] == 3
    (tmp_path / "one.cu").chmod(0o644)
    tmp_path.chmod(0o777)
    assert invoke(path, path)[0] == 2
