"""README and docs say what is true: each command runs, each example works, each name, path and link exists.

A document's commands stand in fenced blocks without a language; `COMMANDS` says of each one how it is run here. The
examples of `docs/cli.md` come from the commands themselves, and are checked for their options.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from imports import tree_of
from paths import ROOT
from typer.testing import CliRunner

from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)

DOCS = ROOT / "docs"
GENERATED = DOCS / "cli.md"
PAGES = (
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "kernels" / "README.md", ROOT / "studies" / "README.md"),
    *sorted(DOCS.glob("*.md")),
)
TABLE = ROOT / "tests" / "data" / "table_small.json.gz"
TOLD_PATHS = r"`((?:evokern|kernels|studies|docs|tests)/[\w./-]*)(?::([\w.]+))?`"
THEIRS = ("kernels/scale", "kernels/vector_add", "kernels/NAME", "studies/scale", "studies/vector_add", "studies/NAME")
"""Beginnings of paths that a reader makes."""


@dataclass(frozen=True)
class Way:
    """How a command of a document is run."""

    where: str
    """What it is run on.

    recorded: a small recording; simulated: small kernels on a simulated chip; dry: make's own dry run; script: a script
    of docs/, whose output is compared with what is there; gpu: a GPU; slow: from nothing, by hand with -m slow; hand:
    nothing here, since it installs what is no part of evokern, sets this checkout up, runs these tests, or has its own
    test.
    """
    short: str = ""
    """The command as it is run, shortened; empty where it runs as it stands."""


RECORDED, SIMULATED, DRY, GPU, SLOW, HAND = (
    Way(where) for where in ("recorded", "simulated", "dry", "gpu", "slow", "hand")
)
COMMANDS: dict[str, Way] = {
    # README.md
    "git clone URL evokern && cd evokern": SLOW,
    'make search ARGS="--budget 3m"': DRY,
    ".venv/bin/evokern show --top 3": RECORDED,
    ".venv/bin/evokern export -o best.cu": SIMULATED,
    ". .venv/bin/activate": HAND,
    "evokern doctor": RECORDED,
    "evokern cache --cap 4GB": Way("recorded", "cache --cap 4GB"),
    "evokern list": RECORDED,
    "evokern render rmsnorm -o candidate": RECORDED,
    "evokern search attention-s512 --budget 10m": Way("recorded", "search attention-s512 --budget 10m --trials 12"),
    "evokern resume --extend 30m": Way("recorded", "resume --extend 30m --trials 14"),
    "evokern show attention-s512 --top 10": RECORDED,
    "evokern show --genes": RECORDED,
    "evokern export attention-s512 -o best.cu": SIMULATED,
    "nvcc -arch=sm_89 best.cu -o best && ./best": GPU,
    "evokern check attention": Way("simulated", "check scale"),
    "evokern prove rmsnorm --set ROW_SUM=every_block": SIMULATED,
    "evokern prove --trial 42": Way("simulated", "prove --trial 0"),
    'evokern sanitize attention --set BLOCK_M=64 --problem "B=1 H=2 S=128 D=64"': Way(
        "simulated", 'sanitize attention --set BLOCK_M=64 --problem "B=1 H=1 S=64 D=64"'
    ),
    "evokern profile": Way("simulated", "profile attention-s512 --device sim:l4"),
    "evokern verify --fuzz 5m": Way("simulated", "verify --fuzz 1s"),
    "evokern report -o report.html": RECORDED,
    "evokern report --serve": HAND,
    # docs/tune.md (tests/tune/test_tune_examples.py)
    "evokern resume attention-s512 --reference mykernels.py:reference --trials 200": HAND,
    "evokern verify attention-s512 --reference mykernels:reference": HAND,
    # docs/pack.md (tests/pack)
    "evokern export attention-s512 --format torch -o my_attention/": SIMULATED,
    "evokern pack sweep.toml -o my_attention/": HAND,
    "evokern pack shapes.toml -o my_attention/ --variants 8 --budget 8m": HAND,
    "evokern sweep run shapes.toml --budget 10m --no-verify": HAND,
    # docs/searching.md
    "evokern search attention-s512 --budget 10m --device sim:h100 --db simulated.db": Way(
        "simulated", "search attention-s512 --budget 10m --device sim:h100 --db simulated.db --trials 1 --no-verify"
    ),
    "evokern show --trial 42": Way("recorded", "show --trial 4"),
    "evokern show --json": RECORDED,
    "evokern search attention-s512 --warm-start runs.db:attention-s128": Way(
        "recorded", "search attention-s512 --warm-start runs.db:attention-s128 --trials 12 --fresh"
    ),
    "evokern search attention-s512 --warm-start none": Way(
        "recorded", "search attention-s512 --warm-start none --trials 12 --fresh"
    ),
    "evokern search attention-s512 --warm-start sim": Way("gpu", "search attention-s512 --warm-start sim --trials 4"),
    "evokern search attention-s512 --control random --cost-per-hour 3.50": Way(
        "recorded", "search attention-s512 --control random --cost-per-hour 3.50 --trials 12 --fresh"
    ),
    "evokern export attention-s512 --format t4 -o study.json": RECORDED,
    "evokern replay study.json --samplers evo,tpe,nsga2,random --trials 200 --repeats 30": Way(
        "recorded", "replay study.json --samplers evo,tpe,nsga2,random --trials 8 --repeats 1"
    ),
    "evokern replay runs.db:attention-s512 --samplers evo,tpe --plot replay.html": Way(
        "recorded", "replay runs.db:attention-s512 --samplers evo,tpe --plot replay.html --trials 8 --repeats 2"
    ),
    "evokern search attention-s512 --budget 2h --log search.jsonl": Way(
        "recorded", "search attention-s512 --budget 2h --log search.jsonl --trials 12 --fresh"
    ),
    """tail -f search.jsonl | jq -c 'select(.event == "trial" and .outcome == "measured") | .time_us'""": HAND,
    # docs/checking.md
    "evokern sanitize my.cu --entry my_kernel --grid 4,2 --block 128 --arg in:f16[2,128,64] --arg out:f16[2,128,64]"
    " --arg i32=128": SIMULATED,
    "evokern profile --trial 42 --keep best.ncu-rep": Way("gpu", "profile --trial 0 --keep best.ncu-rep"),
    "evokern profile attention-s512 --device sim:l4 --html profile.html": Way(
        "simulated", "profile attention-s512 --device sim:l4 --html profile.html"
    ),
    "evokern export attention-s512 --format trace -o trace.json": RECORDED,
    "evokern ablate": SIMULATED,
    "evokern compare main.db pr.db --markdown comment.md": SIMULATED,
    "evokern compare main.db pr.db --html comparison.html": SIMULATED,
    "evokern selftest gate --device sim:l4": SLOW,
    "pip install optuna-dashboard datasette": HAND,
    "optuna-dashboard sqlite:///evokern.db": HAND,
    "datasette evokern.db": HAND,
    # docs/sweep.md
    "evokern sweep run sweep.toml": RECORDED,
    "evokern sweep run sweep.toml --budget 6h --db runs": RECORDED,
    "evokern sweep show sweep.toml": RECORDED,
    "evokern sweep show sweep.toml --json": RECORDED,
    "evokern show --db sweep": RECORDED,
    "evokern sweep export sweep.toml -o OUT": HAND,
    "evokern sweep report sweep.toml -o sweep.html": RECORDED,
    # docs/several-gpus.md
    "evokern search attention-s512 --device cuda:0,1": HAND,
    "evokern search attention-s512 --device cuda:all": Way(
        "gpu", "search attention-s512 --device cuda:all --trials 4 --no-verify --fresh"
    ),
    "pip install 'evokern[ray]'": HAND,
    "export RAY_AUTH_MODE=token": HAND,
    "ray get-auth-token --generate > /dev/null": HAND,
    "ray start --head --port 6379 --node-ip-address 127.0.0.1 --include-dashboard=false": HAND,
    "evokern search attention-s512 --device sim:l4 --ray-address auto": HAND,
    "evokern search attention-s512 --device cuda --ray-address auto": HAND,
    "evokern search attention-s512 --device cuda --ray-address HOST:6379 --num-gpus 8 --num-cpus 256": HAND,
    "sbatch docs/sweep.slurm sweep.toml --budget 20h": HAND,
    "evokern sweep run sweep.toml --ray-address auto": HAND,
    "ray stop": HAND,
    # docs/getting-started.md
    "evokern init my_kernel.cu": SIMULATED,
    "evokern init my_kernel.cu --entry 'add<float>' --name add": SIMULATED,
    "evokern init my_kernel.cu --force --reference torch:add --example N=4194304": SIMULATED,
    "evokern check scale": Way("simulated", "check scale"),
    "evokern search scale": Way("simulated", "search scale --trials 1 --no-verify"),
    "evokern show scale": SIMULATED,
    "evokern sanitize scale": SIMULATED,
    "evokern verify": Way("simulated", "verify --fuzz 1s"),
    "evokern export scale -o scale.cu": SIMULATED,
    # docs/coming-from-kernel-tuner.md
    "evokern init tune_matmul.py --trust": Way("simulated", "init tune_twice.py --trust"),
    "evokern init convolution.json": Way("simulated", "init twice.json"),
    "evokern check vector_add": SIMULATED,
    "evokern search vector_add": HAND,
    "evokern replay vector_add.json --samplers evo,random --repeats 10": Way(
        "recorded", "replay vector_add.json --samplers evo,random --repeats 1"
    ),
    # docs/evaluating.md
    "evokern render ./kernels/scale --output candidate": SIMULATED,
    "evokern evaluate scale --source candidate.cu": HAND,
    "evokern evaluate scale --source candidates/ --device sim:l4": HAND,
    "evokern evaluate scale --source candidates/ --device cuda:0 --json": HAND,
    "evokern evaluate scale --source candidate.cu --grid 64 --block 128 --smem 0": SIMULATED,
    "evokern init task.py --trust": HAND,
    # CONTRIBUTING.md
    "make setup": HAND,
    "make test-fast": HAND,
    "make test": HAND,
    "python docs/write_cli.py": Way("script", "write_cli"),
    "python docs/draw_packages.py": Way("script", "draw_packages"),
    "python docs/draw_panel.py": Way("script", "draw_panel"),
    # docs/time-model.md
    "python tests/scripts/model_accuracy.py runs.db:attention-s512": HAND,
}
"""Command of a document → how it is run."""

MY_CU = """
#include <cuda_fp16.h>
extern "C" __global__ void my_kernel(const half* x, half* y, int n) {
  int i = (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < 2 * 64 * n; i += 1024) y[i] = x[i];
}
"""
"""A file as people have it, for `sanitize`."""
TWICE_CU = """
__global__ void twice(float* y, const float* x, int n) {
  int i = blockIdx.x * block_size_x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
"""
"""A kernel as Kernel Tuner takes it."""
TUNE_TWICE_PY = """
import numpy
from kernel_tuner import tune_kernel
x = numpy.ones(4096, numpy.float32)
tune_kernel("twice", "twice.cu", 4096, [x, x, numpy.int32(4096)], {"block_size_x": [64, 128]})
"""
"""A tuning script."""
TWICE_T1 = """
{"ConfigurationSpace": {"TuningParameters": [{"Name": "block_size_x", "Type": "int", "Values": "[64, 128]"}]},
 "KernelSpecification": {"Language": "CUDA", "KernelName": "twice", "KernelFile": "twice.cu", "ProblemSize": [4096],
  "LocalSize": {"X": "block_size_x"}, "GlobalSize": {"X": "4096"}, "GridDivX": ["block_size_x"], "Arguments": [
   {"Name": "y", "Type": "float", "MemoryType": "Vector", "Size": 4096},
   {"Name": "x", "Type": "float", "MemoryType": "Vector", "Size": 4096},
   {"Name": "n", "Type": "int32", "MemoryType": "Scalar", "FillValue": 4096}]}}
"""
"""The same as a T1 file."""


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield language and text of each fenced block of a page."""
    language, lines = None, []
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            if language is not None:
                yield language, "\n".join(lines) + "\n"
            language, lines = (line[3:].strip(), []) if language is None else (None, [])
        elif language is not None:
            lines.append(line)


def code(page: Path, language: str) -> list[str]:
    """Return the blocks of a language."""
    return [text for kind, text in blocks(page) if kind == language]


def commands(page: Path) -> list[str]:
    """Return the commands of a page, remarks left out."""
    lines = (re.sub(r"\s+#\s.*$", "", line).strip() for text in code(page, "") for line in text.splitlines())
    return [line for line in lines if line]


def write_example(page: Path, name: str, here: Path, problem: str) -> None:
    """Write a page's kernel and study out, the problem made small."""
    folder = here / "kernels" / name
    folder.mkdir(parents=True)
    (here / "studies").mkdir(exist_ok=True)
    for language, file in (("cuda", "kernel.cu"), ("python", "kernel.py"), ("cpp", "reference.h")):
        (folder / file).write_text(code(page, language)[0])
    study = re.sub(r'problems = \["(N=)?\d+"\]', f'problems = ["{problem}"]', code(page, "toml")[0])
    (here / "studies" / f"{name}.toml").write_text(study)


def evokern(command: str) -> None:
    """Run a command in this process; it must end well."""
    words = shlex.split(command.removeprefix(".venv/bin/").removeprefix("evokern "))
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, f"{command}: {done.stdout}{done.stderr}"


def run_all(where: str) -> None:
    """Run every command of a kind once, in the order of the table."""
    for command in dict.fromkeys(way.short or command for command, way in COMMANDS.items() if way.where == where):
        evokern(command)


@cache
def script(name: str) -> ModuleType:
    """Load a script of docs/."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_table_names_each_command_of_the_documents() -> None:
    """A command of a document that is in no table fails; so does one of the table that no document has."""
    told = {line for page in PAGES if page != GENERATED for line in commands(page)}
    assert (told - COMMANDS.keys(), COMMANDS.keys() - told) == (set(), set())


def test_a_shortened_command_keeps_its_options() -> None:
    """What is run instead is the same command with the same options."""
    for command, way in COMMANDS.items():
        long, short = shlex.split(command), shlex.split(way.short)
        if short and way.where != "script":
            assert long[1] == short[0], command
            assert {word for word in long if word.startswith("-")} <= set(short), command


@pytest.mark.thorough
def test_commands_on_a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search, resume, show, report, T4 and replay as the documents write them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVOKERN_DB", raising=False)
    monkeypatch.setenv("EVOKERN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "studies").mkdir()
    for name in ("attention-s512", "attention-s128"):
        recorded = f'kernel = "recording"\nproblems = ["recorded"]\ndevice = "replay:{TABLE}"\n'
        (tmp_path / "studies" / f"{name}.toml").write_text(recorded)
        evokern(f"search {name} --trials 10 --db runs.db")
    (tmp_path / "sweep.toml").write_text(recorded.replace('["recorded"]', '["one", "two"]') + "trials = 3\n")
    evokern("search attention-s512 --trials 10 --budget 10m")
    evokern("export attention-s512 --db runs.db --format t4 -o vector_add.json")
    run_all("recorded")


@pytest.mark.thorough
def test_commands_on_a_simulated_chip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check, sanitize, profile, verify, ablate, compare and export as the documents write them, on small kernels."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVOKERN_DB", raising=False)
    write_example(DOCS / "getting-started.md", "scale", tmp_path, "4096")
    write_example(DOCS / "coming-from-kernel-tuner.md", "vector_add", tmp_path, "4096")
    for name, text in (
        *(("my.cu", MY_CU), ("my_kernel.cu", code(DOCS / "getting-started.md", "cuda")[1])),
        *(("twice.cu", TWICE_CU), ("tune_twice.py", TUNE_TWICE_PY), ("twice.json", TWICE_T1)),
    ):
        (tmp_path / name).write_text(text)
    shutil.copy(tmp_path / "studies" / "scale.toml", tmp_path / "studies" / "attention-s512.toml")
    evokern("search attention-s512 --trials 3 --device sim:l4 --no-verify")
    for copy in ("main.db", "pr.db"):
        shutil.copy("evokern.db", copy)
    # The documents' own search runs first: later commands take the study searched last.
    (tmp_path / "candidate.cu").write_text(code(DOCS / "evaluating.md", "cuda")[0])
    run_all("simulated")
    judge_candidates(tmp_path, "sim:l4")


def judge_candidates(here: Path, device: str) -> None:
    """Evaluate the folder of `docs/evaluating.md`, of which one source is wrong: the exit code is 1."""
    folder = here / "candidates"
    folder.mkdir()
    for name, text in zip(("one.cu", "two.cu"), code(DOCS / "evaluating.md", "cuda"), strict=True):
        (folder / name).write_text(text)
    arguments = ["evaluate", "scale", "--source", "candidates/", "--device", device, "--json"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    found = {result["source"]: (result["right"], result["check"]) for result in json.loads(done.stdout)["results"]}
    assert (1, {"one.cu": (True, None), "two.cu": (False, "tolerance")}) == (done.exit_code, found)


def test_make_is_told_what_the_readme_says() -> None:
    """Each `make` line is one that make accepts, and starts the command that is meant."""
    for command in [command for command, way in COMMANDS.items() if way.where == "dry"]:
        done = subprocess.run(
            [*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert "evokern search --budget 3m" in done.stdout


def test_make_targets_exist() -> None:
    """Every `make TARGET` that a document names is in the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in set(re.findall(r"`make ([a-z][\w-]*)", page.read_text(encoding="utf-8"))):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"


@pytest.mark.thorough
def test_every_option_exists() -> None:
    """Every option that a document gives a command of evokern's exists, in prose and in examples."""
    told: set[tuple[str, str]] = set()
    for page in PAGES:
        lines = [*commands(page), *re.findall(r"`evokern ([^`]+)`", page.read_text(encoding="utf-8"))]
        told |= {(page.name, line.removeprefix(".venv/bin/").removeprefix("evokern ")) for line in lines}
    known = {command.name for command in app.registered_commands}
    helps: dict[str, str] = {}
    for page_name, line in sorted(told):
        name, *rest = line.split()
        if name == "sweep":
            name, rest = f"{name} {rest[0]}", rest[1:]
        elif name not in known:
            continue
        if name not in helps:
            helps[name] = CliRunner().invoke(app, [*name.split(), "--help"]).output
        text = helps[name]
        for word in rest:
            if word.startswith("-"):
                assert re.search(rf"(^|[\s,/]){re.escape(word)}\b", text, re.MULTILINE), f"{page_name}: {line}: {word}"


def test_each_kernel_of_the_documents_is_short() -> None:
    """A complete kernel takes less than 60 lines of Python."""
    for page in ("getting-started.md", "coming-from-kernel-tuner.md"):
        assert len(code(DOCS / page, "python")[0].splitlines()) < 60


def test_links_lead_somewhere() -> None:
    """Every relative link and picture of a document leads to a file."""
    for page in PAGES:
        for target in re.findall(r"\]\((?!http|#)([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_page_is_found() -> None:
    """Each page of docs/ is linked from the README."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in DOCS.glob("*.md") if f"docs/{page.name}" not in readme] == []


@cache
def _names(path: Path) -> set[str]:
    """Return functions, classes, methods and variables at the top of a module."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_and_names_exist(page: Path) -> None:
    """Every path in backticks exists, and so does the function, class or variable that stands behind it."""
    for path, name in re.findall(TOLD_PATHS, page.read_text(encoding="utf-8")):
        if path.startswith(THEIRS):
            continue
        assert (ROOT / path).exists(), path
        assert not name or name in _names(ROOT / path), f"{path}:{name}"


def test_the_machine_names_its_modules() -> None:
    """Every module in the README of the PTX machine is there."""
    machine = ROOT / "evokern" / "simt"
    for name in re.findall(r"`([\w/]+\.py)`", (machine / "README.md").read_text(encoding="utf-8")):
        if not name.startswith("tests/test_"):
            assert (machine / name).is_file() or (ROOT / name).is_file(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_are_named_exist(page: Path) -> None:
    """Every test in backticks is there."""
    named = set(re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8")))
    assert named - _names_of_tests() == set()


@cache
def _names_of_tests() -> set[str]:
    """Return the names of all functions in the modules of tests, read once."""
    modules = (ROOT / "tests").rglob("test_*.py")
    return {name for path in modules for name in re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8"))}


def _texts() -> Iterator[str]:
    """Yield every text of the package's code; what is put in stands as `…`."""
    for path in (ROOT / "evokern").rglob("*.py"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)  # type: ignore[misc]


@pytest.mark.thorough
def test_messages_are_those_of_the_code() -> None:
    """Every message that troubleshooting quotes is one of evokern's."""
    texts = list(_texts())
    for message in re.findall(r'"([^"]*)"', (DOCS / "troubleshooting.md").read_text(encoding="utf-8")):
        pieces = [piece.strip() for piece in message.split("…") if piece.strip()]
        assert any(all(piece in text for piece in pieces) for text in texts), message


def test_the_commands_page_is_up_to_date() -> None:
    """`docs/cli.md` is what `docs/write_cli.py` writes."""
    assert GENERATED.read_text(encoding="utf-8") == script("write_cli").page()


@pytest.mark.thorough
def test_the_picture_of_the_packages_is_up_to_date() -> None:
    """`docs/packages.svg` shows the current imports; `python docs/draw_packages.py` redraws it."""
    assert (DOCS / "packages.svg").read_text(encoding="utf-8") == script("draw_packages").draw()


def test_the_picture_of_the_panel_is_up_to_date() -> None:
    """`docs/panel.svg` is the panel of the recorded progress."""
    facts = json.loads((DOCS / "panel.json").read_text(encoding="utf-8"))
    assert (DOCS / "panel.svg").read_text(encoding="utf-8") == script("draw_panel").draw(facts)


@pytest.mark.slow
def test_the_same_search_draws_the_same_picture() -> None:
    """`docs/panel.json` is what `python docs/draw_panel.py` finds: a real search, begun again, goes the same way."""
    drawing = script("draw_panel")
    found = drawing.record(f"replay:{drawing.RECORDING}", trials=drawing.TRIALS)
    assert found == json.loads((DOCS / "panel.json").read_text(encoding="utf-8"))


def test_import_order_that_import_each_other_are_no_picture() -> None:
    """A circle is told by name; an arrow that others imply is left out."""
    packages = script("draw_packages")
    with pytest.raises(ValueError, match="packages import each other: a, b"):
        packages.layers_of({"a": {"b"}, "b": {"a"}, "c": set()})
    assert packages.reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_commands_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm start from the simulated chip, counters of a trial, and the exported program built and run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVOKERN_DB", raising=False)
    write_example(DOCS / "getting-started.md", "scale", tmp_path, "65536")
    shutil.copy(tmp_path / "studies" / "scale.toml", tmp_path / "studies" / "attention-s512.toml")
    for command in [way.short for way in COMMANDS.values() if way.where == "gpu" and way.short]:
        if "profile" not in command or shutil.which("ncu"):
            evokern(command)
    judge_candidates(tmp_path, "cuda:0")
    evokern("export attention-s512 -o best.cu")
    if shutil.which("nvcc"):
        subprocess.run(["nvcc", "-arch=native", "best.cu", "-o", "best"], check=True)
        done = subprocess.run(["./best"], capture_output=True, text=True, check=True)
        assert "PASS" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_gate_s_own_test_passes() -> None:
    """`selftest gate` as the documents write it."""
    evokern("selftest gate --device sim:l4")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_four_lines_of_the_readme_work_from_nothing(tmp_path: Path) -> None:
    """Clone, search, show, export, from an empty folder: the clone from here, the search shortened. Needs a network."""
    subprocess.run(["git", "clone", "--quiet", ROOT, tmp_path / "evokern"], check=True)
    for line in ('make search ARGS="--budget 3m --trials 1"', *commands(ROOT / "README.md")[2:4]):
        subprocess.run(shlex.split(line), cwd=tmp_path / "evokern", check=True)
    assert (tmp_path / "evokern" / "best.cu").is_file()
