"""`init` takes tuning scripts and T1 files: by content, with trust, and without tuning anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.compile.device_code import split_options
from evokern.declaration.as_data import golden
from evokern.errors import KernelError, SourceError
from evokern.scaffold.declaration_text import study_toml
from evokern.scaffold.problems import tile_units
from evokern.scaffold.tuner.arithmetic import over_genes, values_of
from evokern.scaffold.tuner.draft import draft_of
from evokern.scaffold.tuner.request import from_call, is_script
from evokern.scaffold.tuner.t1 import from_t1, is_t1, run_script
from evokern.study.discovery import find_kernel

SCRIPT = '''
import numpy
import kernel_tuner
from kernel_tuner.observers import BenchmarkObserver
from collections import OrderedDict

class Watch(BenchmarkObserver.__class__):
    pass

source = """
#define image_width 512
#define image_height 256
__constant__ float weights[16];
__global__ void blur(float *out, float *image, float strength) {
    int x = blockIdx.x * block_size_x + threadIdx.x;
    for (int k = 0; k < tile; k++) {
        int y = (blockIdx.y * tile + k) * block_size_y + threadIdx.y;
        if (x < image_width && y < image_height) {
            float sum = 0;
            for (int i = 0; i < taps; i++) sum += weights[i] * image[y * (image_width + taps - 1) + x + i];
            out[y * image_width + x] = strength * sum;
        }
    }
}
"""
params = OrderedDict(block_size_x=[16, 32, 64], block_size_y=[2, 4], tile=[1, 2], taps=[3, 5, 7])
out = numpy.zeros(512 * 256).astype(numpy.float32)
image = numpy.random.randn(10**9).astype(numpy.float32)
kernel_tuner.tune_kernel(
    "blur", source, (512, 256), [out, image, numpy.float32(0.5)], params,
    grid_div_y=["block_size_y", "tile"],
    restrictions=["block_size_x * block_size_y <= 128", lambda p: p["tile"] * p["block_size_y"] <= 6],
    cmem_args={"weights": numpy.zeros(7, dtype=numpy.float32)}, compiler_options=["-std=c++11", "--use_fast_math"],
)
open("tuned", "w").write("this line is behind the call")
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stdout, result.stderr


def test_a_script_becomes_a_kernel(here: Path) -> None:
    """Parameters, restrictions, divisors, arguments and constant memory are taken over; a filter's width is a field."""
    (here / "blur.txt").write_text(SCRIPT)
    code, _, told = invoke("init", "blur.txt")
    assert (code, "--trust" in told, (here / "kernels").exists()) == (2, True, False)
    code, told, _ = invoke("init", "blur.txt", "--trust")
    assert (code, (here / "tuned").exists()) == (0, False)
    assert "only compared with the default candidate" in told
    kernel = find_kernel("blur")
    assert {gene.name: gene.values for gene in kernel.genes} == {
        "block_size_x": (16, 32, 64), "block_size_y": (2, 4), "tile": (1, 2),
    }  # fmt: skip
    taps = next(field for field in kernel.fields if field.name == "taps")
    assert (taps.choices, taps.default) == ((3, 5, 7), 3)
    assert [constraint.name for constraint in kernel.constraints][:2] == ["restriction_1", "restriction_2"]
    values = [(tile, y) for tile in (1, 2) for y in (2, 4)]
    made = [kernel.space.default().replace(tile=tile, block_size_y=y) for tile, y in values]
    allowed = [kernel.constraints[1].evaluate(one, kernel.problem("512,256,taps=5"), None) for one in made]
    assert [one.needed for one in allowed] == [0, 0, 0, 1], "the lambda is arithmetic"
    config, problem = kernel.space.default(), kernel.problem("512,256,taps=5")
    (launch,) = kernel.launches(config, problem)
    assert launch.grid == (512 // config["block_size_x"], 256 // (config["block_size_y"] * config["tile"]), 1)
    tensors = {name: (t.role, t.shape) for name, t in kernel.workload.tensors(problem, config).items()}
    assert tensors == {
        "weights": ("constant", (5,)), "image": ("input", (256, 516)), "out": ("output", (256, 512)),
    }  # fmt: skip
    assert kernel.options == ("--use_fast_math",)


def test_a_sum_of_parts_is_judged_as_the_script_judges_it(here: Path) -> None:
    """One number for many parts: they become a workspace, and a second kernel adds them up."""
    (here / "sum.cu").write_text(
        "__global__ void parts(float *sums, float *x, int n) {\n"
        "  float sum = 0;\n"
        "  for (int i = blockIdx.x * block_size_x + threadIdx.x; i < n / per; i += blocks * block_size_x)\n"
        "    for (int k = 0; k < per; k++) sum += x[i * per + k];\n"
        "  for (int s = 16; s > 0; s >>= 1) sum += __shfl_down_sync(0xffffffff, sum, s);\n"
        "  if (threadIdx.x == 0) sums[blockIdx.x] = sum;\n}\n"
    )
    (here / "sum.py").write_text(
        "import numpy\nfrom kernel_tuner import tune_kernel\nx = numpy.ones(5000, dtype=numpy.float32)\n"
        "tune_kernel('parts', 'sum.cu', 'blocks', [numpy.zeros(64, dtype=numpy.float32), x, numpy.int32(5000)],\n"
        "            dict(block_size_x=[32], blocks=[8, 16], per=[1, 4]), grid_div_x=[], \n"
        "            answer=[numpy.sum(x), None, None], verify=lambda a, b, atol: True)\n"
    )
    assert invoke("init", "sum.py", "--trust")[0] == 0
    kernel = find_kernel("sum")
    config, problem = kernel.space.default(), kernel.problem("5000")
    first, second = kernel.launches(config, problem)
    assert (first.grid, second.entry, second.grid) == ((8, 1, 1), "add_up", (1, 1, 1))
    tensors = {name: (t.role, t.shape) for name, t in kernel.workload.tensors(problem, config).items()}
    assert tensors["sums"] == ("workspace", (8,)) and tensors["sums_total"] == ("output", (1,))
    (rule,) = kernel.constraints
    assert rule.name == "whole_n_per", "four at once leave the tail out"
    needs = [rule.evaluate(config.replace(per=4), kernel.problem(size), None) for size in ("5000", "5001")]
    assert [0, 1] == [need.needed for need in needs]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import kernel_tuner\n", "without calling kernel_tuner.tune_kernel"),
        ("import kernel_tuner\nraise RuntimeError('no data here')\n", "RuntimeError: no data here"),
        (
            "import kernel_tuner\nkernel_tuner.tune_kernel('k', lambda p: '', 1, [], {})\n",
            "kernel source with a function",
        ),
        ("import kernel_tuner\nkernel_tuner.tune_kernel('k', 'x\\n', 1, [], {}, lang='OpenCL')\n", "tunes OPENCL code"),
    ],
)
def test_a_script_that_cannot_be_taken_says_why(tmp_path: Path, text: str, message: str) -> None:
    """It fails, calls nothing, makes its source with a function, or tunes another language."""
    path = tmp_path / "script.py"
    path.write_text(text)
    with pytest.raises(SourceError, match=message):
        run_script(path)


