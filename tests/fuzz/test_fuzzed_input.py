"""Options, study files and recordings that mean nothing end with exit code 2 or work: no traceback, no hang, no harm.

`pytest -p no:xdist tests/fuzz --count N --seed S` runs N cases of each fuzzer, from seed S on.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from fuzzed_cases import STUDY, Done, at, checked, command, each, workplace
from hostile_values import TOML, harmed, harmed_json, word
from typer.main import get_command

from evokern.cli._command import app

APART = 40
"""Every so many cases run in a process of their own, as a user's do."""

BASES = {
    "search": ("search", "small", "--trials", "2", "--quiet", "--db", "results.db"),
    "resume": ("resume", "small", "--trials", "7", "--quiet", "--db", "results.db"),
    "show": ("show", "--db", "results.db"),
    "export": ("export", "--format", "t4", "-o", "out.json", "--db", "results.db"),
    "verify": ("verify", "--db", "results.db"),
    "ablate": ("ablate", "--db", "results.db"),
    "evaluate": ("evaluate", "absent", "--source", "file.cu"),
    "compare": ("compare", "results.db", "results.db"),
    "report": ("report", "-o", "out.html", "--db", "results.db"),
    "replay": ("replay", "table.json.gz", "--samplers", "random", "--trials", "2", "--repeats", "1", "--quiet"),
    "check": ("check", "absent"),
    "sanitize": ("sanitize", "absent.cu"),
    "profile": ("profile", "--db", "results.db"),
    "init": ("init", "absent.cu"),
    "list": ("list", "--db", "results.db"),
    "cache": ("cache",),
}
"""Command → a line of it that is quick, to which options are added that mean nothing."""
HEAVY = {"--clear", "--jobs", "--help", "--budget", "--extend", "--install-completion", "--show-completion"}
"""Options that are left out, or get values of which none is long: a search of hours is what such a budget asks for."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study, a recording and a database of six trials."""
    place = workplace(tmp_path_factory.mktemp("fuzz"))
    with at(place):
        done = command(("search", "small", "--trials", "6", "--quiet", "--no-verify", "--db", "results.db"))
        assert done.code == 0, done
    return place


def _options(name: str) -> list[Any]:
    commands: Any = get_command(app)
    return [one for one in commands.commands[name].params if one.param_type_name == "option"]


def _line(rng: random.Random) -> list[str]:
    """Return a command line that means nothing: options of a command with values of anything."""
    name = rng.choice(sorted(BASES))
    words = list(BASES[name])
    for option in rng.sample(_options(name), rng.randint(1, 2)):
        flag = option.opts[0]
        if flag in HEAVY:
            words += [flag, rng.choice(("0s", "-1", "x", ""))] if flag in ("--budget", "--extend", "--jobs") else []
        else:
            words += [flag] if option.is_flag or option.count else [flag, word(rng)]
    if rng.random() < 0.3:
        place = rng.randrange(1, len(words))
        words[place] = word(rng)
    if rng.random() < 0.1:
        words.insert(rng.randrange(len(words)), word(rng))
    if "--trials" not in words and name in ("search", "resume", "replay"):
        words += ["--trials", "2"]
    return [one.replace("\x00", "") for one in words]


def _named(words: list[str]) -> list[str]:
    """Return the files that a command line names, in whatever way, and those that it writes by default."""
    short = [one for one in words if len(one) < 4096]
    if words[0] == "init":  # --name says what the kernel is called, else the file does
        drafts = [name for name in (*short, "file") if name and "/" not in name]
        folders = [f"kernels/{name}" for name in drafts]
        files = [f"{folder}/{file}" for folder in folders for file in ("kernel.py", "kernel.cu", "reference.h")]
        short += ["kernels", *folders, *files, *(f"studies/{name}.toml" for name in drafts)]
    return [*short, *(one.partition(":")[0] for one in short), "report.html", "study.json", "best.cu", "evokern.db"]


