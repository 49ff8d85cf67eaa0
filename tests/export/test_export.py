"""Exported programs: traced launches, shape checks, the check of their own answers."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from gpu_tools import find_tool
from hypothesis import given
from hypothesis import strategies as st
from paths import DATA, KERNELS, ROOT

from evokern.declaration.feasibility import launches_of
from evokern.declaration.kernel import Kernel, Tolerance
from evokern.doctor import host_compiler
from evokern.export.banner import Provenance, build_commands
from evokern.export.formula import Formula, cpp, evaluate, simplified
from evokern.export.golden import golden_of
from evokern.export.sampled_check import sampled_fields
from evokern.export.standalone import device_code, standalone
from evokern.export.trace import trace
from evokern.export.traced import GuardRecorder, Traced
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import find_kernel, load_kernel

FAKE = DATA / "fake_cuda"
GUIDE = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
SHIPPED = {
    "attention": "2,8,512,64",
    "attention_fp8": "2,8,512,64,dtype=u8",
    "matmul": "4096,4096,4096",
    "rmsnorm": "8192,8192",
}
SMALL = {"attention": "1,1,512,64,0", "attention_fp8": "1,1,512,64,0", "matmul": "128,128,64", "rmsnorm": "8,8192"}
"""Shapes for tools under which a launch takes a hundred times as long."""

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
needs_compiler = pytest.mark.skipif(host_compiler() is None, reason="no C++ compiler on PATH")


@pytest.fixture
def scale(tmp_path: Path) -> Kernel:
    """The documents' kernel."""
    folder = tmp_path / "scale"
    folder.mkdir()
    for name, language in (("kernel.cu", "cuda"), ("kernel.py", "python"), ("reference.h", "cpp")):
        blocks = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
        (folder / name).write_text(blocks[0])
    return load_kernel(folder)


# ---- formulas


def _formulas() -> st.SearchStrategy[Formula]:
    leaves = st.sampled_from(["A", "B"]).map(lambda name: ("field", name)) | st.integers(-9, 9).map(
        lambda number: ("number", number)
    )
    return st.recursive(
        leaves,
        lambda inner: st.tuples(st.just("neg"), inner) | st.tuples(st.sampled_from(["+", "-", "*"]), inner, inner)
        | st.tuples(st.sampled_from(["//", "%"]), inner, st.integers(1, 9).map(lambda number: ("number", number))),
        max_leaves=8,
    )  # fmt: skip


@given(_formulas(), st.integers(0, 50), st.integers(0, 50))
def test_simplifying_changes_no_value(formula: Formula, a: int, b: int) -> None:
    """A simplified formula is worth what the whole one was, whichever fields are known."""
    fields = {"A": a, "B": b}
    expected = evaluate(formula, fields)
    assert expected == evaluate(simplified(formula, {}), fields)
    assert expected == evaluate(simplified(formula, {"A": a}), fields)
    assert ("number", expected) == simplified(formula, fields)


