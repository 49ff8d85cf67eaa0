"""The command line: help, exit codes, and where words go."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from columns_kernel import write_columns
from paths import ROOT
from stored_studies import FIELDS, write_study
from typer.testing import CliRunner

import evokern
from evokern.cli._command import app, run_command
from evokern.cli._options import DEPRECATED_OPTIONS, with_current_names, with_whole_problem
from evokern.cli._output import Output
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.compile.cache import CompileCache
from evokern.compile.records import Program
from evokern.errors import InternalError, UsageError

GROUPED = [
    f"{made.typer_instance.info.name} {command.name}"
    for made in app.registered_groups
    if made.typer_instance
    for command in made.typer_instance.registered_commands
]
COMMANDS = sorted([*(command.name for command in app.registered_commands if command.name), *GROUPED])
EVOKERN = [sys.executable, "-m", "evokern"]


def _invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_all_commands_are_there() -> None:
    """The commands that the README promises exist, and no others."""
    assert COMMANDS == [
        *(
            "ablate",
            "cache",
            "check",
            "compare",
            "doctor",
            "evaluate",
            "export",
            "init",
            "list",
            "pack",
            "profile",
            "prove",
            "render",
            "replay",
            "report",
            "resume",
            "sanitize",
            "search",
        ),
        *("selftest", "show", "sweep export", "sweep report", "sweep run", "sweep show", "verify"),
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_with_examples(name: str) -> None:
    """Help says what a command does, shows an example, and names the options of every command."""
    code, text = _invoke(*name.split(), "--help")
    assert code == 0
    assert f"\n    evokern {name}" in text.split("Examples:")[1]
    assert all(option in text for option in ("--json", "--quiet", "--verbose", "--log"))


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_documented(name: str) -> None:
    """README or docs show an example of every command."""
    pages = [ROOT / "README.md", *(page for page in (ROOT / "docs").glob("*.md") if page.name != "cli.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    assert re.search(rf"^(\.venv/bin/)?evokern {name}\b", text, re.MULTILINE)


def test_the_version_is_told() -> None:
    """`--version` tells the package's version."""
    assert _invoke("--version") == (0, f"evokern {evokern.__version__}\n")


