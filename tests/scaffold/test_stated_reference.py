"""`init --reference --example`: the reference is written into the draft, compared, and decides what is open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.cuda_source import read
from evokern.declaration.kernel import Kernel
from evokern.errors import UsageError
from evokern.scaffold.draft import Draft, draft
from evokern.scaffold.example import with_example
from evokern.study.discovery import find_kernel, find_study
from evokern.tuning.draft_reference import with_reference
from evokern.tuning.stated_reference import stated_reference

TRANSPOSE = """
__global__ void turn(const float* a, float* b, int width, int height) {
  int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
  if (x < width && y < height) b[x * height + y] = a[y * width + x];
}
void start(const float* a, float* b, int width, int height) {
  dim3 grid((width + 15) / 16, (height + 15) / 16), block(16, 16);
  turn<<<grid, block>>>(a, b, width, height);
}
"""
ROWS = """
__global__ void rows(const float* x, float* total, float* y, int n, int m, float scale) {
  int row = blockIdx.x * 32 + threadIdx.x;
  if (row >= n) return;
  float sum = 0;
  for (int i = 0; i < m; i++) sum += x[row * m + i];
  total[row] = sum;
  y[row] = total[row] * scale;
}
void start(const float* x, float* t, float* y, int n, int m, float s) { rows<<<(n + 31) / 32, 32>>>(x, t, y, n, m, s); }
"""
FUNCTIONS = """
import torch
FACTOR = 1.0
def turned(a): return FACTOR * a.T
def named(height, a): return a.T + 0 * height
def mapped(a): return {"b": a.T}
def listed(a): return [a.T]
def wrong_key(a): return {"c": a.T}
def number(a): return 3
def nothing(a): pass
def array(a): return a.numpy().T
def short(a): return a[:1]
def single(a): return a.T.float()
def changing(a): return a.mul_(2).T
def raising(a): raise RuntimeError("boo")
def three(x, y, z): return x
value = 3
"""


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> Draft:
    """The draft of a transposition, without a reference."""
    path = tmp_path_factory.mktemp("turn") / "turn.cu"
    path.write_text(TRANSPOSE)
    return draft(read(path), None)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with kernels and functions."""
    (tmp_path / "turn.cu").write_text(TRANSPOSE)
    (tmp_path / "rows.cu").write_text(ROWS)
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _drafted(file: str, *options: str) -> tuple[Kernel, str]:
    done = CliRunner().invoke(app, ["init", file, *options])
    assert done.exit_code == 0, done.output
    name = file.removesuffix(".cu")
    return find_kernel(name), (Path("kernels") / name / "kernel.py").read_text()


def test_a_reference_completes_the_draft(here: Path) -> None:
    """Reference, baseline, bound and study are there; nothing is left to write, and no reference.h is needed."""
    kernel, text = _drafted(
        "turn.cu", "--reference", "torch:transpose(dim0=0, dim1=1)", "--example", "width=70 HEIGHT=90"
    )
    assert 'return {"b": torch.transpose(t["a"], dim0=0, dim1=1)}' in text
    assert "TODO" not in text.partition("\n")[2]
    assert [one.name for one in kernel.workload.baselines] == ["transpose"]
    assert (kernel.workload.cpp_reference, kernel.workload.tolerance["b"].bound is None) == (False, False)
    assert find_study("turn").problems == ("WIDTH=70 HEIGHT=90",)
    assert not (here / "kernels" / "turn" / "reference.h").exists()


def test_a_function_of_a_file_is_kept_with_the_kernel(here: Path) -> None:
    """The file is copied next to kernel.py, so the kernel's digest covers it and the original is not needed."""
    kernel, _ = _drafted("turn.cu", "--reference", "functions:turned")
    (here / "functions.py").unlink()
    assert "reference.py" in [file.name for file in find_kernel("turn").files()]
    assert [one.name for one in kernel.workload.baselines] == ["turned"]