@given(_formulas(), st.integers(0, 50), st.integers(0, 50))
def test_formulas_read_the_same_in_cpp(formula: Formula, a: int, b: int) -> None:
    """Floored division, remainders, signs and brackets mean in C++ what they mean in Python."""
    text = cpp(formula).replace("shape.a", f"({a})").replace("shape.b", f"({b})")
    helpers = {"ceil_div": lambda x, y: -(-x // y), "floor_div": lambda x, y: x // y, "floor_mod": lambda x, y: x % y}
    assert evaluate(formula, {"A": a, "B": b}) == eval(text, helpers)


@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(1, 1000))
def test_traced_numbers_carry_their_formula(traced_at: int, other: int, divisor: int) -> None:
    """What was computed at one shape is, by its formula, what would be computed at another where the guards hold."""

    def compute(n: int) -> int:
        blocks = -(-n // divisor)
        return blocks * 3 - n % 7 if n > divisor else min(n, 12) + blocks

    recorder = GuardRecorder()
    result = compute(Traced.make(traced_at, ("field", "N"), recorder))
    assert isinstance(result, Traced)
    assert result.value == compute(traced_at)
    if all(guard.holds({"N": other}) for guard in recorder.guards):
        assert evaluate(result.formula, {"N": other}) == compute(other)


def test_what_escapes_as_a_plain_number_is_guarded() -> None:
    """Text, floats and bits have no formula: using one binds the shape to the traced value."""
    for use in (str, float, lambda n: n / 2 + 1, lambda n: n & 1, hash, lambda n: 2**n, lambda n: {n: 1}):
        recorder = GuardRecorder()
        use(Traced.make(5, ("field", "N"), recorder))  # type: ignore[operator]
        assert [guard.cpp() for guard in recorder.guards] == ["shape.n == 5"]


@pytest.mark.parametrize("name", SHIPPED)
def test_launches_follow_the_shape(name: str) -> None:
    """A shipped kernel's traced launches are its own, at other shapes that pass the guards."""
    kernel = find_kernel(str(KERNELS / name))
    problem = kernel.problem(SHIPPED[name])
    config = kernel.space.default()
    traces = trace(kernel, config, problem, CHIPS["h200"])
    assert not traces.pinned
    first = traces.fields[0]
    other = kernel.problem({**problem, first: 3 * int(problem[first])})
    fields = {field: int(other[field]) for field in traces.fields}
    assert all(guard.holds(fields) for guard in traces.guards)
    expected = [launch.grid for launch in launches_of(kernel, config, other)]
    actual = [
        tuple(evaluate(e.formula, fields) if isinstance(e, Traced) else e for e in launch.grid)
        for launch in traces.launches
    ]
    assert expected == actual


def test_a_number_that_escapes_unseen_binds_the_whole_shape(scale: Kernel) -> None:
    """Where formulas and functions disagree (`range` asks nobody), only the study's shape is taken."""
    from dataclasses import replace

    from evokern.declaration.kernel import Launch, i32

    def launches(c: object, p: object) -> list[Launch]:
        blocks = len(range(p.N))  # type: ignore[attr-defined]
        return [Launch("scale", blocks, 128, ("x", "y", i32(p.N)))]  # type: ignore[attr-defined]

    kernel = replace(scale, launches=launches)
    traces = trace(kernel, kernel.space.default(), kernel.problem("1024"), CHIPS["l4"])
    assert traces.pinned
    assert [guard.cpp() for guard in traces.guards] == ["shape.n == 1024"]


# ---- programs


_BINARIES = TemporaryDirectory(prefix="evokern-programs-")


@cache
def _built(program: str) -> Path:
    """Return an exported program built with the stand-in for CUDA; each text is built once."""
    source = Path(_BINARIES.name) / f"{hashlib.sha256(program.encode()).hexdigest()}.cpp"
    source.write_text(program)
    types = ["-DFAKE_KERNEL_TYPES=const float*,float*,int", "-DFAKE_KERNEL_COUNT=3"]
    build = [str(host_compiler()), "-std=c++17", "-O1", "-w", f"-I{FAKE}", "-include", "utility", *types]
    binary = source.with_suffix("")
    subprocess.run([*build, str(source), "-o", str(binary)], check=True, capture_output=True, text=True)
    return binary


def _fake_run(program: str, *arguments: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FAULT": fault}
    return subprocess.run(
        [str(_built(program)), *arguments], env=environment, capture_output=True, text=True, timeout=60
    )


RIGHT = "y[i] = 2 * x[i];"
MALLOC = "cudaMalloc(&device, bytes)"
FAULTS = {
    "off": "y[i] = 2.001f * x[i];",
    "NaN": "y[i] = i == 999 ? 0.f / 0.f : 2 * x[i];",
    "unwritten": ";",
    "last": "y[i] = 2 * x[i] + (i == 999);",
}
"""What may be wrong with the documents' kernel, and the statement that stands in the right one's place."""


def _faulty(text: str) -> str:
    """Return the program with every fault in its kernel, of which the variable FAULT chooses one when it runs.

    Building a program takes two seconds. The reference, which says the same, stands after the kernel and stays right;
    with FAULT=no GPU allocating fails as it does where there is none.
    """
    before, found, after = text.replace(
        MALLOC, f'(std::getenv("FAULT") == std::string("no GPU") ? 100 : {MALLOC})'
    ).partition(RIGHT)
    assert found
    assert MALLOC in text
    chosen = "".join(f'if (fault == "{name}") {{ {statement} }} else ' for name, statement in FAULTS.items())
    body = f'{{ static const std::string fault = std::getenv("FAULT"); {chosen}{{ {RIGHT} }} }}'
    return "#include <cstdlib>\n#include <string>\n" + before + body + after


@pytest.fixture
def program(scale: Kernel) -> Callable[..., str]:
    """The documents' kernel, exported."""

    def write(**genes: object) -> str:
        config = scale.space.with_changes(scale.space.default(), genes)  # type: ignore[arg-type]
        facts = Provenance({"study": "scale, begun today", "trial": "7"})
        return standalone(scale, config, scale.problem("4096"), CHIPS["l4"], facts)

    return write


@pytest.mark.thorough
@needs_compiler
def test_a_program_without_a_cpp_reference_checks_itself_with_a_file(scale: Kernel) -> None:
    """At the study's shape the file decides; at others, and without a file, the program says that it has no check."""
    kernel = replace(scale, workload=replace(scale.workload, cpp_reference=False))
    config = kernel.space.with_changes(kernel.space.default(), {"LOADS": "scalar"})
    problem = kernel.problem("1000")
    golden, why = golden_of(kernel, config, problem, kernel.workload.tolerance, "best.cu")
    assert golden is not None and not why and golden.file_name == "best.golden"
    assert len(golden.data) == 24 + 1000 * 4 + 1000 * 16
    text = standalone(kernel, config, problem, CHIPS["l4"], Provenance(), golden=golden)
    program = _faulty(text)
    missing = _fake_run(program, "1000")
    assert missing.returncode == 2 and "cannot open best.golden" in missing.stderr
    file = _built(program).parent / golden.file_name
    file.write_bytes(golden.data)
    done = _fake_run(program, "1000")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "PASS")
    for fault in FAULTS:
        done = _fake_run(program, "1000", fault=fault)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "FAIL"), fault
    other = _fake_run(program, "2000")
    assert (other.returncode, other.stdout.splitlines()[-1][:11]) == (0, "NOT CHECKED")
    for damaged, message in ((golden.data[:-1], "too short"), (b"EVOKERN1" + bytes(16), "another program")):
        file.write_bytes(damaged)
        done = _fake_run(program, "1000")
        assert done.returncode == 2 and message in done.stderr
    alone = standalone(kernel, config, problem, CHIPS["l4"], Provenance(), unchecked="no reference was known")
    done = _fake_run(alone, "1000")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "NOT CHECKED: no reference was known")