def test_kinds_are_told_by_content() -> None:
    """A script imports kernel_tuner, a T1 file has a space and a kernel; CUDA text is neither."""
    assert is_script(SCRIPT) and not is_script("import numpy") and not is_script("__global__ void k() {}")
    assert is_t1('{"ConfigurationSpace": {}, "KernelSpecification": {}}') and not is_t1("{}") and not is_t1(SCRIPT)


def test_a_t1_file_is_read(tmp_path: Path) -> None:
    """Values are worked out, sizes of arguments too; a missing kernel file is named."""
    space = {"TuningParameters": [{"Name": "block_size_x", "Type": "int", "Values": "[32*i for i in range(1, 3)]",
                                   "Default": 64}]}  # fmt: skip
    kernel = {
        "Language": "CUDA", "KernelName": "k", "KernelFile": "k.cu", "LocalSize": {"X": "block_size_x"},
        "GlobalSize": {"X": "100"}, "ProblemSize": [100], "GridDivX": ["block_size_x"],
        "Arguments": [
            {"Name": "x", "Type": "float", "MemoryType": "Vector", "Size": "ProblemSize[0] + max(block_size_x)"},
            {"Name": "n", "Type": "int32", "MemoryType": "Scalar", "FillValue": 100},
            {"Name": "w", "Type": "float", "MemoryType": "Vector", "MemType": "Constant", "Size": 3},
        ],
    }  # fmt: skip
    text = json.dumps({"ConfigurationSpace": space, "KernelSpecification": kernel})
    with pytest.raises(SourceError, match=r"kernel file k\.cu, which is not next to"):
        from_t1(text, tmp_path / "t1.json")
    (tmp_path / "k.cu").write_text("__global__ void k(float* x, int n) {}")
    request = from_t1(text, tmp_path / "t1.json")
    assert (request.parameters, request.defaults) == ({"block_size_x": (32, 64)}, {"block_size_x": 64})
    assert request.divisors == (("block_size_x",), None, None)
    assert [argument.shape for argument in request.arguments] == [(164,), None, (3,)]
    assert set(request.constants) == {"w"}