def test_options(here: Path, fuzz: tuple[int, int]) -> None:
    """Any option with any value, on every command."""

    def one(seed: int, rng: random.Random) -> None:
        words = _line(rng)
        checked(words, here, _named(words), apart=seed % APART == 0)
        shutil.rmtree(here / "kernels", ignore_errors=True)  # of `init`: each case starts from the same
        for path in (here / "studies").glob("*.toml"):
            if path.name != "small.toml":
                path.unlink()

    with at(here):
        each(fuzz, one)


WHOLE = (
    STUDY
    + """budget = "1h"
trials = 2
seed = 7
window = 4
control = "none"
cost_per_hour = 2.5
cost_unit = "EUR"
[sampler]
name = "tpe"
n_startup_trials = 1
[gate]
input_sets = ["normal", "large"]
runs = 2
guard_bytes = 512
atol = 0.01
[timing]
cache = "rotate"
race = 1.1
hang_s = 3.0
max_samples = 60
[simulation]
blocks = 6
instruction_limit = 1000
"""
)
"""A study file with most keys that there are."""
SIMULATED = """kernel = "attention"
problems = ["2,8,512,64", {B = 1, H = 2, S = 64, D = 64}]
device = "sim:l4"
dtype = "float16"
[genes]
BLOCK_M = [32, 64]
[limits]
chip = "l4"
[sampler]
name = "evo"
"""
"""One of a kernel, which `list` looks at and nothing searches."""


def _study(rng: random.Random, text: str) -> bytes:
    if rng.random() < 0.25:
        return harmed(text.encode(), rng)
    lines = text.splitlines()
    for _ in range(rng.randint(1, 2)):
        place = rng.randrange(len(lines))
        key, equals, _ = lines[place].partition(" = ")
        match rng.randrange(8):
            case 0:
                lines.append(lines[place])
            case 1:
                del lines[place]
                if not lines:
                    lines = ["kernel = 1"]
            case 2:
                lines[place] = f"{key}x{equals}1" if equals else f"{lines[place]} = 1"
            case _ if equals:
                lines[place] = f"{key} = {rng.choice(TOML)}"
            case _:
                lines[place] = rng.choice(("[a]", "[[gate]]", "[gate.runs]", "a.b.c = 1", "\ufeff", "[sampler]", "= 1"))
    return ("\ufeff" * (rng.random() < 0.1) + "\n".join(lines)).encode("utf-8", "surrogatepass")


def test_study_files(here: Path, fuzz: tuple[int, int]) -> None:
    """Any study file is searched, or refused with its name; and whatever it holds, `list` lists the others."""
    from evokern.cli.commands.list_ import _summary

    path = here / "studies" / "fuzzed.toml"

    def one(seed: int, rng: random.Random) -> None:
        searched = rng.random() < 0.7
        path.write_bytes(_study(rng, WHOLE if searched else SIMULATED))
        apart = seed % APART == 0
        if apart:
            told = checked(("list", "--json"), here, apart=True, codes=(0,)).stdout
            assert {"small", "fuzzed"} <= {one["name"] for one in json.loads(told)["studies"]}
        elif not searched or rng.random() < 0.3:
            assert isinstance(_summary(path), dict)
        if searched:
            words = ["search", "studies/fuzzed.toml", "--trials", "2", "--quiet", "--no-verify", "--db", "fuzzed.db"]
            checked(words, here, ["fuzzed.db"], apart=apart)
            (here / "fuzzed.db").unlink(missing_ok=True)

    with at(here):
        each(fuzz, one)
    path.unlink(missing_ok=True)


def _kernel_tuner() -> dict[str, Any]:
    values = {"A": [1, 2, 3], "B": ["x", "y"]}
    cache = {
        f"{a},{b}": {"A": a, "B": b, "time": 1.0 + a, "times": [1.0 + a, 1.1 + a], "compile_time": 20.0,
                     "verification_time": 0, "benchmark_time": 1.5}
        for a in values["A"] for b in values["B"]
    }  # fmt: skip
    cache["1,x"]["time"] = "CompilationFailedConfig"
    cache["2,x"]["time"] = "InvalidConfig"
    cache["3,y"]["time"] = 1e20
    return {"device_name": "NVIDIA A100", "tune_params_keys": ["A", "B"], "tune_params": values, "cache": cache}