@pytest.mark.thorough
@needs_compiler
@pytest.mark.parametrize("loads", ["scalar", "vector4"])
def test_a_right_kernel_passes(program: Callable[..., str], loads: str) -> None:
    """A right candidate prints its time and PASS, and exits with 0, at the study's shape and at others.

    The check launches once, the pilot of the timing once for each of four input sets, and then as many calls as fill
    500 µs: 12 or 13 of the pilot's 40.
    """
    done = _fake_run(program(LOADS=loads), "1000", "3")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "PASS")
    assert re.search(r"^time: 10\.000 us per call", done.stdout, re.MULTILINE)
    assert done.stderr.count("a launch\n") in (1 + 4 + 48, 1 + 4 + 52)


@pytest.mark.thorough
@needs_compiler
@pytest.mark.parametrize(
    "arguments", [("--check",), ("--check", "1000"), ("1000", "--check"), ("1000", "3", "--check")]
)
def test_a_check_launches_once(program: Callable[..., str], arguments: tuple[str, ...]) -> None:
    """`--check`, wherever it stands, is one launch held against the reference: no timing, and the same exit codes."""
    text = _faulty(program(LOADS="scalar"))
    right = _fake_run(text, *arguments)
    assert (right.returncode, right.stdout.splitlines()[-1], right.stderr) == (0, "PASS", "a launch\n")
    wrong = _fake_run(text, *arguments, fault="off")
    assert (wrong.returncode, wrong.stdout.splitlines()[-1], wrong.stderr) == (1, "FAIL", "a launch\n")
    for done in (right, wrong):
        assert "time:" not in done.stdout