def test_expressions_are_evaluated_without_running_code() -> None:
    """Lists of numbers are; calls of anything else are no arithmetic."""
    assert values_of("[2**i for i in range(4) if i > 1]") == (4, 8)
    assert over_genes("min(a, 3) * b <= 64", ["a", "b"]) == "min(c.a, 3) * c.b <= 64"
    assert over_genes("a.real + b[0]", ["a", "b"]) is None
    for text in ("__import__('os').system('true')", "open('x')", "[i for i in range(10**9)]", "2**9999"):
        with pytest.raises(ValueError, match=r"not arithmetic|too"):
            values_of(text)


def test_textures_are_refused() -> None:
    """What evokern does not have is named."""
    call = {"kernel_name": "k", "kernel_source": {"text": "", "file": ""}, "tune_params": {}, "problem_size": 1,
            "texmem_args": {"t": 1}}  # fmt: skip
    with pytest.raises(SourceError, match="textures"):
        from_call(call)


def _t1(**changes: object) -> dict[str, Any]:
    space = {"TuningParameters": [{"Name": "block_size_x", "Type": "int", "Values": "[32, 64]", "Default": 64}]}
    kernel = {
        "Language": "CUDA", "KernelName": "k", "KernelFile": "k.cu", "LocalSize": {"X": "block_size_x"},
        "GlobalSize": {"X": "100"}, "ProblemSize": [4096], "GridDivX": ["block_size_x"],
        "Arguments": [{"Name": "x", "Type": "float", "MemoryType": "Vector", "Size": "ProblemSize[0]"},
                      {"Name": "n", "Type": "int32", "MemoryType": "Scalar", "FillValue": 4096}],
    }  # fmt: skip
    return {"ConfigurationSpace": space, "KernelSpecification": {**kernel, **changes}}


@pytest.mark.parametrize(
    ("given", "read"), [(4096, (4096,)), ([4096], (4096,)), ("width", ("width",)), ([64, 64], (64, 64))]
)
def test_a_problem_size_may_be_a_number(given: object, read: tuple[object, ...], tmp_path: Path) -> None:
    """Not only a list: a string is one expression, not its letters."""
    (tmp_path / "k.cu").write_text("__global__ void k(float* x, int n) {}")
    text = json.dumps(_t1(ProblemSize=given, Arguments=[]))
    assert from_t1(text, tmp_path / "t1.json").problem_size == read


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ProblemSizes": 4096, "ProblemSize": None}, None),
        ({"Arguments": [{"Name": "x", "Type": "float", "MemoryType": "Vector"}]}, "lacks the key 'Size'"),
        (
            {"Arguments": [{"Nam": "x", "Type": "float", "MemoryType": "Scalar"}]},
            "unknown key 'Nam': did you mean 'Name'",
        ),
        ({"Arguments": 3}, "has an unexpected value"),
        ({"LocalSizes": {"X": 3}}, None),
    ],
)
def test_a_t1_file_with_a_wrong_key_or_value_says_which(
    changes: dict[str, object], told: str | None, tmp_path: Path
) -> None:
    """A key that is missing, misspelt or of the wrong type is named, and never a bug of evokern."""
    (tmp_path / "k.cu").write_text("__global__ void k(float* x, int n) {}")
    whole = _t1(**changes)
    if told is None:  # misspelt: the right key is absent
        wrong = next(iter(changes))
        whole["KernelSpecification"].pop(wrong.removesuffix("s"), None)
        told = f"unknown key '{wrong}': did you mean '{wrong.removesuffix('s')}'"
    with pytest.raises(SourceError, match=told):
        from_t1(json.dumps(whole), tmp_path / "t1.json")