def test_values_decide_outputs_and_numbers(here: Path) -> None:
    """A buffer that the reference does not return is a workspace; the unknown number is the one that fits."""
    kernel, text = _drafted("rows.cu", "--reference", "lambda x: x.sum(1) / x.shape[1] ** 0.5")
    tensors = kernel.workload.tensors(kernel.problem("5,7"), kernel.space.default())
    assert {name: one.role for name, one in tensors.items()} == {"x": "input", "total": "workspace", "y": "output"}
    assert 'Scalar("f32", p.M ** -0.5)' in text


def test_values_decide_the_order_of_axes(turned: Draft) -> None:
    """If the drafted axes are swapped, the reference's values restore them."""
    given = replace(turned, tensors=tuple(replace(t, shape=t.shape[::-1]) for t in turned.tensors))
    made = with_reference(given, stated_reference("lambda a: a.T"), example=False)
    assert {t.name: t.shape for t in made.tensors} == {t.name: t.shape for t in turned.tensors}
    assert made.stated is not None
    assert made.stated.differs == ""


def test_a_difference_is_stated_with_the_first_element(turned: Draft) -> None:
    """The draft is written, and a TODO names the element with both values."""
    made = with_reference(turned, stated_reference("lambda a: 2 * a.T"), example=False)
    assert made.stated is not None
    assert "b[0, 0] is 0.12573 in a run of the default candidate at" in made.stated.differs
    assert "and 0.25146 in the reference" in made.stated.differs


@pytest.mark.parametrize("name", ["turned", "named", "mapped", "listed"])
def test_forms_of_references(here: Path, turned: Draft, name: str) -> None:
    """Inputs in order or by name; a tensor, a list or a mapping."""
    made = with_reference(turned, stated_reference(f"functions.py:{name}"), example=False)
    assert made.stated is not None
    assert made.stated.differs == ""


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("functions.py:wrong_key", "with the keys c; name the outputs of the draft: b"),
        ("functions.py:number", "it returned int; return a torch tensor"),
        ("functions.py:nothing", "it returned None; return a torch tensor"),
        ("functions.py:array", "it returned ndarray; return a torch tensor"),
        ("functions.py:short", "returned shape (1, "),
        ("functions.py:single", "returned float32 for output b; it gets float64 inputs"),
        ("functions.py:changing", "it changes an input in place; return a new tensor"),
        ("functions.py:raising", "raised RuntimeError: boo (float64 inputs: a ("),
        ("functions.py:value", "value is int, not a function; name a function"),
        ("functions.py:absent", "functions.py has no function absent: known: turned"),
        ("absent.py:f", "there is no file absent.py; check the path"),
        ("absent:f", "No module named 'absent'; check its name"),
        ("torch.nn.functional.softmax", "write for example torch.nn.functional:softmax"),
        ("torch.nn.functional:softmx", "did you mean 'softmax'?"),
        ("torch:transpose(0, 1)", "may contain only keyword arguments"),
        ("lambda a: np.sin(a)", "np is unknown; a lambda may use its parameters, torch, F"),
        ("lambda a, b: a", "must take the kernel's inputs, (a), or name its parameters"),
        ("lambda a", "the lambda is not valid Python"),
    ],
)
def test_an_unsuitable_reference_is_refused(here: Path, turned: Draft, given: str, told: str) -> None:
    """One sentence says what is wrong and what to do."""
    with pytest.raises(UsageError) as error:
        with_reference(turned, stated_reference(given), example=False)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("width=3", "lacks HEIGHT; give a value for each field: WIDTH=3 HEIGHT=..."),
        ("width=3 height=4 depth=5", "has no field 'depth': did you mean 'WIDTH'? known: WIDTH, HEIGHT"),
        ("width=3 height", "'height' is not NAME=VALUE"),
        ("width=3 height=0", "HEIGHT=0 is not a whole number of at least 1"),
        ("width=3 width=4 height=5", "gives width twice"),
        ("", "is not NAME=VALUE"),
    ],
)
def test_an_unsuitable_example_is_refused(turned: Draft, text: str, told: str) -> None:
    """The message lists the fields."""
    with pytest.raises(UsageError) as error:
        with_example(turned, text)
    assert told in str(error.value)
