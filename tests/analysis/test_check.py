"""`check`: each way in which a kernel folder can be unsound is found and named."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from paths import KERNELS, ROOT
from typer.testing import CliRunner

from evokern.analysis.check.folder import Folder, known_problems
from evokern.analysis.check.simulated_run import check_small_problems
from evokern.analysis.check.soundness import _cpp_reference, _workload
from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.cuda_source import read
from evokern.declaration.kernel import Kernel, Launch, ProblemField, Tensor, Tolerance, Workload
from evokern.doctor import host_compiler
from evokern.study.discovery import load_kernel

RIGHT = 'reference=lambda p, t: {"y": 2 * t["x"]}'
GUIDE = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The documents' kernel, which is sound."""
    made = tmp_path / "kernels" / "scale"
    made.mkdir(parents=True)
    for name, language in (("kernel.cu", "cuda"), ("kernel.py", "python"), ("reference.h", "cpp")):
        blocks = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
        (made / name).write_text(blocks[0])
    monkeypatch.chdir(tmp_path)
    return made


def _failures(*arguments: str) -> tuple[int, dict[str, str]]:
    result = CliRunner().invoke(app, ["check", *arguments, "--json"])
    findings = json.loads(result.stdout)["checks"]
    return result.exit_code, {finding["check"]: finding["detail"] for finding in findings if finding["ok"] is False}


def _change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.thorough
@pytest.mark.skipif(host_compiler() is None, reason="needs a C++ compiler")
def test_every_word_of_a_field_is_looked_at(tmp_path: Path) -> None:
    """A reference.h that is wrong at a layout which no small problem names is found, before any study asks for it."""
    for name in ("matmul", "common"):
        shutil.copytree(KERNELS / name, tmp_path / name)
    _change(tmp_path / "matmul" / "reference.h", "down = layout == 0 ? N : 1,", "down = 1,")
    kernel = load_kernel(tmp_path / "matmul")
    folder = Folder(kernel, known_problems(kernel), read(kernel.source_path))
    assert [problem.key for problem in folder.choice_variants] == [
        "144,160,96,dtype=bf16,layout=nt",
        "144,160,96,dtype=f16",
    ]
    ((holds, detail),) = _cpp_reference(folder)
    assert holds is False and "reference.h differs from the Python reference" in detail


def test_an_output_of_another_word_has_a_tolerance(tmp_path: Path) -> None:
    """What a word of a problem's field brings along is held to the same: a tolerance for it, and none too many."""
    shutil.copytree(KERNELS / "rmsnorm", tmp_path / "rmsnorm")
    path = tmp_path / "rmsnorm" / "kernel.py"
    text = path.read_text(encoding="utf-8")
    for old, new, told in (
        ("", "", None),
        ('tolerance={"sum": Tolerance(F16', 'tolerance={"total": Tolerance(F16', ["total", "y"]),
    ):
        path.write_text(text.replace(old, new), encoding="utf-8")
        kernel = load_kernel(tmp_path / "rmsnorm")
        ((holds, detail),) = _workload(Folder(kernel, known_problems(kernel), ""))
        assert holds is (told is None)
        assert told is None or (f"tolerance names {told}" in detail and "['sum', 'y']" in detail)