def test_options_for_nvcc_alone_are_left_out_with_a_word(tmp_path: Path) -> None:
    """NVRTC decides which options remain, and the draft names the others."""
    kept, dropped = split_options(
        ["-O3", "-DN=4", "-Xcompiler", "-fopenmp", "-Xcompiler=-fPIC", "--expt-relaxed-constexpr", "-arch=sm_80",
         "-gencode", "arch=compute_80,code=sm_80", "--use_fast_math", "-Xptxas", "-O2", "-I", "/tmp"]
    )  # fmt: skip
    assert kept == ("-DN=4", "--use_fast_math", "-Xptxas", "-O2", "-I", "/tmp")
    assert dropped == ("-O3", "-Xcompiler -fopenmp", "-Xcompiler=-fPIC", "--expt-relaxed-constexpr", "-arch=sm_80",
                       "-gencode arch=compute_80,code=sm_80")  # fmt: skip
    (tmp_path / "k.cu").write_text(
        "__global__ void k(float* x, int n) { int i = blockIdx.x * block_size_x + threadIdx.x; if (i < n) x[i] = 1; }"
    )
    made = draft_of(from_t1(json.dumps(_t1(CompilerOptions=["-O3", "--use_fast_math"])), tmp_path / "t1.json"))
    assert made.plan.options == ("--use_fast_math",)
    assert any("omits the compiler options -O3" in note for note in made.notes)


CALLS = """
import sys, argparse
import numpy as np
import cupy, pycuda.driver as drv
from kernel_tuner import tune_kernel, run_kernel
from kernel_tuner.observers import BenchmarkObserver
from kernel_tuner.observers.nvml import NVMLObserver

class Registers(BenchmarkObserver):
    def get_results(self):
        return {}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("size", type=int)
    n = parser.parse_args().size
    x = cupy.asarray(np.random.rand(n).astype(np.float16))
    for name in ("one", "two"):
        source = '__global__ void %s(half* y, const half* x) { int i = blockIdx.x * block_size_x + threadIdx.x; ' % name
        source += '\\n y[i] = x[i]; }'
        args = [np.zeros_like(x), x]
        expected = run_kernel(name, source, n, args, {"block_size_x": 64})[0]
        tune_kernel(name, source, n, args, {"block_size_x": [64, 128]}, answer=[expected, None],
                    observers=[NVMLObserver(["nvml_energy"]), Registers()],
                    smem_args={"size": lambda p: p["block_size_x"]})
"""


def test_arguments_observers_and_several_calls(tmp_path: Path) -> None:
    """A script gets its arguments, devices are replaced, and `entry` selects a call."""
    path = tmp_path / "calls.py"
    path.write_text(CALLS)
    first, second = run_script(path, ["256"]), run_script(path, ["256"], "two")
    assert (first.kernel, second.kernel, first.problem_size) == ("one", "two", (256,))
    assert [argument.dtype for argument in first.arguments] == ["f16", "f16"] and first.shared == "block_size_x"
    assert (list(first.answers), first.arrays) == ([0], b""), "run_kernel computes nothing"
    assert any("run_kernel" in note for note in first.notes)
    with pytest.raises(SourceError, match="tunes one, two, but not three"):
        run_script(path, ["256"], "three")
    with pytest.raises(SourceError, match=r"sys\.exit before .* required: size; pass its arguments after --"):
        run_script(path)


