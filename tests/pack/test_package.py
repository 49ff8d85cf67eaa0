"""Packages on a CPU: self-test, errors, fallback, determinism, and what cannot become an operator."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from packed import install, run_python
from paths import DATA, ROOT
from typer.testing import CliRunner

from evokern.cli.app import app
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Baseline, Kernel
from evokern.errors import KernelError, UsageError
from evokern.hardware.profiles import CHIPS
from evokern.pack import write_package
from evokern.pack.baseline_code import baseline_module, baselines_of
from evokern.pack.folder import licence_of, package_name
from evokern.pack.from_study import describe
from evokern.pack.operator_code import Description, cpp_code, python_code
from evokern.pack.package.operator import Operator
from evokern.pack.variant import variant_of
from evokern.study.discovery import find_kernel, load_kernel

NORM = ("ROWS=64 COLS=1024", "ROWS=64 COLS=1024 dtype=bf16", "ROWS=64 COLS=512")


def described(kernel: Kernel, package: str, *problems: str, **changes: Any) -> Description:
    """Return an operator with one candidate for each problem."""
    config = kernel.space.canonical(Config({**kernel.space.default(), **changes}))
    made = [variant_of(kernel, config, kernel.problem(one), CHIPS["l4"], f"default at {one}") for one in problems]
    return describe(kernel, package, tuple(made))


@pytest.fixture(scope="module")
def norm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of three variants with two data types."""
    folder, kernel = tmp_path_factory.mktemp("packages") / "my_norm", find_kernel("rmsnorm")
    write_package(folder, described(kernel, "my_norm", *NORM), baselines_of(kernel), {})
    return folder


@pytest.fixture(scope="module")
def package(norm: Path) -> Iterator[Any]:
    """The same package, imported."""
    sys.path.insert(0, str(norm))
    yield import_module("my_norm")
    sys.path.remove(str(norm))


