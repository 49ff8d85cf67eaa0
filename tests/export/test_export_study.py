"""From a search to its exported program: which code, which words, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest
from paths import DATA, ROOT
from stored_studies import reseal
from typer.testing import CliRunner

import evokern
from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.doctor import host_compiler
from evokern.export.t1 import compiled_space
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import load_kernel

needs_compiler = pytest.mark.skipif(host_compiler() is None, reason="no C++ compiler on PATH")
GUIDE = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the documents' kernel and a study of it, searched on a simulated L4."""
    place = tmp_path_factory.mktemp("searched")
    folder = place / "kernels" / "scale"
    folder.mkdir(parents=True)
    (place / "studies").mkdir()
    for name, language in (("kernel.cu", "cuda"), ("kernel.py", "python"), ("reference.h", "cpp")):
        blocks = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
        (folder / name).write_text(blocks[0])
    study = 'kernel = "scale"\nproblems = ["65536"]\n[genes]\nLOADS = ["scalar"]\n[gate]\nrtol = 1e-4\n'
    (place / "studies" / "scale.toml").write_text(study)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        result = CliRunner().invoke(app, ["search", "scale", "--device", "sim:l4", "--trials", "2", "--quiet"])
        assert result.exit_code == 0, result.output
    return place


@pytest.fixture
def here(searched: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder, as the working directory."""
    monkeypatch.chdir(searched)
    monkeypatch.delenv("EVOKERN_DB", raising=False)
    return searched


def _invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.thorough
def test_the_champion_is_exported(here: Path, tmp_path: Path) -> None:
    """The file tells study, trial, device and time, labelled as predicted, and the command tells how to build it."""
    best = json.loads(_invoke("show", "--json")[1])["best"]
    target = tmp_path / "mine.cu"
    code, told, _ = _invoke("export", "-o", str(target))
    assert code == 0
    assert f"nvcc -arch=sm_89 {target} -o {tmp_path / 'mine'} && {tmp_path / 'mine'}" in told
    text = target.read_text()
    assert re.search(r"^// study: +scale, ", text, re.MULTILINE)
    assert re.search(rf"^// trial: +{best['trial']}$", text, re.MULTILINE)
    assert re.search(r"^// device: +sim:l4, simulated$", text, re.MULTILINE)
    assert re.search(rf"^// time: +{best['time_us']:.3f} µs predicted$", text, re.MULTILINE)
    assert "expected[0], 0, 0.0001)" in text.replace("0.0,", "0,"), "the study's own tolerance is used"


def test_python_exports_what_the_command_does(here: Path, tmp_path: Path) -> None:
    """`load_study().export()` writes the same program, of the champion or another trial, and names what is missing."""
    study = evokern.load_study()
    for words, options in (((), {}), (("--trial", "0"), {"trial": 0})):
        assert _invoke("export", *words, "-o", str(tmp_path / "same.cu"))[0] == 0
        command = (tmp_path / "same.cu").read_text()
        assert study.export(tmp_path / "same.cu", **options).read_text() == command
    with pytest.raises(evokern.EvokernError, match=r"no problem 3; .*0 is N=65536"):
        study.export(tmp_path / "same.cu", problem=3)


def test_python_reads_without_the_kernel(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel folder that breaks when imported is no matter to reading; a program needs it, or its stored copy."""
    study = evokern.load_study(db=here / "evokern.db")
    wanted = study.export(tmp_path / "same.cu").read_text()
    own = tmp_path / "kernels" / "scale"
    own.mkdir(parents=True)
    (own / "kernel.py").write_text("raise AssertionError('imported')")
    monkeypatch.chdir(tmp_path)
    (here / "kernels").rename(here / "gone")
    try:
        assert study.best is not None
        assert "predicted by a model" in study._repr_html_()
        assert study.report(tmp_path / "r.html").stat().st_size > 10_000
        with pytest.raises(evokern.EvokernError, match="the code of kernel scale changed since that trial ran"):
            study.export(tmp_path / "same.cu")
        assert study.export(tmp_path / "same.cu", trust=True).read_text() == wanted
    finally:
        (here / "gone").rename(here / "kernels")


def test_any_measured_trial_and_stdout(here: Path) -> None:
    """`--trial` picks another trial, `-o -` writes to stdout alone."""
    code, text, told = _invoke("export", "--trial", "0", "-o", "-")
    notes = told.splitlines()  # progress, then the checks
    assert (code, notes[0]) == (0, "compiling trial 0 of scale with NVRTC for sm_89")
    assert re.fullmatch(r"compiled with nvrtc [\d.]+ for sm_89; not built", notes[-1])
    assert text.startswith("// scale: ")
    assert re.search(r"^// trial: +0$", text, re.MULTILINE)
    for problem in ("0", "N=65536", "65536"):
        assert _invoke("export", "--trial", "0", "--problem", problem, "-o", "-")[:2] == (0, text), (
            "as reports print it"
        )


def test_what_cannot_be_exported(here: Path, tmp_path: Path) -> None:
    """An unknown trial, an unknown problem, and a place that cannot be written are named."""
    assert _invoke("export", "--trial", "99")[0] == 2
    code, _, told = _invoke("export", "--problem", "3")
    assert (code, "study scale has no problem 3" in told, "N=65536" in told) == (2, True, True)
    code, _, told = _invoke("export", "--problem", "N=4")
    assert (code, "study scale has no problem N=4" in told, "N=65536" in told) == (2, True, True)
    code, _, told = _invoke("export", "--problem", "M=65536")
    assert (code, told) == (2, "evokern: scale has no problem field 'M': known: N\n")
    code, _, told = _invoke("export", "-o", str(tmp_path / "absent" / "best.cu"))
    assert (code, "another file with -o" in told) == (2, True)


def test_changed_code_is_not_exported_as_the_trial(here: Path, tmp_path: Path) -> None:
    """When the kernel changed since, its present code is refused, and the database's copy is used where trusted."""
    source = here / "kernels" / "scale" / "kernel.cu"
    before = source.read_text()
    source.write_text(before.replace("2 * x[i]", "3 * x[i]"))
    try:
        code, _, told = _invoke("export", "-o", str(tmp_path / "best.cu"))
        assert (code, "database's copy of kernel.py" in told, "--trust" in told) == (2, True, True)
        assert _invoke("export", "--trust", "-o", str(tmp_path / "best.cu"))[0] == 0
    finally:
        source.write_text(before)
    assert "y[i] = 2 * x[i];" in (tmp_path / "best.cu").read_text()


def test_show_needs_no_kernel_folder(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that was copied away is read where there is no kernel and no study file."""
    (tmp_path / "copied.db").write_bytes((here / "evokern.db").read_bytes())
    monkeypatch.chdir(tmp_path)
    code, told, _ = _invoke("show", "--db", "copied.db")
    assert (code, "µs predicted" in told) == (0, True)
    assert _invoke("show", "--db", "copied.db", "--trial", "0")[0] == 0


def test_what_was_only_predicted_slow_is_not_exported(here: Path, tmp_path: Path) -> None:
    """A candidate that is predicted slow never met the gate: its export is refused, with the ways on."""
    database = tmp_path / "my runs.db"
    shutil.copy("evokern.db", database)
    best = json.loads(_invoke("show", "--json")[1])["best"]["trial"]
    with sqlite3.connect(database) as db:
        evidence = json.dumps({"elite_us": 1.0, "limit_us": 3.1, "predicted_us": 9.0})
        db.execute(
            "UPDATE evokern_trials SET outcome = 'slow', timings = '[]', gate = '{}', evidence = ? WHERE number = ?",
            [evidence, best],
        )
    reseal(database)
    code, _, told = _invoke("export", "--trial", str(best), "--db", str(database), "-o", str(tmp_path / "x.cu"))
    assert code == 2
    assert f"trial {best} of scale has the outcome slow (slower than " in told
    assert "by its predicted time: its output was not checked); verify it" in told
    assert f"`evokern verify scale --trial {best} --db '{database}'`" in told
    assert "choose a measured trial" in told
    assert not (tmp_path / "x.cu").exists()


@pytest.fixture(scope="module")
def searched_two(searched: Path) -> Path:
    """A database with a study of two problems, whose session has a baseline at both."""
    database = searched / "two.db"
    study = (searched / "studies" / "scale.toml").read_text()
    (searched / "studies" / "two.toml").write_text(study.replace('["65536"]', '["65536", "4194304"]'))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(searched)
        found = _invoke("search", "two", "--device", "sim:l4", "--trials", "2", "--quiet", "--db", str(database))
    assert found[0] == 0, found
    timings = [{"median_us": us, "ci95_us": [us, us], "samples_us": [us]} for us in (10.0, 1000.0)]
    with sqlite3.connect(database) as db:
        told = json.dumps([{"name": "copy", "timings": timings, "error": ""}])
        db.execute("UPDATE evokern_sessions SET baselines = ?", [told])
    reseal(database)
    return database


@pytest.fixture
def of_two(here: Path, searched_two: Path, tmp_path: Path) -> Path:
    """A copy of that database, with what its log holds."""
    database = tmp_path / "two.db"
    with sqlite3.connect(searched_two) as source, sqlite3.connect(database) as target:
        source.backup(target)
    return database


def test_of_several_problems_the_time_is_that_of_the_program_s(of_two: Path, tmp_path: Path) -> None:
    """Head, command and `--json` give the trial's and the baseline's time at the problem that is compiled for."""
    best = json.loads(_invoke("show", "two", "--json", "--db", str(of_two))[1])["best"]
    trial = _invoke("show", "two", "--trial", str(best["trial"]), "--json", "--db", str(of_two))[1]
    times = [timing["median_us"] for timing in json.loads(trial)["timings"]]
    for place, (size, baseline) in enumerate(((65536, 10), (4194304, 1000))):
        target = tmp_path / "best.cu"
        words = ("export", "two", "--problem", str(place), "-o", str(target), "--db", str(of_two))
        told = json.loads(_invoke(*words, "--json")[1])
        assert (told["problem"], told["time_us"], told["is_mean"]) == (f"N={size}", times[place], False)
        head = target.read_text().split("#include")[0]
        assert f"µs predicted: {baseline / times[place]:.2f}× as fast" in head
        assert re.search(rf"^// time: +{times[place]:.3f} µs predicted$", head, re.MULTILINE)
        said = _invoke(*words)[1]
        assert f"µs predicted at N={size}\nspecialised for N={size}, one of the study's 2 problems; " in said
        assert "--problem" in said


def test_a_mean_over_problems_is_called_one(of_two: Path, tmp_path: Path) -> None:
    """`show` says that the best's time is one, and an export does where times at each problem are not stored."""
    shown = _invoke("show", "two", "--db", str(of_two))[1]
    assert re.search(r"^best: trial \d, [\d.]+ µs predicted, geometric mean over 2 problems", shown, re.MULTILINE)
    assert "baseline: copy, 100 µs predicted, geometric mean over 2 problems\n" in shown
    with sqlite3.connect(of_two) as db:
        db.execute("UPDATE evokern_trials SET timings = '[]'")
    reseal(of_two)
    words = ("export", "two", "-o", str(tmp_path / "best.cu"), "--db", str(of_two))
    best = json.loads(_invoke("show", "two", "--json", "--db", str(of_two))[1])["best"]
    told = json.loads(_invoke(*words, "--json")[1])
    assert (told["time_us"], told["is_mean"]) == (best["time_us"], True)
    head = (tmp_path / "best.cu").read_text().split("#include")[0]
    assert head.count("µs predicted, geometric mean over 2 problems") == 2
    assert "µs predicted, geometric mean over 2 problems\nspecialised for N=65536" in _invoke(*words)[1]


LEAK = 'static int leaked = std::fopen("leaked", "w") != nullptr;'
ENDS = ("\n", "\r", "\r\n", "\u2028", "\x0b", "\\\n")


@pytest.mark.parametrize("end", ENDS, ids=[end.encode("unicode_escape").decode() for end in ENDS])
def test_text_of_a_database_stays_in_the_comment(here: Path, tmp_path: Path, end: str) -> None:
    """A line end in whatever a database says of a study leads no text out of its comment or literal."""
    text = _poisoned_export(here, tmp_path, end)
    lines = [line for line in re.split(r"\r\n|[\n\r\v\f\x85\u2028\u2029]", text) if "leaked" in line]
    assert len(lines) >= 6, "each text stands in the program"
    for line in lines:
        assert re.match(r"//|  if \(!\(.*\)\) return \"(\\.|[^\"\\])*\";$", line), line
        assert not line.endswith("\\")


@pytest.mark.thorough
@needs_compiler
def test_text_of_a_database_is_not_run(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program exported from a database that somebody changed runs nothing but the kernel."""
    text = _poisoned_export(here, tmp_path, "\n")
    (tmp_path / "best.cpp").write_text(text)
    monkeypatch.chdir(tmp_path)
    types = ["-DFAKE_KERNEL_TYPES=const float*,float*,int", "-DFAKE_KERNEL_COUNT=3"]
    options = ["-std=c++17", "-w", f"-I{DATA / 'fake_cuda'}", "-include", "utility", *types]
    subprocess.run([str(host_compiler()), *options, "best.cpp", "-o", "best"], check=True, capture_output=True)
    done = subprocess.run(["./best", "--check", "1000"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "PASS")
    assert not (tmp_path / "leaked").exists()


def test_gene_values_from_a_database_must_be_declared(here: Path, tmp_path: Path) -> None:
    """Values go into source and compiler options: one that the kernel does not declare is refused."""
    database = tmp_path / "changed.db"
    shutil.copy("evokern.db", database)
    best = json.loads(_invoke("show", "--json")[1])["best"]["trial"]
    with sqlite3.connect(database) as db:
        (config,) = db.execute("SELECT config FROM evokern_trials WHERE number = ?", [best]).fetchone()
        changed = json.dumps({**json.loads(config), "THREADS": f"64\n{LEAK}"})
        db.execute("UPDATE evokern_trials SET config = ? WHERE number = ?", [changed, best])
    reseal(database)
    asked = (("export", "-o", str(tmp_path / "x.cu")), ("verify",), ("profile",), ("ablate",))
    for command in (*asked, ("search", "scale", "--trials", "3", "--device", "sim:l4")):
        code, _, told = _invoke(*command, "--db", str(database))
        assert (code, f"trial {best} of scale" in told, "candidate of scale" in told) == (2, True, True), told
        assert "\n" not in told.strip(), "one line, as every message"
    assert not (tmp_path / "x.cu").exists()


def _poisoned_export(here: Path, tmp_path: Path, end: str) -> str:
    """Return a program exported from a copy of the database whose every text about a study holds a line end."""
    database = tmp_path / "poisoned.db"
    shutil.copy("evokern.db", database)
    poison = f"9{end}{LEAK}{end}//"
    with sqlite3.connect(database) as db:
        db.execute("UPDATE evokern_studies SET evokern_version = ?, created = ?, kernel = ?, device = ?", [poison] * 4)
        (environment,) = db.execute("SELECT environment FROM evokern_sessions").fetchone()
        words = {**json.loads(environment), "driver": poison, "driver_cuda": poison, "compiler": poison}
        words["compute_capability"] = [8, 9]
        db.execute("UPDATE evokern_sessions SET environment = ?", [json.dumps(words)])
    reseal(database)
    code, told, wrong = _invoke("export", "--db", str(database), "-o", str(tmp_path / "best.cu"))
    assert code == 0, told + wrong
    return (tmp_path / "best.cu").read_bytes().decode()


RAN = "import os\nopen(os.path.join(os.path.dirname(__file__), 'ran'), 'w').close()\n"


def _moved(searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, inside: bool, changed: bool) -> Path:
    """Return the folder that a copy of the database names for its kernel, from a working directory beside or above."""
    work = tmp_path / "work"
    work.mkdir()
    named = (work if inside else tmp_path) / "named"
    named.mkdir()
    for file in (searched / "kernels" / "scale").iterdir():
        if file.is_file():
            (named / file.name).write_text(file.read_text() + (RAN if changed and file.suffix == ".py" else ""))
    shutil.copy(searched / "evokern.db", work / "evokern.db")
    with sqlite3.connect(work / "evokern.db") as db:
        (settings,) = db.execute("SELECT settings FROM evokern_studies").fetchone()
        away = {**json.loads(settings), "kernel": str(named), "path": str(tmp_path / "studies" / "x.toml")}
        db.execute("UPDATE evokern_studies SET settings = ?", [json.dumps(away)])
    reseal(work / "evokern.db")
    monkeypatch.chdir(work)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return named


KEPT = "to run the database's copy of kernel.py instead of the folder, use --trust"


@pytest.mark.parametrize("inside", [True, False], ids=["below the working directory", "outside"])
@pytest.mark.parametrize("command", [("export", "-o", "x.cu"), ("profile", "--set", "THREADS=64")], ids=" ".join)
def test_a_database_cannot_make_a_folder_trusted(
    searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], inside: bool
) -> None:
    """`--trust` runs the kept copy, as the message says; another folder's code neither runs nor is remembered.

    The digest is compared before: a path below the working directory, which runs unasked, is none of the trial's.
    """
    named = _moved(searched, tmp_path, monkeypatch, inside=inside, changed=True)
    code, _, told = _invoke(*command)
    assert (code, KEPT in told) == (2, True), told
    code, _, told = _invoke(*command, "--trust")
    assert code == 0, told
    assert not (named / "ran").exists()
    assert not (tmp_path / "state").exists()


def test_resume_trusts_no_folder_that_a_database_names(
    searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`resume` asks for `--trust` where the folder is not the user's own, goes on with the copy, remembers nothing."""
    named = _moved(searched, tmp_path, monkeypatch, inside=False, changed=False)
    asked = ("resume", "--trials", "3", "--no-verify", "--quiet")
    code, _, told = _invoke(*asked)
    assert (code, KEPT in told) == (2, True), told
    assert f"the code of that trial is in {named}, outside the working directory" in told
    assert f"`evokern check {named} --trust`" in told
    (named / "kernel.py").write_text(RAN + (named / "kernel.py").read_text())
    code, _, told = _invoke(*asked)
    assert (code, "changed since that trial ran" in told, "is in" in told) == (2, True, False), told
    code, _, told = _invoke(*asked, "--trust")
    assert code == 0, told
    assert json.loads(_invoke("show", "--json")[1])["trials"] == 3
    assert not (named / "ran").exists()
    assert not (tmp_path / "state").exists()
    with sqlite3.connect("evokern.db") as db:
        (settings,) = db.execute("SELECT settings FROM evokern_studies").fetchone()
    assert json.loads(settings)["kernel"] == str(named), "where the copy lay for a while is not kept"


def test_resume_compares_the_digest_before_a_folder_runs(
    searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code below the working directory that is not the study's runs when `--go-on` says so, not before."""
    named = _moved(searched, tmp_path, monkeypatch, inside=True, changed=True)
    asked = ("resume", "--trials", "2", "--no-verify", "--quiet")
    code, _, told = _invoke(*asked)
    assert (code, KEPT in told) == (2, True), told
    assert "--allow-changes" in told
    assert not (named / "ran").exists()
    code, _, told = _invoke(*asked, "--go-on")
    assert (code, (named / "ran").exists()) == (0, True), told
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("trust", [(), ("--trust",)], ids=["", "--trust"])
def test_resume_of_a_recorded_study_runs_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trust: tuple[str, ...]
) -> None:
    """What is played from a recording needs no kernel: a folder of its name is not run, nor trusted."""
    folder = tmp_path / "kernels" / "recording"
    (tmp_path / "studies").mkdir()
    study = f'kernel = "recording"\nproblems = ["recorded"]\ndevice = "replay:{DATA / "table_small.json.gz"}"\n'
    (tmp_path / "studies" / "small.toml").write_text(study)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    code, _, told = _invoke("search", "small", "--trials", "4", "--quiet")
    assert code == 0, told
    folder.mkdir(parents=True)
    (folder / "kernel.py").write_text(RAN)
    folder.chmod(0o777)
    code, _, told = _invoke("resume", "--trials", "5", "--quiet", *trust)
    assert (code, (folder / "ran").exists(), (tmp_path / "state").exists()) == (0, False, False), told
    folder.chmod(0o755)
    code, _, told = _invoke("resume", "--trials", "6", "--quiet", "--device", "sim:l4", *trust)
    assert (code, (folder / "ran").exists()) == (2, False)
    assert "study small was searched on a recording, but the current device is sim:l4" in told


def test_a_space_is_compiled_with_the_options_of_its_file(here: Path) -> None:
    """The file defines the macros and the words of named choices; the command says what was compiled."""
    code, told, _ = _invoke("export", "--format", "t1", "-o", "space.json")
    assert (code, "the default candidate compiled with nvrtc" in told, "named choices" in told) == (0, True, False)
    made = json.loads((here / "space.json").read_text())
    options = made["KernelSpecification"]["CompilerOptions"]
    assert {"-DLOADS_VECTOR4=1", "-Dvector4=LOADS_VECTOR4"} <= set(options)
    assert made["evokern"]["checks"].endswith("for sm_89")


def test_a_space_whose_choices_are_words_of_the_source_says_so(here: Path, tmp_path: Path) -> None:
    """Such words cannot be macros, so the source does not compile with the values of the file."""
    shutil.copytree(here / "kernels", tmp_path / "kernels")
    source = tmp_path / "kernels" / "scale" / "kernel.cu"
    source.write_text(source.read_text() + "__device__ inline float scalar() { return 1; }\n")
    kernel = load_kernel(tmp_path / "kernels" / "scale")
    left_out: list[str] = []
    problem = kernel.problem("65536")
    specification = {"CompilerOptions": ["-DLOADS_SCALAR=0", "-DLOADS_VECTOR4=1"], "KernelName": "scale"}
    checks = compiled_space(kernel, problem, CHIPS["l4"], specification, left_out)
    assert (checks.startswith("does not compile with nvrtc"), "LOADS" in left_out[0]) == (True, True)