@pytest.mark.thorough
@needs_compiler
def test_a_check_checks_what_the_timed_program_checks(program: Callable[..., str]) -> None:
    """A seed draws the same inputs with `--check` and without; another seed draws others."""
    worst = [
        _fake_run(program(LOADS="scalar"), *arguments).stdout.splitlines()[0]
        for arguments in (("1000", "3"), ("--check", "1000", "3"), ("--check", "1000", "4"))
    ]
    assert worst[0] == worst[1] != worst[2]


@pytest.mark.thorough
@needs_compiler
def test_help_says_what_it_takes(program: Callable[..., str]) -> None:
    """`--help` names the option, the fields of a shape and the seed, and runs nothing."""
    done = _fake_run(program(LOADS="scalar"), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "[--check] [--whole] [SHAPE] [SEED]" in done.stdout
    assert "N, for example 4096" in done.stdout
    assert "3 CUDA error" in done.stdout


@pytest.mark.thorough
@needs_compiler
def test_a_machine_without_a_gpu_is_no_failure_of_the_kernel(program: Callable[..., str]) -> None:
    """An error of CUDA's, as where there is no GPU, is told with the call that met it and ends with 3, never with 1."""
    done = _fake_run(_faulty(program(LOADS="scalar")), fault="no GPU")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "cudaMalloc: fake error\n")


def test_the_documents_name_every_exit_code() -> None:
    """The exit codes that the program can end with are the ones that docs/searching.md tells."""
    template = (ROOT / "evokern" / "export" / "program.cu.in").read_text(encoding="utf-8")
    ends = template.partition("int check_and_time(")[2] + "".join(re.findall(r"std::exit\(\d\)", template))
    codes = {int(code) for code in re.findall(r"(?:return |\? |: |exit\()(\d)(?=[;) ])", ends)}
    assert codes == {0, 1, 2, 3}
    told = dict(re.findall(r"^\| (\d) \| (.+) \|$", (ROOT / "docs" / "searching.md").read_text(), re.MULTILINE))
    assert {int(code) for code in told} == codes
    for code, meaning in (("0", "PASS"), ("1", "FAIL"), ("2", "unsupported shape"), ("3", "CUDA error")):
        assert meaning in told[code]


@pytest.mark.thorough
@needs_compiler
@pytest.mark.parametrize("fault", ["off", "NaN", "unwritten"])
def test_a_wrong_kernel_fails(program: Callable[..., str], fault: str) -> None:
    """A value that is off, a NaN, and an output never written each end with FAIL and exit code 1."""
    done = _fake_run(_faulty(program(LOADS="scalar")), "1000", fault=fault)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "FAIL")


@pytest.mark.thorough
@needs_compiler
@pytest.mark.parametrize(("elements", "code"), [(2, 0), (500, 1)])
def test_a_tolerance_for_so_many_elements_grows_with_the_shape(scale: Kernel, elements: int, code: int) -> None:
    """An error of 2.5 tolerances at 1,000 elements is within that of 2 grown to so many, and not within that of 500."""
    limits = {"y": Tolerance(0.0, 2e-4, elements=elements)}
    config = scale.space.with_changes(scale.space.default(), {"LOADS": "scalar"})
    text = standalone(scale, config, scale.problem("4096"), CHIPS["l4"], Provenance({}), tolerance=limits)
    done = _fake_run(text.replace("y[i] = 2 * x[i];", "y[i] = 2.001f * x[i];", 1), "1000", "--check")
    assert done.returncode == code