def test_an_answer_is_kept_with_its_inputs(here: Path) -> None:
    """At the script's problem, inputs and outputs are those of the script; a changed file is refused."""
    (here / "scale.py").write_text(
        "import numpy as np\nfrom kernel_tuner import tune_kernel\nx = np.arange(512, dtype=np.float32)\n"
        "source = '__global__ void scale(float* y, const float* x, int n) {\\n'\n"
        "source += ' int i = blockIdx.x * block_size_x + threadIdx.x; if (i < n) y[i] = 2 * x[i]; }'\n"
        "tune_kernel('scale', source, 512, [np.zeros_like(x), x, np.int32(512)], {'block_size_x': [32, 64]},\n"
        "            answer=[2 * x, None, None], atol=1e-3)\n"
    )
    assert invoke("init", "scale.py", "--trust")[0] == 0
    kernel = find_kernel("scale")
    problem, config = kernel.problem("N=512"), kernel.space.default()
    tensors = kernel.workload.tensors(problem, config)
    drawn = tensors["x"].draw(torch.Generator())
    outputs = kernel.workload.reference(problem, {"x": drawn.to(torch.float64)})
    assert torch.equal(outputs["y"], 2 * torch.arange(512, dtype=torch.float64)) and tensors["x"].change == "nothing"
    assert (kernel.workload.tolerance["y"].atol, kernel.workload.tolerance["y"].rtol) == (1e-3, 1e-5)
    small = kernel.problem("N=64")
    assert kernel.workload.tensors(small, config)["x"].draw is None
    given = torch.rand(64, dtype=torch.float32).to(torch.float64)
    assert torch.equal(kernel.workload.reference(small, {"x": given})["y"], 2 * given)
    (here / "kernels" / "scale" / "golden.npz").write_bytes(b"other")
    golden._arrays.cache_clear()
    with pytest.raises(KernelError, match=r"is not the file that kernel\.py declares"):
        find_kernel("scale").workload.reference(problem, {"x": drawn})


def test_macros_precisions_and_metrics_of_a_script(tmp_path: Path) -> None:
    """Stated macros replace the parameters', arrays fix the precision, and what is omitted is named."""
    path = tmp_path / "defined.py"
    path.write_text(
        "import numpy as np\nfrom kernel_tuner import tune_kernel\n"
        "from kernel_tuner.accuracy import TunablePrecision\n"
        "source = 'template<typename T, int block_size_x> __global__ void k(T* y, const T* x, int n) {\\n'\n"
        "source += 'int i = (blockIdx.x * block_size_x + threadIdx.x) * TWICE;\\n'\n"
        "source += 'for (int j = 0; j < TWICE; j++) if (i + j < n) y[i + j] = (KIND)x[i + j]; }'\n"
        "x = np.ones(1000, dtype=np.float64)\ny = np.zeros_like(x)\n"
        "tune_kernel('k<real, block_size_x>', source, 1000,\n"
        "            [TunablePrecision('real', y), TunablePrecision('real', x), np.int32(1000)],\n"
        "            {'block_size_x': [32, 64], 'real': ['float', 'double'], 'per': [1, 2]},\n"
        "            grid_div_x=lambda p: p['block_size_x'] * p['per'] * 2,\n"
        "            defines={'TWICE': lambda p: p['per'] * 2, 'KIND': 'double', 'real': 'real'},\n"
        "            metrics={'x': None})\n"
    )
    request = run_script(path)
    assert (request.parameters["real"], request.arguments[0].dtype) == (("double",), "f64")
    told = " ".join(request.notes)
    assert "metrics are omitted" in told and "draft the types float separately" in told
    made = draft_of(request)
    assert (made.plan.macros, made.plan.options) == ({"TWICE": "c.per * 2"}, ("-DKIND=double",))
    assert not made.compile_error and "block_size_x_" in made.source
    assert {tensor.name: tensor.role for tensor in made.tensors} == {"x": "input", "y": "output"}
    arrays = [{"dtype": "float64", "shape": [4], "precision": "real"}]
    request = from_call({**_CALL, "tune_params": {"real": ["half", "float"]}, "arguments": arrays})
    assert (request.parameters["real"], request.arguments[0].dtype) == (("float",), "f32"), "arrays are converted"
    with pytest.raises(SourceError, match="no value of real, which TunablePrecision selects, is a type"):
        from_call({**_CALL, "tune_params": {"real": ["a"]}, "arguments": arrays})