def _t4() -> dict[str, Any]:
    results = [
        {"configuration": {"A": a, "B": b}, "invalidity": "correct" if a < 3 else "timeout",
         "times": {"compilation": 0.2, "benchmark": 0.1, "runtimes": [0.1 * a, 0.2]},
         "measurements": [{"name": "time", "value": 1.0 * a, "unit": "ms"}]}
        for a in (1, 2, 3) for b in ("x", "y")
    ]  # fmt: skip
    return {"results": results, "metadata": {"timeunit": "seconds"}, "schema_version": "1.0.0"}


def _own() -> dict[str, Any]:
    genes = [{"name": "A", "values": [1, 2, 4], "default": 2}, {"name": "B", "values": ["x", "y"], "default": "x"}]
    rows = [
        [0, 0, "measured", 2.5, "f0"],
        [0, 1, "measured", 3.5, None],
        [1, 0, "wrong", "output"],
        [1, 1, "hung", 3.0],
        [2, 0, "over_resources", "registers", 9, 5],
        [2, 1, "compile_error", "no"],
    ]
    return {"format": "evokern-table/1", "name": "made up", "chip": "l4", "baseline_us": 4.0, "genes": genes,
            "constraints": {"registers": "too many"}, "rows": rows}  # fmt: skip


def test_recordings(here: Path, fuzz: tuple[int, int]) -> None:
    """Any recording is replayed, or refused with its name and what is wrong in it."""
    path = here / "fuzzed.json"

    def one(seed: int, rng: random.Random) -> None:
        base = rng.choice((_kernel_tuner(), _t4(), _own(), own))
        text = json.dumps(base).encode()
        content = harmed(text, rng) if rng.random() < 0.25 else json.dumps(harmed_json(base, rng)).encode()
        if rng.random() < 0.1:
            content = harmed(gzip.compress(text), rng)
        path.write_bytes(content)
        words = ["replay", path.name, "--samplers", "random", "--trials", "3", "--repeats", "1", "--quiet"]
        if rng.random() < 0.4:
            words = ["search", "small", "--device", f"replay:{path.name}", "--trials", "3", "--quiet", "--no-verify"]
            words += ["--db", "fuzzed.db", "--sampler", rng.choice(("evo", "random", "tpe", "grid"))]
        checked(words, here, ["fuzzed.db"], apart=seed % APART == 0)
        (here / "fuzzed.db").unlink(missing_ok=True)

    with at(here):
        own = _exported(here)
        each(fuzz, one)
    path.unlink(missing_ok=True)


def _exported(here: Path) -> dict[str, Any]:
    """Return the T4 file of a search of ours."""
    command(("export", "--format", "t4", "-o", "t4.json", "--db", "results.db"))
    made: dict[str, Any] = json.loads((here / "t4.json").read_text())
    (here / "t4.json").unlink()
    return made


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("Path('other.txt').write_text('x')", "work/other.txt"),
        ("Path('studies/small.toml').chmod(0o600)", "work/studies/small.toml"),
        ("Path.home().joinpath('.left').write_text('x')", "home/.left"),
        ("tempfile.mkdtemp()", "tmp/"),
    ],
)
def test_temporary_files_are_detected(here: Path, monkeypatch: pytest.MonkeyPatch, line: str, seen: str) -> None:
    """The fuzzers see what a command leaves in the working directory, at home and among temporary files."""

    def leaves(words: object, *, apart: bool = False) -> Done:
        exec(line, {"Path": Path, "tempfile": tempfile})
        return Done(0, "", "")

    monkeypatch.setattr("fuzzed_cases.command", leaves)
    with at(here), pytest.raises(AssertionError, match=rf"touched \['{here.parent}/{seen}"):
        checked(("show",), here)
    with at(here):
        (here / "studies" / "small.toml").chmod(0o644)