@pytest.mark.thorough
@needs_compiler
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("1001",), "this shape is not supported: floor_mod(n, 4) <= 0 must hold: a tail would be left over"),
        (("0",), "this shape is not supported: N must be 1 to 2147483647"),
        (("12x",), "usage: "),
        (("1,2",), "usage: "),
        (("1024", "1", "2"), "usage: "),
        (("--chek",), "usage: "),
        (("1024", "one"), "usage: "),
        (("1024", "-1"), "usage: "),
        (("--check", "1001"), "this shape is not supported: "),
    ],
)
def test_shapes_it_cannot_take_are_refused(
    program: Callable[..., str], arguments: tuple[str, ...], message: str
) -> None:
    """A shape that the candidate cannot take ends with 2 and the reason, before anything is launched."""
    done = _fake_run(program(LOADS="vector4"), *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.thorough
@needs_compiler
@pytest.mark.parametrize(
    ("arguments", "gibibytes"), [(("--check", "200000000"), "2.2"), (("200000000",), "2.2"), (("2147483647",), "24.0")]
)
def test_a_shape_that_the_host_cannot_hold_is_told(
    program: Callable[..., str], arguments: tuple[str, ...], gibibytes: str
) -> None:
    """It ends with 2 and how much memory it wanted, before anything is drawn or launched."""
    binary = _built(program(LOADS="scalar"))
    limited = ["bash", "-c", 'ulimit -v 1000000; exec "$0" "$@"', str(binary), *arguments]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert f" bytes ({gibibytes} GiB) of host memory" in done.stderr


@pytest.mark.thorough
@needs_compiler
def test_a_reference_that_the_host_cannot_hold_is_told(program: Callable[..., str]) -> None:
    """Where memory ends later, in the reference, the program says the same and does not abort."""
    call = "  evokern_reference::reference("
    text = program(LOADS="scalar").replace(call, f"  std::vector<double> much(1LL << 58);\n{call}")
    done = _fake_run(text, "--check", "1000")
    assert (done.returncode, "12000 bytes" in done.stderr) == (2, True)


@pytest.mark.thorough
@needs_compiler
def test_integer_inputs_have_values_from_low_to_high(program: Callable[..., str]) -> None:
    """An input with one allowed value has this value, and no random values around 0."""
    text = program(LOADS="scalar").replace("int main(", "int unused(")
    text += """
int main() {
  std::mt19937_64 random(1);
  for (const int high : {5, 7}) {
    std::vector<double> values = evokern_check::make_input<int>(100, 1.0, 5, high, 1, random).values;
    std::sort(values.begin(), values.end());
    std::printf("%g %g\\n", values.front(), values.back());
  }
}
"""
    assert _fake_run(text).stdout == "5 5\n5 7\n"


@pytest.mark.thorough
@needs_compiler
def test_misaligned_pointers_are_refused(program: Callable[..., str]) -> None:
    """The launcher returns MISALIGNED and launches nothing for a pointer that wide accesses cannot take."""
    text = program(LOADS="vector4").replace("int main(", "int unused(")
    text += """
int main() {
  alignas(256) static char memory[1 << 16];
  evokern::Shape shape = {1024};
  return 10 * evokern::launch(shape, memory, memory + 8192, 0) + evokern::launch(shape, memory + 4, memory + 8192, 0);
}
"""
    assert _fake_run(text).returncode == 2


def test_the_file_says_where_it_comes_from(program: Callable[..., str]) -> None:
    """Build line, study, trial, problem and configuration stand in its first comment, choices not made nowhere."""
    text = program(LOADS="scalar")
    for line in (
        "nvcc -arch=sm_89 best.cu -o best",
        "./best [--check] [--whole] [SHAPE] [SEED]",
        "study: scale, begun today",
        "trial: 7",
        "N=4096",
        "LOADS = scalar",
    ):
        assert line in text
    assert "make_float4" not in text.split("the kernel\n")[1].split("the launcher\n")[0]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("tensor_cores", "target"),
    [("mma_sync", "-arch=sm_90"), ("wgmma", "-gencode=arch=compute_90a,code=sm_90a")],
)
def test_build_line_names_the_architecture_that_the_candidate_needs(tensor_cores: str, target: str) -> None:
    """Wgmma exists on sm_90a alone, which nvcc takes in its long form only."""
    kernel = find_kernel(str(KERNELS / "attention"))
    config = kernel.space.canonical({**kernel.space.default(), "TENSOR_CORES": tensor_cores})
    text = standalone(kernel, config, kernel.problem(SHIPPED["attention"]), CHIPS["h200"], Provenance())
    assert f"\n//     nvcc {target} best.cu -o best\n" in text