@pytest.mark.thorough
@pytest.mark.parametrize(
    # One in every run of the tests; the test of the wheel has `evokern check` look at matmul.
    "name",
    ["attention", *(pytest.param(one, marks=pytest.mark.slow) for one in ("attention_fp8", "matmul", "rmsnorm"))],
)
def test_shipped_kernels_are_sound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` finds nothing wrong with the kernels that come with evokern."""
    monkeypatch.chdir(ROOT)
    assert _failures(name) == (0, {})


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("file", "old", "new", "check", "message"),
    [
        ("kernel.py", 'Launch("scale"', 'Launch("scael"', "entry points", "scale"),
        ("kernel.py", '"y", i32(p.N))', '"y")', "entry points", "takes 3 arguments"),
        ("kernel.py", 'args=("x", "y"', 'args=("x", "z"', "entry points", "argument 'z' is not a tensor"),
        ("kernel.py", "i32(p.N))", '"x")', "entry points", "int n needs a Scalar"),
        ("kernel.py", '"y", i32(p.N))', '"y")', "entry points", "launch passes 2: x, y"),
        ("kernel.py", '("x", "y", i32', '("y", "x", i32', "entry points", "x is const but receives the output 'y'"),
        ("kernel.py", "-(-p.N // (width(c) * c.THREADS))", "p.N / 4", "constraints", "whole numbers, not 256.0"),
        ("kernel.py", "block=c.THREADS", "block=c.THREADS - 128", "constraints", "block is empty: -64 along x, for"),
        ("kernel.py", "i32(p.N)", "i32", "constraints", "argument 3 of scale is the function i32 itself; call it"),
        ("kernel.py", "i32(p.N)", "0.5", "constraints", "argument 3 of scale is the plain number 0.5; add its type"),
        ("kernel.py", "divides(width(c), p.N)", "None", "constraints", "whole_vectors returned None"),
        ("kernel.py", 'tolerance={"y"', 'tolerance={"z"', "workload", "['z'], but the outputs are ['y']"),
        ("kernel.py", 'Parameter("THREADS"', 'Parameter("IDLE", (1, 2)), Parameter("THREADS"', "macros", "uses IDLE"),
        ("kernel.cu", '#include "evokern_genes.h"', '#ifndef LOADS\n#error "LOADS"\n#endif', "macros",
         "kernel.cu has no #error for an undefined THREADS"),
        ("kernel.py", "divides(width(c), p.N)", "p.N / 0", "constraints", "whole_vectors raised ZeroDivision"),
        ("kernel.cu", "y[i] = 2 * x[i];", "y[i] = 2 * x[j];", "compiler", 'identifier "j" is undefined'),
        ("kernel.py", RIGHT, 'reference=lambda p, t: {"y": 2 * t["x"][:5]}', "reference", "has shape"),
        ("kernel.py", RIGHT, 'reference=lambda p, t: {"y": t["x"].float()}', "reference", "float32"),
        ("kernel.py", RIGHT, 'reference=lambda p, t: {"y": t["x"] / 0}', "reference", "NaN or infinity"),
        ("kernel.py", RIGHT, 'reference=lambda p, t: {"z": t["x"]}', "reference", "returned ['z']"),
        ("kernel.py", RIGHT, 'reference=lambda p, t: 1 / 0', "reference", "ZeroDivisionError"),
        ("kernel.py", '("1024", "1001")', '("1024,3",)', "problems", "more values than fields"),
        ("kernel.py", '("1024", "1001")', "()", "problems", "no problem is known"),
    ],
)  # fmt: skip
def test_each_defect_is_found(folder: Path, file: str, old: str, new: str, check: str, message: str) -> None:
    """A defect makes the check meant for it fail, with a message that names it, and the exit code 1."""
    _change(folder / file, old, new)
    code, failures = _failures("scale")
    assert code == 1
    assert message in failures[check]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("old", "new", "check", "message", "others"),
    [
        ("divides(width(c), p.N)", "p.N / 0", "constraints", "whole_vectors raised ZeroDivision", 6),
        ("divides(width(c), p.N)", "c.LODAS", "constraints", "there is no gene 'LODAS': did you mean 'LOADS'?", 6),
        ("blocks = -(-p.N", "blocks = -(-p.M", "constraints", "the problem has no field 'M'", 6),
        ("lambda c, p: [VectorAccess(", "lambda c, p: 1 / 0 or [VectorAccess(", "constraints", "ZeroDivisionError", 6),
        ('lambda p, c: {"x"', 'lambda p, c: 1 / 0 or {"x"', "workload", "tensors raised ZeroDivisionError", 9),
    ],
)  # fmt: skip
def test_a_function_that_raises_is_told_once(
    folder: Path, old: str, new: str, check: str, message: str, others: int
) -> None:
    """The first check that it stops tells what and where; each other one that it stops points there, as not tried."""
    _change(folder / "kernel.py", old, new)
    result = CliRunner().invoke(app, ["check", "scale", "--json"])
    assert 1 == result.exit_code
    findings = json.loads(result.stdout)["checks"]
    ((name, detail),) = [(finding["check"], finding["detail"]) for finding in findings if finding["ok"] is False]
    assert check == name
    assert message in detail
    lines = (folder / "kernel.py").read_text().splitlines()
    (number,) = re.findall(r"kernel\.py:(\d+)", detail)
    assert new in lines[int(number) - 1]
    pointing = [f for f in findings if f["detail"].endswith(f"reported under '{check}'")]
    assert others * [None] == [finding["ok"] for finding in pointing]


def test_two_functions_that_raise_are_both_told(folder: Path) -> None:
    """Another line that raises is another defect, whatever its error says."""
    _change(folder / "kernel.py", "divides(width(c), p.N)", "p.N / 0")
    _change(folder / "kernel.py", RIGHT, "reference=lambda p, t: p.N / 0")
    _, failures = _failures("scale")
    assert {"constraints", "reference"} == set(failures)


def test_a_defect_of_evokern_is_not_the_kernels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What raises without a line of the kernel is no finding about it: exit code 3."""
    monkeypatch.setenv("XDG_STATE_HOME", str(folder.parent))

    def broken(kernel: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("evokern.analysis.check.source_checks.read_source", broken)
    assert 3 == CliRunner().invoke(app, ["check", "scale", "--json"]).exit_code


@pytest.mark.thorough
def test_directives_may_stand_behind_blanks(folder: Path) -> None:
    """`  #error` is an #error: a folder whose preprocessor lines are indented is as sound as before."""
    source = folder / "kernel.cu"
    source.write_text(re.sub(r"^#", "  #", source.read_text(), flags=re.MULTILINE))
    assert _failures("scale") == (0, {})