def test_help_answers_at_once() -> None:
    """`evokern --help` takes at most 0.4 s of processor time; on slow machines, 7 times as long as importing typer."""

    def spent(*command: str) -> float:
        before = os.times()
        subprocess.run(command, check=True, capture_output=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    times = []
    for _ in range(3):
        times.append((spent(*EVOKERN, "--help"), spent(sys.executable, "-c", "import typer")))
        if times[-1][0] <= max(0.4, 7 * times[-1][1]):
            return
    raise AssertionError(f"{times} s")


def test_unknown_commands_and_options_are_the_users_mistake() -> None:
    """A typing mistake ends with 2 and names what was meant."""
    code, text = _invoke("serach")
    assert (code, "search" in text) == (2, True)
    code, text = _invoke("list", "--jsn")
    assert (code, "--json" in text) == (2, True)


def test_a_usage_error_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    """The user's mistake is one line on stderr, exit code 2, no traceback."""

    def work() -> int:
        raise UsageError("budget '2x' is no duration; write 2h")

    assert run_command(Output(), work) == 2
    assert capsys.readouterr() == ("", "evokern: budget '2x' is no duration; write 2h\n")


@pytest.mark.parametrize("error", [InternalError("odd"), ZeroDivisionError("division by zero")])
def test_a_defect_is_one_line_and_a_file(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What evokern did not expect ends with 3, and the traceback stands in a file that is named."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def work() -> int:
        raise error

    assert run_command(Output(), work) == 3
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    log = Path(re.search(r"the traceback is in (\S+)", told)[1])  # type: ignore[index]
    assert log.is_relative_to(tmp_path)
    assert "Traceback" in log.read_text()


def test_an_interrupt_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C ends with 130."""

    def work() -> int:
        raise KeyboardInterrupt

    assert run_command(Output(), work) == 130
    assert capsys.readouterr().err == "evokern: interrupted\n"


def test_the_log_file_gets_every_message(tmp_path: Path) -> None:
    """`--log FILE` keeps remarks that `--quiet` hides."""
    log = tmp_path / "evokern.log"
    output = Output(quiet=True, log=log)
    assert run_command(output, lambda: output.note("something was done")) == 0
    line = json.loads(log.read_text())
    assert (line["level"], line["message"]) == ("info", "something was done")


@pytest.mark.parametrize(("quiet", "verbose"), [(False, 0), (False, 1), (False, 2), (True, 1)])
def test_a_remark_is_shown_once(quiet: bool, verbose: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`-v` adds messages and repeats none, with a log file and without; `--quiet -v` shows what `--quiet` hides."""
    for log in (None, tmp_path / "evokern.log"):
        output = Output(quiet=quiet, verbose=verbose, log=log)
        assert run_command(output, lambda: output.note("something was done")) == 0  # noqa: B023 (called at once)
        assert capsys.readouterr() == ("", "something was done\n")


def test_the_log_file_gets_what_went_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message that ends a command stands in the log too, and is shown once, also with `-v`."""
    log = tmp_path / "evokern.log"

    def work() -> int:
        raise UsageError("budget '2x' is no duration; write 2h")

    for verbose in (0, 1):
        assert run_command(Output(log=log, verbose=verbose), work) == 2
        told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("evokern: ")]
        assert told == ["evokern: budget '2x' is no duration; write 2h"]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [one["message"] for one in lines if one["level"] == "error"] == 2 * ["budget '2x' is no duration; write 2h"]


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad `--log` is the user's mistake."""
    missing = tmp_path / "absent" / "evokern.log"
    assert run_command(Output(log=missing), lambda: 0) == 2
    told = capsys.readouterr().err
    assert str(missing) in told and "--log" in told


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    """`evokern list | head -1` leaves no complaint."""
    command = f"{sys.executable} -m evokern doctor --json | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert (done.stdout, done.stderr) == ("{\n", "")


def test_list_names_what_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels and studies of the working directory and the package are listed; a broken study hides no other."""
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "broken.toml").write_text("kernel = [")
    monkeypatch.chdir(tmp_path)
    code, text = _invoke("list", "--json")
    assert code == 0
    listed = json.loads(text)
    studies = {study["name"]: study for study in listed["studies"]}
    assert "TOML" in studies["broken"]["error"]
    assert studies["attention-s512"]["kernel"] == "attention"
    assert "attention" in {kernel["name"] for kernel in listed["kernels"]}


def test_doctor_tells_what_is_there() -> None:
    """Doctor names each thing with its state, and a remedy for what is missing."""
    code, text = _invoke("doctor", "--json")
    report = json.loads(text)
    assert code == (0 if report["ok"] else 1)
    checks = {check["name"]: check for check in report["checks"]}
    assert checks["python"]["status"] == "ok"
    assert {"gpu", "cupy", "nvrtc", "headers", "torch", "profiler", "cache"} <= set(checks)
    assert all(check["remedy"] for check in checks.values() if check["status"] == "missing")


def test_the_cache_can_be_capped_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`evokern cache` shows, caps and clears the folder that EVOKERN_CACHE names; where it is off, that is said."""
    monkeypatch.setenv("EVOKERN_CACHE", str(tmp_path / "cache"))
    code, text = _invoke("cache", "--cap", "2GB", "--json")
    assert (code, json.loads(text)["cap_bytes"]) == (0, 2 * 10**9)
    assert _invoke("cache") == (0, f"{tmp_path / 'cache'}: 0 programs, 0.0 MB of at most 2000 MB\n")
    CompileCache(tmp_path / "cache").put("ab12", Program(b"code", {}, {}, "", seconds=1.0))
    assert _invoke("cache", "--clear")[1].startswith("deleted 1 program\n")
    monkeypatch.setenv("EVOKERN_CACHE", "off")
    code, text = _invoke("cache")
    assert (code, "EVOKERN_CACHE is off" in text) == (2, True)


def test_times_are_written_for_people() -> None:
    """Durations and times are written with the digits that matter."""
    from evokern.wording import count_noun, duration, microseconds, roofline_text

    assert [duration(s) for s in (4, 59.4, 60, 3600, 5400)] == ["4 s", "59 s", "1 min", "1 h", "1 h 30 min"]
    assert [duration(s) for s in (59.7, 75, 599.9, 640)] == ["1 min", "1 min 15 s", "10 min", "11 min"]
    assert [microseconds(t) for t in (5.432, 61.27, 1094.2, None)] == ["5.43", "61.3", "1,094", "-"]
    assert [microseconds(t) for t in (0.0, 0.00372, 0.1, math.inf)] == ["0", "0.00372", "0.100", "inf"]
    assert [count_noun(n, "trial") for n in (0, 1, 2)] == ["0 trials", "1 trial", "2 trials"]
    told = [roofline_text({"share": s, "time_us": 0.004, "setter": "memory"}, "µs") for s in (0.441, 0.0019)]
    assert told == [f"{s} % of the roofline bound (0.00400 µs), limited by memory" for s in ("44", "0.2")]


@pytest.mark.thorough
def test_the_shell_completes_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands, studies and kernels are completed."""
    words = {"evokern sea": "search", "evokern search attention-s5": "attention-s512", "evokern check rms": "rmsnorm"}
    for typed, expected in words.items():
        asked = {"_EVOKERN_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
        code = "import sys; sys.argv[0] = 'evokern'; from evokern.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, cwd=ROOT
        )
        assert done.stdout.split() == [expected]


def test_list_says_what_each_study_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The question that a study's file begins with stands beside it, without what was found."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "studies").mkdir()
    head = 'kernel = "rmsnorm"\nproblems = ["8192,8192"]\n'
    for name, text in (
        ("two", "# Asks: which one\n# is best? Rows differ.\n# Found on a day: 3 µs.\n"),
        ("one", "# Asks: what is left.\n# Found: 3 µs.\n"),
        ("none", "# Found: nothing.\n"),
        ("bare", ""),
    ):
        (tmp_path / "studies" / f"{name}.toml").write_text(text + head)
    asked = {
        s["name"]: s.get("asks") for s in json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)["studies"]
    }
    assert [asked[name] for name in ("two", "one", "none", "bare")] == [
        "which one is best?", "what is left.", None, None
    ]  # fmt: skip
    assert all(asked[path.stem] for path in (ROOT / "studies").glob("*.toml"))
    assert "  which one is best?\n" in CliRunner().invoke(app, ["list"]).stdout


def test_list_tells_what_a_database_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--db` each study of a database is told with its kernel, problem, device, trials and best time."""
    monkeypatch.chdir(tmp_path)
    write_study(tmp_path / "runs.db", 20)
    told = CliRunner().invoke(app, ["list", "--db", "runs.db"]).stdout.partition("Database runs.db\n")[2]
    assert re.search(r"^  small +tiny at 2,8,512,64 on NVIDIA H200$", told, re.MULTILINE), "no names are known"
    assert re.search(r"^ +20 trials, best [\d.]+ µs \(trial \d+\), .* started 20", told, re.MULTILINE)
    (row,) = json.loads(CliRunner().invoke(app, ["list", "--db", "runs.db", "--json"]).stdout)["database"]["studies"]
    assert (row["name"], row["kernel"], row["trials"]) == ("small", "tiny", 20)
    assert "database" not in json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)
    write_study(tmp_path / "named.db", 20, fields=FIELDS)
    named = CliRunner().invoke(app, ["list", "--db", "named.db"]).stdout
    assert re.search(r"^  small +tiny at B=2 H=8 S=512 D=64 on NVIDIA H200$", named, re.MULTILINE)
    (row,) = json.loads(CliRunner().invoke(app, ["list", "--db", "named.db", "--json"]).stdout)["database"]["studies"]
    assert row["problems"] == ["2,8,512,64"], "programs read keys"
    refused = CliRunner().invoke(app, ["list", "--db", "absent.db"])
    assert (refused.exit_code, "absent.db" in refused.stderr) == (2, True)


def test_show_tells_problems_by_the_names_of_their_fields(tmp_path: Path) -> None:
    """Titles leave defaults out, a trial's times and gate have every field; JSON has the keys as before."""
    db = ["--db", str(tmp_path / "r.db")]
    write_study(tmp_path / "r.db", 20, fields=FIELDS)
    assert "small: kernel tiny at B=2 H=8 S=512 D=64 on NVIDIA H200" in CliRunner().invoke(app, ["show", *db]).stdout
    best = json.loads(CliRunner().invoke(app, ["show", "--json", *db]).stdout)["best"]["trial"]
    told = CliRunner().invoke(app, ["show", "--trial", str(best), *db]).stdout
    assert "time on B=2 H=8 S=512 D=64 causal=0: " in told
    assert "gate: B=2 H=8 S=512 D=64 causal=0: " in told
    assert "2,8,512,64" not in told
    facts = json.loads(CliRunner().invoke(app, ["show", "--trial", str(best), "--json", *db]).stdout)
    assert list(facts["gate"]) == ["2,8,512,64"]


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("k --problem B=1 S=128 --json", ["k", "--problem", "B=1 S=128", "--json"]),
        ("--problem=B=1 S=128 k", ["--problem=B=1 S=128", "k"]),
        ("k --problem 1,128 --set A=1", ["k", "--problem", "1,128", "--set", "A=1"]),
        ("k --problem B=1 --set A=1 B=2", ["k", "--problem", "B=1", "--set", "A=1", "B=2"]),
        ("k --problem 2 N=3", ["k", "--problem", "2", "N=3"]),
        ("--set A=1 --set B=2", ["--set", "A=1", "--set", "B=2"]),
    ],
)
def test_a_problem_need_not_be_quoted(given: str, taken: list[str]) -> None:
    """What a report prints is one problem behind `--problem` as it stands; nothing else is joined."""
    assert with_whole_problem(given.split()) == taken