@pytest.mark.thorough
@needs_nvcc
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "attention")) for name in SHIPPED]
)
def test_shipped_kernels_build_with_nvcc_alone(name: str, tmp_path: Path) -> None:
    """An export of each shipped kernel's default candidate builds without a warning, and refuses bad shapes alone.

    The one of attention with all tests, the others by hand (`-m slow`): nvcc takes five seconds for each.
    """
    kernel = find_kernel(str(KERNELS / name))
    text = standalone(kernel, kernel.space.default(), kernel.problem(SHIPPED[name]), CHIPS["l4"], Provenance())
    (tmp_path / "best.cu").write_text(text)
    build = ["nvcc", "-arch=sm_89", "best.cu", "-o", "best"]
    built = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (built.returncode, built.stderr) == (0, "")
    asked = [",".join("0" for _ in SMALL[name].split(",")), SMALL[name]]
    refused, taken = (
        subprocess.run([tmp_path / "best", "--check", shape], capture_output=True, text=True, timeout=60)
        for shape in asked
    )
    assert (refused.returncode, refused.stderr[:27]) == (2, "this shape is not supported")
    assert taken.returncode in (0, 3)  # 3: CUDA says that there is no GPU


@pytest.fixture(scope="module", params=SHIPPED)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A shipped kernel's name, and its default candidate exported and built for the GPU that is here."""
    from evokern.hardware.driver import probe

    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    kernel = find_kernel(str(KERNELS / name))
    problem = {"matmul": "512,640,256", "rmsnorm": "64,8192"}.get(name, SHIPPED[name])
    text = standalone(kernel, kernel.space.default(), kernel.problem(problem), CHIPS["l4"], Provenance())
    (folder / "best.cu").write_text(text)
    major, minor = probe().gpus[0].compute_capability
    build = ["nvcc", f"-arch=sm_{major}{minor}", "best.cu", "-o", "best"]
    subprocess.run(build, cwd=folder, check=True, timeout=300)
    return name, folder / "best"


@pytest.mark.gpu
@needs_nvcc
def test_shipped_kernels_pass_on_a_gpu(exported: tuple[str, Path]) -> None:
    """An export of each shipped kernel's default candidate is right and says PASS, timed or not."""
    for options in ((), ("--check",)):
        done = subprocess.run([exported[1], *options], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "PASS")
        assert ("time: " in done.stdout) == (options == ())


@pytest.mark.gpu
@needs_nvcc
@pytest.mark.skipif(find_tool("compute-sanitizer") is None, reason="compute-sanitizer is not installed")
def test_shipped_kernels_have_no_race_on_a_gpu(exported: tuple[str, Path]) -> None:
    """Under racecheck a check at a small shape passes, without an error, within two minutes."""
    name, binary = exported
    command = [find_tool("compute-sanitizer"), "--tool", "racecheck", "--error-exitcode", "9", binary, "--check"]
    done = subprocess.run([*command, SMALL[name]], capture_output=True, text=True, timeout=120)
    assert (done.returncode, "PASS" in done.stdout.splitlines()) == (0, True), done.stdout + done.stderr


def test_device_code_compiles_as_the_original_does(scale: Kernel) -> None:
    """The specialised source compiles on its own, to the same machine code as the original with its macros."""
    from evokern.compile.fingerprint import code_digest
    from evokern.compile.nvrtc import compile_program
    from evokern.compile.records import Program
    from evokern.declaration.render import render

    config, problem = scale.space.default(), scale.problem("4096")
    rendered = render(scale, config, problem)
    original = compile_program(rendered.source, "kernel.cu", rendered.headers, rendered.options, ["scale"], "sm_89")
    special = compile_program(device_code(scale, config, problem, CHIPS["l4"]), "kernel.cu", {}, (), ["scale"], "sm_89")
    assert isinstance(original, Program) and isinstance(special, Program)
    assert original.uses == special.uses
    assert code_digest(original, ["scale"]) == code_digest(special, ["scale"])