@pytest.mark.thorough
def test_what_is_alike_on_every_target_is_one_line(folder: Path) -> None:
    """A compile that fails for the same reason everywhere is one failure, and so is an infeasible default candidate."""
    _change(folder / "kernel.cu", "y[i] = 2 * x[i];", "y[i] = 2 * x[j];")
    assert _failures("scale")[1]["compiler"].startswith("sm_80, sm_89, sm_90: ")
    _change(folder / "kernel.py", "block=c.THREADS", "block=8 * c.THREADS")
    said = CliRunner().invoke(app, ["check", "scale"]).stdout
    assert 1 == said.count("block_extent: needs 2048")
    assert "N=1024 and N=1001: feasible on no chip" in said
    assert "sm_80, sm_89, sm_90: skipped" in said


def test_a_static_assert_without_its_constraint_is_found(folder: Path) -> None:
    """A static_assert that names itself needs the constraint of that name."""
    _change(
        folder / "kernel.cu", 'extern "C"', 'static_assert(THREADS > 1, "enough_threads: one is too few");\nextern "C"'
    )
    assert "static_assert enough_threads has no constraint" in _failures("scale")[1]["static asserts"]


def test_an_infeasible_default_is_found(folder: Path) -> None:
    """A default candidate that no chip can run is named with the constraint."""
    _change(folder / "kernel.py", "block=c.THREADS", "block=8 * c.THREADS")
    assert "block_extent: needs 2048" in _failures("scale")[1]["default candidate"]


def test_a_starting_point_that_runs_nowhere_is_found(folder: Path) -> None:
    """What a kernel would have tried first is tried by `check`, with the constraint that turns it away."""
    _change(folder / "kernel.py", 'name="scale",', 'name="scale", starting_points=({"THREADS": 512},),')
    said = CliRunner().invoke(app, ["check", "scale"]).stdout
    assert "starting points    1 starting point: THREADS=512 on l4, rtx4090, a100, h100, h200" in said
    _change(folder / "kernel.py", "block=c.THREADS", "block=c.THREADS if c.THREADS == 128 else 2048")
    said = _failures("scale")[1]["starting points"]
    assert said.startswith(
        "number 1 (THREADS=512) is not feasible on any chip, for example on l4 at N=1024: block_extent: needs"
    )