_CALL = {"kernel_name": "k", "kernel_source": {"text": "a\nb", "file": ""}, "problem_size": 1}


def _lowered(given: Any) -> Any:
    if isinstance(given, dict):
        return {name[0].lower() + name[1:]: _lowered(value) for name, value in given.items()}
    return [_lowered(one) for one in given] if isinstance(given, list) else given


def test_t1_keys_of_any_case_and_reference_arguments(tmp_path: Path) -> None:
    """The validation threshold is the tolerance; a key may begin with a small letter."""
    (tmp_path / "k.cu").write_text("__global__ void k(float* x, int n) {}")
    compared = {
        "Name": "r",
        "TargetName": "x",
        "FillType": "Generator",
        "DataSource": "2 * i",
        "ValidationThreshold": 1,
    }
    text = json.dumps(_lowered(_t1(ReferenceArguments=[compared])))
    request = from_t1(text, tmp_path / "t1.json")
    assert is_t1(text) and request.tolerances == {"x": (1.0, 0.0)} and request.expected == "Generator 2 * i for x"
    relative = {**compared, "ValidationMethod": "SideBySideRelativeComparison"}
    request = from_t1(json.dumps(_t1(ReferenceArguments=[relative])), tmp_path / "t1.json")
    assert request.tolerances == {"x": (0.0, 1.0)}
    with pytest.raises(SourceError, match="name the argument 'y'"):
        from_t1(json.dumps(_t1(ReferenceArguments=[{**compared, "TargetName": "y"}])), tmp_path / "t1.json")
    spread = {"Name": "x", "Type": "float", "MemoryType": "Vector", "Size": 4, "FillType": "Generator"}
    request = from_t1(json.dumps(_t1(Arguments=[{**spread, "DataSource": "1 + i * 2 if i > 1 else 9"}])),
                      tmp_path / "t1.json")  # fmt: skip
    assert request.arguments[0].span == (5.0, 9.0)


def test_sizes_keys_and_tiles_of_a_t1_file(tmp_path: Path) -> None:
    """A key is not a size, a size of 1 no field; lanes follow from the stated size, and tiles are whole elsewhere."""
    (tmp_path / "k.cu").write_text(
        "__global__ void k(float4* y, const float4* x, unsigned key, int start) {\n"
        "  y[blockIdx.x * block_size_x + threadIdx.x] = x[blockIdx.x * block_size_x + threadIdx.x + start];\n"
        "}\n"
    )
    vector = {"Type": "float", "MemoryType": "Vector", "Size": "4 * ProblemSize[0]"}
    arguments = [
        {**vector, "Name": "y", "AccessType": "WriteOnly"}, {**vector, "Name": "x", "AccessType": "ReadOnly"},
        {"Name": "key", "Type": "uint32", "MemoryType": "Scalar", "FillValue": 2745829788},
        {"Name": "start", "Type": "int32", "MemoryType": "Scalar", "FillValue": 0},
    ]  # fmt: skip
    text = json.dumps(_t1(ProblemSize=[4096, 1], Arguments=arguments, GlobalSize={}))
    made = draft_of(from_t1(text, tmp_path / "t1.json"))
    (field,) = made.plan.fields
    assert [argument.expression for argument in made.plan.arguments] == [None, None, "2745829788", "0"]
    size = f"p.{field.name}"
    assert {tensor.shape for tensor in made.tensors} == {(size, "4")} and dict(made.study) == {field.name: 4096}
    (rule,) = [text for name, text, _ in made.plan.constraints if name.startswith("whole_")]
    assert rule == f"divides(c.block_size_x, {size})"
    assert all(problem[field.name] % 64 == 0 for problem in made.small)