def test_a_printed_problem_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sanitize` runs it quoted, unquoted and by its key alike, and says what is wrong with another."""
    monkeypatch.chdir(tmp_path)
    write_columns(tmp_path)

    def sanitized(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["sanitize", "columns", "--problem", *words])
        return done.exit_code, done.stdout + done.stderr

    code, told = sanitized("64")
    assert (code, "columns at N=64" in told) == (0, True), told
    assert sanitized("N=64") == sanitized("n=64") == (code, told)
    code, told = sanitized("M=64")
    assert (code, "'M'" in told, "known: N" in told) == (2, True, True), told
    assert sanitized("N=64", "N=65")[0] == 2
    assert "4 GiB" in sanitized("N=1000000000")[1]
    assert "64 and 65" in sanitized("N=64", "N=65")[1]


@pytest.mark.parametrize(
    ("given", "taken", "warned"),
    [
        ("s --go-on", "s --allow-changes", ["--allow-changes"]),
        ("--window 8 s --go-on", "--max-in-flight 8 s --allow-changes", ["--max-in-flight", "--allow-changes"]),
        ("--window=8", "--max-in-flight=8", ["--max-in-flight"]),
        ("--go-on=1", "--allow-changes=1", ["--allow-changes"]),
        ("-- --go-on", "-- --go-on", []),
        ("--db --go-on", "--db --go-on", []),
        ("--window --go-on", "--max-in-flight --go-on", ["--max-in-flight"]),
        ("--db=x --go-on", "--db=x --allow-changes", ["--allow-changes"]),
        ("--seed 3 --go-onward", "--seed 3 --go-onward", []),
    ],
)
def test_old_option_names_are_replaced(given: str, taken: str, warned: list[str]) -> None:
    """The current name takes the place of an old one, but not after `--` or as the value of an option."""
    told: list[str] = []
    with_value = {"--db", "--seed", "--max-in-flight"}
    assert with_current_names(given.split(), {*with_value, "--allow-changes"}, with_value, told.append) == taken.split()
    assert [text.split()[-1] for text in told] == warned


def test_old_option_names_still_work() -> None:
    """They are accepted with one line on stderr that names the new option, and no help lists them."""
    done = CliRunner().invoke(app, ["search", "absent", "--go-on", "--window=4", "--json"])
    lines = done.stderr.splitlines()
    assert (done.exit_code, done.stdout, len(lines)) == (2, "", 3), done.output
    assert "--go-on" in lines[0] and "--allow-changes" in lines[0]
    assert "--window" in lines[1] and "--max-in-flight" in lines[1]
    assert "'absent'" in lines[2]
    done = CliRunner().invoke(app, ["show", "--go-on"])
    assert (done.exit_code, "No such option" in done.stderr, "deprecated" in done.stderr) == (2, True, False)
    helps = [_invoke(*name.split(), "--help")[1] for name in COMMANDS]
    for old, new in DEPRECATED_OPTIONS.items():
        assert any(new in text for text in helps)
        assert not any(re.search(rf"{old}\b", text) for text in helps)


def test_help_states_the_instruction_limit() -> None:
    """The help of `sanitize` gives the default of `--limit`."""
    from evokern.analysis.sanitize.candidate import INSTRUCTION_LIMIT

    assert f"Default: {INSTRUCTION_LIMIT // 10**6} million" in " ".join(_invoke("sanitize", "--help")[1].split())