@pytest.mark.thorough
@pytest.mark.skipif(host_compiler() is None, reason="no C++ compiler on PATH")
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2 * x[i]", "3 * x[i]", "differs from the Python reference"),
        ("2 * x[i]", "i == 7 ? 0.0 / 0.0 : 2 * x[i]", "differs from the Python reference"),
        ("i < N", "i < N - 1", "differs from the Python reference"),
        ("int N, const", "const", "reference.h does not compile"),
        ("y[i] =", "*(double*)0 =", "reference.h crashed"),
    ],
)
def test_a_reference_h_that_disagrees_is_found(folder: Path, old: str, new: str, message: str) -> None:
    """A `reference.h` that computes something else, leaves out an element, or does not build fails the check."""
    _change(folder / "reference.h", old, new)
    assert message in _failures("scale")[1]["reference.h"]


def test_a_missing_reference_h_is_found(folder: Path) -> None:
    """The exported program needs the file, so its absence is a failure."""
    (folder / "reference.h").unlink()
    assert "has no reference.h" in _failures("scale")[1]["reference.h"]


def test_a_small_space_is_counted_whole(folder: Path) -> None:
    """The candidates asked of the constraints are counted once each, all of them where there are few."""
    from evokern.study.discovery import load_kernel

    said = CliRunner().invoke(app, ["check", "scale"]).stdout
    distinct = len(list(load_kernel(folder).space.grid()))
    assert distinct < 50
    assert f"of {distinct} sampled candidates: " in said


def _warnings(*arguments: str) -> tuple[int, dict[str, str]]:
    result = CliRunner().invoke(app, ["check", *arguments, "--json"])
    findings = json.loads(result.stdout)["checks"]
    return result.exit_code, {finding["check"]: finding["detail"] for finding in findings if finding["warning"]}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("kernel.py", "-(-p.N // (width(c) * c.THREADS))", "-(-p.N // (width(c) * c.THREADS)) // 2", "never written"),
        ("kernel.cu", "y[i] = 2 * x[i];", "y[i] = 2 * x[i & ~1];", "suspect the declaration before the kernel"),
        ("kernel.cu", "i < n", "true", "out of bounds"),
    ],
)
def test_the_default_candidate_is_run(folder: Path, file: str, old: str, new: str, message: str) -> None:
    """Half a grid, a wrong index and a missing bound check are found by a run on the smallest problem."""
    _change(folder / file, old, new)
    code, failures = _failures("scale")
    assert (code, set(failures)) == (1, {"simulated run"})
    assert failures["simulated run"].startswith("the default candidate at N=1001 on sim:l4 ")
    assert message in failures["simulated run"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        (RIGHT, 'reference=lambda p, t: {"y": t["x"][:9]}', "reference"),
        ("i32(p.N)))]", "i32(p.N), i32(1)))]", "entry points"),
    ],
)
def test_later_checks_name_the_first_failure(folder: Path, old: str, new: str, cause: str) -> None:
    """A wrong reference or launch fails once; the simulated runs are skipped and name that check."""
    _change(folder / "kernel.py", old, new)
    code, failures = _failures("scale")
    assert (code, set(failures)) == (1, {cause})
    findings = json.loads(CliRunner().invoke(app, ["check", "scale", "--json"]).stdout)["checks"]
    skipped = {one["check"]: one["detail"] for one in findings if one["ok"] is None}
    for name in ("simulated run", "own problem"):
        assert f"under '{cause}'" in skipped[name]