def test_a_study_of_long_blocks_has_a_smaller_problem(tmp_path: Path) -> None:
    """A block that takes too long on a simulated device; the draft states the file's own problem."""
    (tmp_path / "k.cu").write_text(
        "__global__ void k(float* y, const float* x, int n) {\n"
        "  int i = blockIdx.x * block_size_x + threadIdx.x;\n  float sum = 0;\n"
        "  for (int j = 0; j < n; j++) sum += x[j] / (i + j + 1);\n  if (i < n) y[i] = sum;\n}\n"
    )
    vector = {"Type": "float", "MemoryType": "Vector", "Size": "ProblemSize[0]"}
    arguments = [
        {**vector, "Name": "y", "AccessType": "WriteOnly"}, {**vector, "Name": "x", "AccessType": "ReadOnly"},
        {"Name": "n", "Type": "int32", "MemoryType": "Scalar", "FillValue": 1 << 20},
    ]  # fmt: skip
    made = draft_of(from_t1(json.dumps(_t1(ProblemSize=[1 << 20], Arguments=arguments)), tmp_path / "t1.json"))
    assert made.smaller == "N=1048576" and made.study["N"] < 1 << 20 and (1 << 20) % made.study["N"] == 0
    assert "# The file's problem is N=1048576" in study_toml("k", made)


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("ceil_div(p.N, c.A)", ["c.A"]),
        ("ceil_div(p.N // c.A, c.B * c.C)", ["c.A * (c.B * c.C)"]),
        ("(p.N + c.A - 1) // c.A", ["c.A"]),
        ("p.N // c.A // c.B + 1", ["c.A * c.B"]),
        ("ceil_div(p.M, c.A)", []),
        ("p.N *", []),
    ],
)
def test_divisors_of_a_quotient_are_multiplied(text: str, units: list[str]) -> None:
    """A grid such as `ceil_div(p.N // A, B)` has one tile of A * B elements."""
    assert tile_units(text, "N") == units


def test_a_t1_file_that_contradicts_its_kernel_is_shown_with_both(tmp_path: Path) -> None:
    """Another element type, an array too small for the kernel, and the rule of a grid that rounds down twice."""
    (tmp_path / "k.cu").write_text(
        "#define T double\n#define T2 double2\n"
        "__global__ void k(T2* out, const float* x) {\n"
        "  int i = (blockIdx.x * block_size_x + threadIdx.x) * rows;\n"
        "  for (int j = 0; j < rows; j++) out[i + j] = make_double2(x[i + j], x[i + j + 3]);\n}\n"
    )
    vector = {"Type": "float", "MemoryType": "Vector", "Size": 4096}
    arguments = [
        {**vector, "Name": "y", "Type": "float2", "AccessType": "WriteOnly"},
        {**vector, "Name": "x", "AccessType": "ReadOnly"},
    ]
    rule = {"TargetName": "y", "ValidationThreshold": 0.25}
    changes = {"ProblemSize": [], "GlobalSize": {"X": "4096 // rows // block_size_x"}, "Arguments": arguments,
               "ReferenceArguments": [rule]}  # fmt: skip
    given = _t1(**changes)
    given["ConfigurationSpace"]["TuningParameters"] += [{"Name": "rows", "Values": [1, 2]}]
    made = draft_of(from_t1(json.dumps(given), tmp_path / "t1.json"))
    assert "the tuner passes f32 for out, but the kernel takes T2* (f64)" in " ".join(made.notes)
    assert made.tolerance["out"][:2] == (0.25, 0.0)
    rules = [text for name, text, _ in made.plan.constraints if name.startswith("whole_")]
    assert rules == ["divides(c.rows * c.block_size_x, p.SIZE_X)"]
    (tmp_path / "k.cu").write_text((tmp_path / "k.cu").read_text().replace("i + j + 3", "i + j + 200000"))
    made = draft_of(from_t1(json.dumps(given), tmp_path / "t1.json"))
    assert "with the tuner's sizes, an access is out of bounds in kernel.cu:" in " ".join(made.notes)