def inputs(dtype: torch.dtype = torch.float16) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs of the packed operator."""
    return torch.randn(64, 1024).to(dtype), torch.randn(1024).to(dtype)


def test_an_installed_package_passes_its_self_test(norm: Path, tmp_path: Path) -> None:
    """Installed without an index or a compiler, it checks dispatch, schema, fake implementation and errors."""
    install(norm, tmp_path / "installed")
    shown = run_python(tmp_path / "installed", "-m", "my_norm.selftest")
    assert "all checks passed" in shown
    assert "ok      C++ and Python dispatch agree: 10000 shapes" in shown
    assert "ok      opcheck: test_schema" in shown


def test_a_cpu_tensor_goes_to_the_baseline_and_is_counted(package: Any) -> None:
    """Results are those of torch's own function, for each data type."""
    for dtype in (torch.float16, torch.bfloat16):
        x, weight = inputs(dtype)
        before = package.stats()["baselines"].get("torch: the inputs are on cpu", 0)
        torch.testing.assert_close(package.rmsnorm(x, weight), torch.rms_norm(x, (1024,), weight, 1e-5))
        assert package.stats()["baselines"]["torch: the inputs are on cpu"] == before + 1
    assert str(package.explain(x, weight)) == "baseline torch: the inputs are on cpu"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, w: (x.double(), w), "x has the data type torch.float64; the operator takes torch.float16 or"),
        (lambda x, w: (x, w.bfloat16()), "weight has the data type torch.bfloat16"),
        (lambda x, w: (x[0], w), "x has 1 dimensions; the operator takes 2"),
        (lambda x, w: (x[:0], w), "x has no elements: its shape is [0, 1024]"),
        (lambda x, w: (x[:, ::2], w[:512]), "x is not contiguous: it has the shape [64, 512] and the strides"),
        (lambda x, w: (x, w[:512]), "weight has the shape [512], but with the other inputs it must have [1024]"),
        (lambda x, w: (x, w.to("meta")), "weight is on meta, but x is on cpu"),
        (
            lambda x, w: (torch.empty(1, dtype=x.dtype).expand(2**16, 2**15), w),
            "x has 2147483648 elements; the operator takes fewer than 2^31",
        ),
    ],
)  # fmt: skip
def test_a_wrong_input_is_refused_with_its_reason(package: Any, change: Any, message: str) -> None:
    """The function, the operator, and its fake implementation give the same reason."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    given = change(*inputs())
    for call in (package.rmsnorm, torch.ops.my_norm.rmsnorm, package.explain):
        with pytest.raises(RuntimeError) as caught:
            call(*given)
        assert f"my_norm::rmsnorm: {message}" in str(caught.value)
    if given[1].device.type == "cpu":
        with FakeTensorMode() as mode, pytest.raises(RuntimeError) as caught:
            torch.ops.my_norm.rmsnorm(*map(mode.from_tensor, given))
        assert message in str(caught.value)


def test_a_result_with_too_many_elements_is_refused() -> None:
    """The inputs of a product of a column and a row may be small; C++ and Python compare the result with 2^31."""
    made = described(find_kernel("matmul"), "outer", "M=64 N=512 K=512")
    assert "(shape.m) * (shape.n) <= MOST_ELEMENTS" in cpp_code(made)
    namespace: dict[str, Any] = {}
    exec(python_code(made), namespace)
    rules = SimpleNamespace(**namespace)
    operator = SimpleNamespace(
        rules=rules, title="outer::matmul", fixed=False, _mode_of=lambda inputs: 0,
    )  # fmt: skip
    large = [torch.empty(65536, 1).half(), torch.empty(1, 65536).half()]
    with pytest.raises(RuntimeError, match="the result c has 4294967296 elements; the operator takes fewer than 2"):
        Operator.shape_of(operator, large, [])  # type: ignore[arg-type]
    assert Operator.shape_of(operator, [large[0][:9].clone(), large[1]], []).m == 9  # type: ignore[arg-type]


def test_a_package_contains_the_licence_of_its_kernel(norm: Path, tmp_path: Path) -> None:
    """The file is in the kernel's folder, or next to the folder `kernels`; without one, the origin says so."""
    assert (norm / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    kernel = load_kernel(shutil.copytree(DATA / "kernels" / "scale_rows", tmp_path / "own" / "scale_rows"))
    assert licence_of(kernel) is None
    (kernel.folder / "LICENSE.txt").write_text("mine")
    assert licence_of(kernel) == b"mine"


def test_a_copy_is_made_on_request(package: Any) -> None:
    """With `copy=True`, an input with gaps is copied first."""
    x, weight = inputs()
    wide = torch.stack([x, x], -1)[..., 0]
    assert torch.equal(package.rmsnorm(wide, weight, copy=True), package.rmsnorm(x, weight))


def test_a_gradient_is_refused_in_one_sentence(package: Any) -> None:
    """The forward pass works with a parameter, and the backward pass gives the reason."""
    x, weight = inputs()
    result = package.rmsnorm(x, weight.requires_grad_())
    with pytest.raises(RuntimeError, match=r"^my_norm::rmsnorm has no gradient; call it under torch.no_grad\(\)"):
        result.sum().backward()


def test_a_graph_of_any_size_compiles_without_a_break(package: Any) -> None:
    """`torch.compile` traces the function as one graph, also with symbolic sizes."""
    torch._dynamo.reset()
    function = torch.compile(
        lambda x, w: package.rmsnorm(x * 2, w) + 1, fullgraph=True, backend="aot_eager", dynamic=True
    )
    for rows in (3, 64, 65):
        x, weight = torch.randn(rows, 1024).half(), torch.randn(1024).half()
        assert torch.equal(function(x, weight), package.rmsnorm(x * 2, weight) + 1)


def test_an_unknown_architecture_runs_the_baseline_with_one_warning(
    package: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that no variant was compiled for is named once; its calls are counted."""
    operator = package._operator
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    shape = operator.rules.Shape(75, 0, 64, 1024)
    on_gpu = [_on_gpu(one) for one in inputs()]
    with pytest.warns(UserWarning, match="variants for sm_89, but Tesla T4 is sm_75; its calls run the baseline"):
        assert operator._choice(on_gpu, shape) == (None, 0, "no variant for sm_75")
    with warnings.catch_warnings(action="error"):
        assert operator._choice(on_gpu, shape)[0] is None
    assert operator._choice(on_gpu, shape._replace(evokern_sm=89))[0] == 0
    assert operator._choice(on_gpu, shape._replace(evokern_sm=89, cols=512))[0] == 2
    other = operator._choice(on_gpu, shape._replace(evokern_sm=89, cols=2048))
    assert other == (None, 0, "cols == 1024 must hold: the program was compiled for this value")


@pytest.mark.thorough
def test_the_same_operator_gives_the_same_bytes(norm: Path, tmp_path: Path) -> None:
    """Written again in another folder, each file is the same; so is the wheel, which names no Python version."""
    kernel = find_kernel("rmsnorm")
    write_package(tmp_path / "my_norm", described(kernel, "my_norm", *NORM), baselines_of(kernel), {})
    files = sorted(p.relative_to(norm) for p in norm.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    assert files == sorted(
        p.relative_to(tmp_path / "my_norm") for p in (tmp_path / "my_norm").rglob("*") if p.is_file()
    )
    assert [f for f in files if (norm / f).read_bytes() != (tmp_path / "my_norm" / f).read_bytes()] == []
    wheels = []
    for folder in (norm, tmp_path / "my_norm"):
        shown = run_python(folder, "-c", "import build_wheel; print(build_wheel.build_wheel('.'))").strip()
        assert shown == "my_norm-1.0-py3-none-linux_x86_64.whl"
        wheels.append((folder / shown).read_bytes())
        (folder / shown).unlink()
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    assert wheels[0] == wheels[1]


def test_without_a_compiler_the_launch_is_python(norm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package says so, and has no library."""
    monkeypatch.setattr("evokern.pack.library.host_compiler", lambda: None)
    kernel = find_kernel("rmsnorm")
    written = write_package(tmp_path / "plain", described(kernel, "plain", NORM[0]), baselines_of(kernel), {})
    assert written.launch == "Python, because there is no C++ compiler (c++, g++ or clang++) on PATH"
    assert not (tmp_path / "plain/plain/operator.so").exists()
    script = "import plain, torch; x = torch.ones(64, 1024).half(); print(plain.rmsnorm(x, x[0]).sum(), plain.stats())"
    shown = run_python(tmp_path / "plain", "-c", script)
    assert "kernels are launched from Python, because the package was built without a C++ compiler" in shown


def test_an_input_that_is_changed_stays_an_input(tmp_path: Path) -> None:
    """An `inout` buffer is a mutated argument, and the operator returns nothing else."""
    kernel = load_kernel(shutil.copytree(DATA / "kernels" / "scale_rows", tmp_path / "scale_rows"))
    tensors = kernel.workload.tensors
    name = next(n for n, t in tensors(kernel.problem("64,256"), kernel.space.default()).items() if t.role == "output")

    def changed(p: Any, c: Any) -> dict[str, Any]:
        return {n: replace(t, role="inout") if n == name else t for n, t in tensors(p, c).items()}

    own = replace(kernel, workload=replace(kernel.workload, tensors=changed))
    made = described(own, "changing", "64,256")
    assert made.signature.arguments_schema.count("Tensor(a!)") == 1
    assert made.signature.outputs == ()


# ---- what cannot be packed


def test_a_constant_array_is_refused() -> None:
    """Two streams would overwrite it."""
    kernel = load_kernel(DATA / "kernels" / "polynomial")
    problem = kernel.workload.small_problems[0]
    with pytest.raises(KernelError, match="__constant__ array before each call, so two calls on different streams"):
        described(kernel, "constant", problem)


def test_declared_state_is_refused() -> None:
    """An operator cannot restore module variables."""
    kernel = load_kernel(DATA / "kernels" / "state")
    with pytest.raises(KernelError, match="declares as state to restore before each call"):
        described(kernel, "stateful", kernel.workload.small_problems[0], KEEPS="restored")


def test_code_with_module_variables_is_loaded_for_each_stream() -> None:
    """A split along K with tickets keeps a counter between calls."""
    made = described(find_kernel("matmul"), "split", "M=64 N=512 K=512", SPLIT_K=2, MERGE="ticket")
    assert [table["keeps_state"] for table in made.tables()] == [True]


def test_other_inputs_are_another_operator() -> None:
    """Problems with and without a residual have different inputs; those with two layouts have the same types."""
    with pytest.raises(KernelError, match="residual=add has other inputs or outputs than dtype=f16 residual=none"):
        described(find_kernel("rmsnorm"), "two", NORM[0], NORM[0] + " residual=add")
    with pytest.raises(KernelError, match=r"the data types of the inputs do not distinguish .*layout=nt"):
        described(find_kernel("matmul"), "two", "M=64 N=512 K=512", "M=64 N=512 K=512 layout=nt")


def test_a_baseline_must_stand_alone() -> None:
    """A baseline that uses evokern, or compiles itself, is left out; the reference takes its place."""
    source = """
from evokern import Baseline, Workload, divides
import torch

def slow(p, t):
    return divides(2, 4)

def double(p, t):
    return {"y": 2 * t["x"]}

work = Workload(reference=double, baselines=(Baseline("a", slow), Baseline("b", torch.compile(double))))
"""
    kernel = load_kernel(DATA / "kernels" / "dial")
    given = tuple(Baseline(name, lambda p, t: {}) for name in "ab")
    kernel = replace(kernel, workload=replace(kernel.workload, baselines=given))
    found = baseline_module(kernel, source)
    assert found.names == ("float64 reference",)
    assert found.left_out == ("a: it uses divides of evokern", "b: it compiles itself at each shape")
    namespace: dict[str, Any] = {}
    exec(found.text, namespace)
    assert namespace["BASELINES"][0][1]({}, {"x": torch.ones(1)})["y"].item() == 2.0


def test_a_reference_of_another_file_of_the_folder_is_copied(tmp_path: Path) -> None:
    """`evokern init --reference FILE.py:function` writes such a declaration; equal names do not disturb each other."""
    folder = Path(shutil.copytree(DATA / "kernels" / "dial", tmp_path / "dial"))
    (folder / "reference.py").write_text(
        "import math\ndef double(x):\n    return math.sqrt(4) * x\n"
        + """
def own(x):
    return double(x)
"""
    )
    source = """
from pathlib import Path as P
from evokern import Workload
from evokern.declaration.loading import load_name
own = load_name(P(__file__).with_name("reference.py"), "own")

def double(p, t):
    return {"y": own(t["x"])}

work = Workload(reference=double)
"""
    found = baseline_module(load_kernel(folder), source)
    namespace: dict[str, Any] = {}
    exec(found.text, namespace)
    assert namespace["REFERENCE"]({}, {"x": torch.ones(1)})["y"].item() == 2.0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torch", "is the name of another package"),
        ("json", "is the name of another package"),
        ("1x", "cannot be imported"),
        ("class", "cannot be imported"),
    ],
)
def test_a_package_needs_a_name_of_its_own(name: str, message: str, tmp_path: Path) -> None:
    """The folder names the package."""
    with pytest.raises(UsageError, match=message):
        package_name(tmp_path / name)
    assert package_name(tmp_path / "My-norm") == "my_norm"