@pytest.mark.thorough
def test_a_launch_that_contradicts_its_kernel_is_found(folder: Path) -> None:
    """Clusters of four blocks where the kernel demands two: no machine takes such a launch."""
    _change(folder / "kernel.cu", "__launch_bounds__(THREADS) scale", "__cluster_dims__(2, 1, 1) scale")
    text = (folder / "kernel.py").read_text(encoding="utf-8")
    changed = text.replace("-(-p.N // (width(c) * c.THREADS))", "4 * -(-p.N // (4 * width(c) * c.THREADS))")
    changed = changed.replace("i32(p.N)))]", "i32(p.N)), cluster=(4, 1, 1))]")
    assert changed.count("cluster=(4, 1, 1)") == 1 and "4 * -(-p.N" in changed
    (folder / "kernel.py").write_text(changed, encoding="utf-8")
    code, failures = _failures("scale")
    assert code == 1
    for part in ("requires clusters of (2, 1, 1)", "__cluster_dims__", "(4, 1, 1)"):
        assert part in failures["simulated run"]
    (folder / "kernel.py").write_text(changed.replace("cluster=(4, 1, 1)", "cluster=(3, 1, 1)"), encoding="utf-8")
    assert "the cluster must divide the grid" in _failures("scale")[1]["default candidate"]
    (folder / "kernel.py").write_text(text, encoding="utf-8")
    assert "Launch(cluster=…)" in _failures("scale")[1]["compiler"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("given", "message", "checks"),
    [
        (
            '("256", "200")',
            "every small problem needs only one block of the default candidate (N=256; N=200)",
            {"small problems"},
        ),
        ('("1024", "2048")', "no small problem has a tail in N (N=1024; N=2048)", {"small problems", "loops"}),
        ('("1024", "1001")', "", set()),
    ],
)
def test_small_problems_that_hide_defects_are_a_warning(
    folder: Path, given: str, message: str, checks: set[str]
) -> None:
    """Small problems of one block, or all without tails, are named; a warning leaves the exit code at 0."""
    _change(folder / "kernel.py", '("1024", "1001")', given)
    code, warned = _warnings("scale")
    assert (code, set(warned)) == (0, checks)
    assert message in warned.get("small problems", "")


