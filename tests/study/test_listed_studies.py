"""`list` says what is wrong with a study, from what a kernel's declaration says without being run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from paths import KERNELS
from typer.testing import CliRunner

from evokern.analysis.check.declaration import read_declaration
from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.study.discovery import find_kernel

DECLARED = """
from pathlib import Path
from evokern import Kernel, Mutation, Parameter, ProblemField, Tolerance, Workload
Path("ran").touch()
SIZES = (16, 32)
FIELDS = (
    *(ProblemField(name, multiple_of=8, most=1 << 20) for name in "MN"),
    ProblemField("causal", (0, 1), 0, doc="hide " + "keys"),
)
GENES = (Mutation("LOADS", ("scalar", "vector4")), Parameter("BLOCK_M", SIZES), Parameter("STEPS", range(10, 40, 10)))
kernel = Kernel(
    "mine", genes=(*GENES, Parameter("WARPS", [2**n for n in range(4)])), fields=FIELDS, launches=lambda c, p: (),
    workload=Workload(lambda p, c: {}, lambda p, t: {}, {"y": Tolerance(0, 0)}, lambda p: 1.0, lambda p: 1.0),
)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a kernel `mine` that tells when it is run."""
    (tmp_path / "kernels" / "mine").mkdir(parents=True)
    (tmp_path / "kernels" / "mine" / "kernel.py").write_text(DECLARED)
    (tmp_path / "studies").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(
    here: Path, genes: str, kernel: str = "mine", device: str = "auto", problem: str = "8,8", rest: str = ""
) -> str | None:
    """Return what `list` says is wrong with a study, None where nothing is."""
    text = f'kernel = "{kernel}"\nproblems = ["{problem}"]\ndevice = "{device}"\n{rest}\n[genes]\n{genes}\n'
    (here / "studies" / "asked.toml").write_text(text)
    result = CliRunner().invoke(app, ["list", "--json"])
    assert 0 == result.exit_code
    assert not (here / "ran").exists()
    studies = {study["name"]: study for study in json.loads(result.stdout)["studies"]}
    error: str | None = studies["asked"].get("error")
    return error


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("genes", "wrong"),
    [
        ("BLCK_M = [16]", "asked.toml: [genes]: there is no gene 'BLCK_M': did you mean 'BLOCK_M'?"),
        ("BLOCK_M = [16, 24]", "asked.toml: [genes]: gene BLOCK_M cannot be '24': did you mean '16'? known: 16, 32"),
        ("LOADS = ['vector8']", "gene LOADS cannot be 'vector8': "),
        ("STEPS = [11]", "gene STEPS cannot be '11': "),
        ("BLOCK_M = [16, 16]", "gene BLOCK_M lists a value twice"),
    ],
)
def test_a_gene_that_the_kernel_does_not_have_is_named(here: Path, genes: str, wrong: str) -> None:
    """A wrong gene or value is told in one line, with what there is, and the kernel's code does not run."""
    error = said(here, genes)
    assert error is not None
    assert wrong in error
    assert "\n" not in error


WRONG = [
    ({"genes": "BLCK_M = [16]"}, "asked.toml: [genes]: there is no gene 'BLCK_M'"),
    ({"problem": "8,8,9"}, "asked.toml: problems: causal=9 is not supported; choose from 0, 1"),
    ({"problem": "8"}, "asked.toml: problems: mine: the problem has no value for N; fields: M, N, causal"),
    ({"problem": "8,12"}, "asked.toml: problems: N=12 is not supported; use a multiple of 8 up to 1048576"),
    ({"rest": 'dtype = "f16"'}, "asked.toml: problems: dtype = 'f16', but kernel mine has no such field"),
    ({"rest": '[limits]\nchip = "l5"'}, "asked.toml: [limits]: there is no chip 'l5': did you mean 'l4'?"),
    ({"rest": "[limits]\nregisters = 9"}, "asked.toml: [limits]: there is no limit 'registers': did you mean"),
    ({"rest": "[limits]\nblocks_per_sm = 99"}, "limit blocks_per_sm = 99 is out of range; use 1 to 24"),
    ({"device": "sim:l5"}, "there is no chip 'l5': did you mean 'l4'?"),
    ({"device": "gpu"}, "there is no device 'gpu'"),
    ({"rest": 'sampler = "evoo"'}, "asked.toml: sampler: there is no sampler 'evoo': did you mean 'evo'?"),
    ({"rest": '[sampler]\nname = "tpe"\ngama = 3'}, "sampler tpe has no option 'gama': did you mean 'gamma'?"),
    ({"rest": '[sampler]\nname = "evo"\nelites = 3'}, "sampler evo has no option 'elites'"),
]  # fmt: skip
"""What is wrong with a study, and how it is told."""