def test_without_the_compiler_library_every_choice_is_exported(scale: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The export says so, and is the same program."""
    from evokern.compile.nvrtc import compile_program
    from evokern.compile.records import Program
    from evokern.errors import DeviceError

    def absent(*arguments: object, **options: object) -> None:
        raise DeviceError("NVRTC cannot be loaded")

    config, problem = scale.space.default(), scale.problem("4096")
    short = device_code(scale, config, problem, CHIPS["l4"])
    monkeypatch.setattr(import_module("evokern.export.standalone"), "compile_ptx", absent)
    whole = device_code(scale, config, problem, CHIPS["l4"])
    assert whole.startswith("// Still contains the code of other variants, because NVRTC cannot be loaded\n")
    assert "if constexpr" in whole and "if constexpr" not in short
    first, second = (compile_program(t, "kernel.cu", {}, (), ["scale"], "sm_89") for t in (short, whole))
    assert isinstance(first, Program) and isinstance(second, Program)
    assert first.uses == second.uses


@pytest.mark.parametrize("entry", ["scale<2>", "::scale<2>", "ours::scale<2>", "ours::scale< 2 >"])
def test_a_template_kernel_is_exported(scale: Kernel, entry: str) -> None:
    """A kernel launched with template arguments, in a namespace or not, stands in the export, and compiles there."""
    from dataclasses import replace

    from evokern.compile.nvrtc import compile_program
    from evokern.compile.records import Program
    from evokern.declaration.kernel import Launch, i32

    body = """template <int K> __global__ void scale(const float* x, float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) y[i] = K * x[i];
}
__global__ void other(float* y) { y[0] = 1; }
"""
    inside = f"namespace ours {{\n{body}}}\n" if "ours" in entry else body
    scale.source_path.write_text(inside)

    def launches(c: object, p: object) -> list[Launch]:
        return [Launch(entry, 1, 128, ("x", "y", i32(p.N)))]  # type: ignore[attr-defined]

    kernel = replace(scale, launches=launches)
    config, problem = kernel.space.default(), kernel.problem("4096")
    text = device_code(kernel, config, problem, CHIPS["l4"])
    assert "other" not in text
    built = compile_program(text, "kernel.cu", {}, (), [entry], "sm_89")
    assert isinstance(built, Program)
    program = standalone(kernel, config, problem, CHIPS["l4"], Provenance())
    assert "void scale(" in program


# ---- long references, and programs that link


def _impatient(text: str) -> str:
    """Return a program that samples as soon as a sample leaves anything out."""
    for name in ("WHOLE_S", "SAMPLE_S", "TIMED_S"):
        text, count = re.subn(rf"(constexpr double {name} = )[\d.]+", r"\g<1>-1.0", text)
        assert count == 1
    return text


@pytest.mark.thorough
@needs_compiler
def test_a_long_check_takes_a_sample_and_says_so(program: Callable[..., str]) -> None:
    """Where the reference of all takes too long a sample is checked, with its size told; `--whole` checks all."""
    text = _faulty(_impatient(program(LOADS="scalar"))).replace("steps[FIELDS] = {1}", "steps[FIELDS] = {100}")
    done = _fake_run(text, "1000", "--check")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "PASS")
    assert re.search(r"^checked: a sample, 100 of 1000 N; the reference for all elements would take", done.stdout, re.M)
    whole = _fake_run(text, "1000", "--check", "--whole")
    assert (whole.returncode, "sample" in whole.stdout) == (0, False)
    last = _fake_run(text, "1000", "--check", fault="last")
    assert (last.returncode, "worst element 999 is" in last.stdout, "FAIL" in last.stdout) == (1, True, True)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "fields"), [("matmul", ["M", "N"]), ("rmsnorm", ["ROWS"]), ("attention", ["B", "H"])])
def test_what_a_reference_can_be_sampled_along(name: str, fields: list[str]) -> None:
    """Rows and columns of a product, rows, and heads can be taken apart; what is summed over and keys cannot."""
    kernel = find_kernel(name)
    problem, config = kernel.problem(SHIPPED[name]), kernel.space.default()
    found = sampled_fields(kernel, config, problem, trace(kernel, config, problem, CHIPS["h200"]))
    assert [one.name for one in found] == fields
    text = standalone(kernel, config, problem, CHIPS["h200"], Provenance())
    assert f"names[FIELDS] = {{{', '.join(json.dumps(field) for field in fields)}}}" in text


def test_what_cannot_be_sampled_is_checked_whole(scale: Kernel) -> None:
    """A reference whose elements depend on their neighbours has no field to sample, and the program no such option."""
    shifted = replace(scale.workload, reference=lambda p, t: {"y": t["x"] + t["x"].roll(1)})
    kernel = replace(scale, workload=shifted)
    problem, config = kernel.problem("4096"), kernel.space.default()
    assert sampled_fields(kernel, config, problem, trace(kernel, config, problem, CHIPS["l4"])) == ()
    text = standalone(kernel, config, problem, CHIPS["l4"], Provenance())
    assert "--whole" not in text
    assert "run_reference(shape, inputs, {})" in text


@pytest.mark.thorough
@needs_compiler
def test_an_exported_program_can_be_linked(program: Callable[..., str], tmp_path: Path) -> None:
    """Built with EVOKERN_NO_MAIN it is an object with the functions that its first comment declares, and no main."""
    text = program(LOADS="scalar")
    (tmp_path / "best.cpp").write_text(text)
    comment = [line[2:].strip() for line in text.splitlines() if line.startswith("//")]
    start = comment.index("namespace evokern {")
    declared = "\n".join(comment[start : comment.index("}", start) + 1])
    (tmp_path / "user.cpp").write_text(
        f"""#include <cuda_runtime.h>
{declared}
int main() {{
  alignas(256) static float x[1000], y[1000];
  for (int i = 0; i < 1000; i++) x[i] = i;
  const evokern::Shape shape = {{1000}};
  if (evokern::refusal(shape) || evokern::launch(shape, x, y, 0) != evokern::OK) return 2;
  for (int i = 0; i < 1000; i++) if (y[i] != 2 * x[i]) return 1;
  return 0;
}}
"""
    )
    compiler = host_compiler()
    assert compiler is not None
    types = ["-DFAKE_KERNEL_TYPES=const float*,float*,int", "-DFAKE_KERNEL_COUNT=3"]
    options = [compiler, "-std=c++17", "-w", f"-I{FAKE}", "-include", "utility", *types]
    for source, more in (("best", ["-DEVOKERN_NO_MAIN"]), ("user", [])):
        built = [*options, *more, "-c", str(tmp_path / f"{source}.cpp"), "-o", str(tmp_path / f"{source}.o")]
        subprocess.run(built, check=True, capture_output=True, text=True)
    linked = [compiler, str(tmp_path / "best.o"), str(tmp_path / "user.o"), "-o", str(tmp_path / "both")]
    subprocess.run(linked, check=True, capture_output=True, text=True)
    assert subprocess.run([str(tmp_path / "both")], capture_output=True, timeout=60).returncode == 0


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("name", list(SHIPPED))
def test_shipped_kernels_build_to_be_linked(name: str, tmp_path: Path) -> None:
    """Nvcc makes an object of every shipped kernel by the line in its first comment."""
    kernel = find_kernel(name)
    text = standalone(kernel, kernel.space.default(), kernel.problem(SHIPPED[name]), CHIPS["l4"], Provenance())
    (tmp_path / "best.cu").write_text(text)
    line = next(line[2:].strip() for line in text.splitlines() if "-DEVOKERN_NO_MAIN" in line)
    subprocess.run(shlex.split(line), cwd=tmp_path, check=True, capture_output=True, text=True)
    symbols = subprocess.run(["nm", "-C", "best.o"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert " T evokern::launch(" in symbols
    assert " T main" not in symbols


def test_build_lines_are_quoted_and_keep_their_folder(scale: Kernel) -> None:
    """A name with a blank is one word, a folder stays, and the binary never takes the place of the source."""
    for file, built, ran in (
        ("out/my best.cu", "nvcc -arch=sm_89 'out/my best.cu' -o 'out/my best'", "'./out/my best'"),
        ("/tmp/best.cu", "nvcc -arch=sm_89 /tmp/best.cu -o /tmp/best", "/tmp/best"),
        ("best.txt", "nvcc -arch=sm_89 best.txt -o best.txt.out", "./best.txt.out"),
    ):
        path = Path(file)
        text = standalone(
            scale, scale.space.default(), scale.problem("4096"), CHIPS["l4"], Provenance(), file_name=path.name
        )
        assert build_commands(text, path) == (built, ran)