def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path) -> None:
    """Only an earlier package is replaced."""
    (tmp_path / "notes.txt").write_text("mine")
    kernel = find_kernel("rmsnorm")
    with pytest.raises(UsageError, match="contains other files; choose a new or empty folder"):
        write_package(tmp_path, described(kernel, "mine", NORM[0]), baselines_of(kernel), {})


@pytest.mark.thorough
def test_the_command_packs_a_verified_champion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unverified one is refused with the command that verifies it; `--force` packs it and records that."""
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text('kernel = "rmsnorm"\nproblems = ["ROWS=8 COLS=64"]\ndevice = "sim:l4"\ntrials = 2\n')
    run = CliRunner().invoke
    assert run(app, ["search", "s.toml", "--db", "s.db", "--no-verify"]).exit_code == 0
    command = ["export", "s", "--db", "s.db", "--format", "torch", "-o", "my_op"]
    refused = run(app, command)
    assert refused.exit_code == 2
    assert "is not verified" in refused.output
    assert "use --force to pack it anyway" in refused.output
    done = run(app, [*command, "--force", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["operator"] == "my_op::rmsnorm"
    facts = json.loads(Path("my_op/my_op/provenance.json").read_text())
    assert facts["variants"][0]["machine_code"] == "as measured"
    assert facts["variants"][0]["verification"]["verified"] is None


class _OnGpu(torch.Tensor):
    """A tensor that claims to be on a GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Return a GPU."""
        return torch.device("cuda", 0)


def _on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(_OnGpu)