def test_square_small_problems_are_a_warning() -> None:
    """Where every extent is always the same, axes that are mixed up do not show; fields with choices are no extents."""
    fields = (ProblemField("M"), ProblemField("N"), ProblemField("D", (64,)), ProblemField("causal", (0, 1), 0))
    workload = Workload(
        tensors=lambda p, c: {"x": Tensor("f32", (p.M, p.N)), "y": Tensor("f32", (p.M, p.N), "output")},
        reference=lambda p, t: {"y": t["x"]},
        tolerance={"y": Tolerance(0, 0)},
        flops=lambda p: 0,
        bytes=lambda p: 8 * p.M * p.N,
        small_problems=("70,70,64", "90,90,64,1"),
    )
    kernel = Kernel(
        "copy",
        (),
        fields,
        lambda c, p: [Launch("copy", (-(-p.M // 16), -(-p.N // 16)), (16, 16), ("x", "y"))],
        workload,
    )
    problems = tuple(map(kernel.problem, workload.small_problems))
    told = list(check_small_problems(Folder(kernel, problems, None)))  # type: ignore[arg-type]
    assert [ok for ok, _ in told] == ["warning"]
    assert "every small problem is square, M = N (M=70 N=70 D=64; M=90 N=90 D=64 causal=1)" in told[0][1]
    other = replace(kernel, workload=replace(workload, small_problems=("70,90,64",)))
    (one,) = check_small_problems(Folder(other, (other.problem("70,90,64"),), None))  # type: ignore[arg-type]
    assert one[0] is True


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("old", "new", "level", "message"),
    [
        (
            "rtol=1e-6",
            "rtol=1e-6",
            "ok",
            "rtol=1e-06): 0 in float32; a bound holds at every shape: remove 'y' from `tolerance`",
        ),
        ('"y": 2 * t["x"]}', '"y": t["x"] / 3 * 6}', "warning", "288 (denormal inputs) in float32; correct"),
        ("rtol=1e-6", "rtol=0.5", "warning", "wrong results may pass; remove 'y' from `tolerance`, so that"),
    ],
)
def test_the_tolerance_is_held_against_rounding(folder: Path, old: str, new: str, level: str, message: str) -> None:
    """What rounding reaches in float32 is told with a tolerance that has room for it; one far above it is a warning."""
    _change(folder / "kernel.py", old, new)
    told = CliRunner().invoke(app, ["check", "scale"]).stdout
    (line,) = [line for line in told.splitlines() if line.split()[1:2] == ["tolerance"]]
    assert line.startswith(level)
    assert message in line


@pytest.mark.thorough
def test_a_tolerance_below_rounding_is_a_warning(folder: Path) -> None:
    """Where rounding alone passes the tolerance, right candidates would be wrong; the derived bound lets them pass."""
    _change(folder / "kernel.py", RIGHT, 'reference=lambda p, t: {"y": (t["x"] / 3).sum() - 0 * t["x"]}')
    _change(folder / "kernel.py", "rtol=1e-6", "rtol=1e-9")
    _, warned = _warnings("scale")
    assert "correct candidates would fail" in warned["tolerance"]
    assert "remove 'y' from `tolerance`, so that its bound is derived from the reference" in warned["tolerance"]
    _change(folder / "kernel.py", 'tolerance={"y": Tolerance(atol=0, rtol=1e-9)},', "")
    assert "tolerance" not in _warnings("scale")[1]


@pytest.mark.thorough
def test_a_bound_is_proposed_if_none_can_be_derived(folder: Path) -> None:
    """The proposal is a ready-made bound that grows with the problem, and `check` accepts it."""
    _change(folder / "kernel.py", RIGHT, 'reference=lambda p, t: {"y": torch.fft.ifft(torch.fft.fft(2 * t["x"])).real}')
    _change(folder / "kernel.py", "from evokern import", "import torch\n\nfrom evokern import")
    _change(folder / "kernel.py", "rtol=1e-6", "rtol=1e-9")
    _, warned = _warnings("scale")
    proposed = re.search(r"declare error=\{'y': (.*)\} instead \(no bound on the error of torch's", warned["tolerance"])
    assert proposed is not None, warned
    assert proposed[1] == "lambda p, t: 2**-22 * p.N * t['x'].abs().max()"
    _change(folder / "kernel.py", 'tolerance={"y": Tolerance(atol=0, rtol=1e-9)},', f'error={{"y": {proposed[1]}}},')
    assert "tolerance" not in {**_warnings("scale")[1], **_failures("scale")[1]}


def test_a_reference_that_computes_in_double_alone_tells_the_rounding_of_its_results(folder: Path) -> None:
    """A reference that turns everything into float64 itself still says what rounding its results reaches."""
    _change(folder / "kernel.py", RIGHT, 'reference=lambda p, t: {"y": t["x"].double() / 3}')
    _change(folder / "kernel.cu", "y[i] = 2 * x[i];", "y[i] = x[i] / 3;")
    told = CliRunner().invoke(app, ["check", "scale"]).stdout
    (line,) = [line for line in told.splitlines() if line.split()[1:2] == ["tolerance"]]
    assert "288 (denormal inputs) in float32" in line
    assert "correct candidates would fail; remove 'y' from `tolerance`" in line


@pytest.mark.thorough
def test_work_that_contradicts_the_tensors_is_a_warning(folder: Path) -> None:
    """Bytes in units of their own are named by `check`, and do not fail it."""
    _change(folder / "kernel.py", "bytes=lambda p: 8 * p.N", "bytes=lambda p: 8e-9 * p.N")
    code, warned = _warnings("scale")
    assert (code, set(warned)) == (0, {"workload"})
    assert "too low by a factor of 1e+09" in warned["workload"]


@pytest.mark.skipif(host_compiler() is None, reason="no C++ compiler on PATH")
def test_a_folder_name_is_not_compiled(tmp_path: Path) -> None:
    """The program that runs reference.h names neither folder nor buffer: quotes and line ends in them mean nothing."""
    from evokern.analysis.check.reference_check import compare_with_cpp, python_reference, workload_tensors
    from evokern.study.discovery import load_kernel

    odd = tmp_path / 'scale"\n#error "a folder\'s name'
    odd.mkdir()
    for name, language in (("kernel.cu", "cuda"), ("kernel.py", "python"), ("reference.h", "cpp")):
        text = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)[0]
        (odd / name).write_text(text)
    kernel = load_kernel(odd)
    problem = kernel.problem("1000")
    expected = python_reference(kernel, problem, workload_tensors(kernel, problem))
    assert compare_with_cpp(kernel, {problem: expected}, str(host_compiler())) < 1e-9


def test_a_gene_with_one_value_may_act_through_the_launch(folder: Path) -> None:
    """A template parameter or a share of the grid that has a single choice is used all the same."""
    _change(folder / "kernel.py", 'Parameter("THREADS"', 'Parameter("WAVES", (1,)), Parameter("THREADS"')
    _change(folder / "kernel.py", "-(-p.N // (width(c) * c.THREADS))", "c.WAVES * -(-p.N // (width(c) * c.THREADS))")
    assert "macros" not in _failures("scale")[1]


CONSTRAINT = 'Constraint("whole_vectors", lambda c, p: divides(width(c), p.N), "a tail would be left over"),'


def test_a_slow_constraint_is_named_and_ends_the_check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No later check calls the constraint again."""
    monkeypatch.setattr("evokern.analysis.check.declaration.MOST_S", 0.05)
    slow = 'Constraint("sleeps", lambda c, p: __import__("time").sleep(0.1) or True, "it sleeps"),'
    _change(folder / "kernel.py", CONSTRAINT, f"{CONSTRAINT}\n        {slow}")
    code, found = _failures("scale")
    assert (1, ["constraints"]) == (code, list(found))
    assert found["constraints"].startswith("constraint sleeps took 0.1 s for one candidate")


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        (CONSTRAINT, f'{CONSTRAINT}\n        Constraint("dice", lambda c, p: random() < 0.5, "it is random"),',
         "constraint dice returned needed"),
        ("launches=launches,", 'launches=launches, macros=lambda c, p: {"DICE": int(1e9 * random())},',
         "macros returned {"),
        ('{"x": Tensor("f32", (p.N,))', '{"x": Tensor("f32", (p.N,), scale=1 + random())', "tensors returned {"),
    ],
)  # fmt: skip
def test_a_function_that_varies_is_named(folder: Path, old: str, new: str, name: str) -> None:
    """A constraint, macros or tensors that depend on random numbers are an error."""
    _change(folder / "kernel.py", "def width(c)", "from random import random\n\n\ndef width(c)")
    _change(folder / "kernel.py", old, new)
    _, found = _failures("scale")
    assert any(text.startswith(name) and "for the same candidate" in text for text in found.values()), found


def test_a_small_problem_that_is_large_is_named(folder: Path) -> None:
    """Its reference does not run; the checks of the other small problems do."""
    _change(folder / "kernel.py", 'small_problems=("1024", "1001")', 'small_problems=("2147483644", "1001")')
    code, found = _failures("scale")
    assert (1, ["problems"]) == (code, list(found))
    assert found["problems"].startswith("the small problem N=2147483644 needs 16 GiB")


def test_a_macro_of_many_characters_is_named(folder: Path) -> None:
    """The compiler does not get it."""
    _change(folder / "kernel.py", "launches=launches,", 'launches=launches, macros=lambda c, p: {"BIG": "1," * 40000},')
    code, found = _failures("scale")
    assert 1 == code
    assert "the value of macro BIG has 80,000 characters; use at most 65,536" in found["constraints"]


@pytest.mark.parametrize(
    ("old", "new", "check", "told"),
    [
        ('tolerance={"y"', 'tolerance={"yy"', "workload", "tolerance names ['yy'], but the outputs are ['y']"),
        ('{"y": 2 * t["x"]}', '{"yy": 2 * t["x"]}', "reference", "reference returned ['yy']"),
        ('"output")', '"outputs")', "workload", "unknown role 'outputs' of a tensor: did you mean 'output'?"),
    ],
)
def test_a_misspelt_output_is_no_bug_of_evokern(folder: Path, old: str, new: str, check: str, told: str) -> None:
    """One check reports it; those that need the outputs are skipped."""
    _change(folder / "kernel.py", old, new)
    code, failures = _failures("scale")
    assert code == 1
    assert [check] == list(failures) and told in failures[check]


def test_no_tolerance_is_read_off_one_run(folder: Path) -> None:
    """The advice of `check` contains no number that was measured."""
    _change(folder / "kernel.py", '{"y": 2 * t["x"]}', '{"y": t["x"] / 3 * 6}')
    (line,) = [one for one in CliRunner().invoke(app, ["check", "scale"]).stdout.splitlines() if " tolerance " in one]
    assert line.count("Tolerance(") == 1 and "relative to Tolerance(" in line


def test_a_table_of_pointers_is_not_a_tensor(folder: Path) -> None:
    """A parameter that points to pointers is named before a run calls the kernel misaligned."""
    _change(folder / "kernel.cu", "const float* x", "const float* const* x")
    _, failures = _failures("scale")
    assert "points to pointers, but a tensor contains numbers" in failures["entry points"]