@pytest.mark.thorough
@pytest.mark.parametrize(("wrong", "told"), WRONG)
def test_a_search_says_what_the_list_says(here: Path, wrong: dict[str, str], told: str) -> None:
    """What is wrong with a study is listed, without running anything, in the words in which a search refuses it."""
    listed = said(here, **{"genes": "", "device": "sim:l4", **wrong})
    assert listed is not None
    assert told in listed
    assert "\n" not in listed
    (here / "kernels" / "mine" / "kernel.cu").touch()
    refused = CliRunner().invoke(app, ["search", "asked"])
    assert refused.exit_code == 2
    assert told.removeprefix("asked.toml: ") in refused.stderr
    assert not (here / "evokern.db").exists()


def test_people_read_it_in_place_of_the_problems(here: Path) -> None:
    """The line of the study has the reason; the other studies are listed as they are."""
    said(here, "BLCK_M = [16]")
    lines = CliRunner().invoke(app, ["list"]).stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("  asked ")]
    assert "there is no gene 'BLCK_M'" in line
    assert f"  {'rmsnorm-8192':<24}rmsnorm at ROWS=8192 COLS=8192" in lines


def test_a_kernel_that_is_not_there_is_named(here: Path) -> None:
    """A study of no kernel cannot be searched, unless it is about a recording."""
    assert "there is no kernel 'mien': did you mean 'mine'?" in (said(here, "", "mien") or "")
    assert said(here, "", "mien", "replay:file.json") is None


@pytest.mark.thorough
@pytest.mark.parametrize(
    "genes", ["", "LOADS = 'scalar'", "loads = ['VECTOR4']", "BLOCK_M = [32]", "STEPS = [10, 30]", "WARPS = [3]"]
)
def test_what_can_be_searched_or_not_be_told_is_listed_as_it_is(here: Path, genes: str) -> None:
    """Right genes and values are fine, and so is a value of a gene whose values are computed."""
    assert said(here, genes) is None


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("*GENES, ", "*more(GENES), "),
        ("kernel = ", "GENES += (Parameter('BLCK_M', (16,)),)\nkernel = "),
        ("GENES = (", "from elsewhere import GENES\nOTHERS = ("),
        ("genes=", "**made, ge="),
        ("kernel = ", "kernel = = "),
    ],
)
def test_of_genes_that_are_computed_nothing_is_said(here: Path, old: str, new: str) -> None:
    """Where the declaration cannot be read without running it, a study is not called wrong."""
    path = here / "kernels" / "mine" / "kernel.py"
    assert old in DECLARED
    path.write_text(DECLARED.replace(old, new))
    assert said(here, "BLCK_M = [16]") is None


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fields=FIELDS", "fields=fields_of(FIELDS)"),
        ("fields=FIELDS", "**more"),
        ('for name in "MN"', "for name in names()"),
        ("multiple_of=8", "multiple_of=size()"),
        ("most=1 << 20", "most=1 << 65"),
        ("most=1 << 20", "**limits"),
    ],
)
def test_of_fields_that_are_computed_nothing_is_said(here: Path, old: str, new: str) -> None:
    """Where the fields cannot be read without running the file, no problem is called wrong; genes still are."""
    path = here / "kernels" / "mine" / "kernel.py"
    assert old in DECLARED
    path.write_text(DECLARED.replace(old, new))
    assert said(here, "", problem="1,2,3,4") is None
    assert "there is no gene" in (said(here, "BLCK_M = [16]") or "")


@pytest.mark.parametrize("name", ["attention", "attention_fp8", "matmul", "rmsnorm"])
def test_shipped_kernels_are_read_as_they_run(name: str) -> None:
    """Names and values read from a shipped kernel's text are those that it declares when it runs."""
    folder = KERNELS / name
    declared = read_declaration(folder / "kernel.py").genes
    assert declared is not None
    assert declared.computed == frozenset()
    kernel = find_kernel(str(folder))
    assert [(gene.name, gene.values) for gene in kernel.genes] == [(g.name, g.values) for g in declared.space.genes]
    fields = read_declaration(folder / "kernel.py").fields
    assert fields is not None
    assert [replace(field, doc="") for field in kernel.fields] == list(fields)
