"""Tasks of KernelBench: told without running them, run in a child with consent alone, drafted so that they check."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evokern.analysis.check.soundness import CheckResult, check_kernel
from evokern.cli.app import app
from evokern.declaration.torch_task import TorchTask, namespace, sizes_of
from evokern.errors import KernelError
from evokern.scaffold.torch_task.shapes import Fitted, fit, tied
from evokern.scaffold.torch_task.task import is_task
from evokern.study.discovery import load_kernel

TASK = '''
import torch
import torch.nn as nn

class Model(nn.Module):
    """A weighted sum of rows that are picked by an index, scaled."""
    def __init__(self, features, scale):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features))
        self.scale = scale

    def forward(self, table, index, shift):
        return self.scale * table[index] * self.weight + shift

rows = 64
picked = 8 * 16
features = 48
scale = 0.5

def get_inputs():
    print("HEARD")
    return [torch.rand(rows, features), torch.randint(0, rows, (picked,)), 1.5]

def get_init_inputs():
    return [features, scale]
'''
KERNEL = """
extern "C" __global__ void __launch_bounds__(BLOCK)
forward(const float* table, const long long* index, float number_1, const float* weight, float* out, int rows,
        int picked, int features) {
  const long long i = blockIdx.x * (long long)BLOCK + threadIdx.x;
  if (i >= (long long)picked * features) return;
  out[i] = 0.5f * table[index[i / features] * features + i % features] * weight[i % features] + number_1;
}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "7_Pick_.py").write_text(TASK, encoding="utf-8")
    return tmp_path


def failed(folder: Path) -> list[str]:
    """Names of the checks that fail."""
    findings: list[CheckResult] = list(check_kernel(load_kernel(folder)))
    return [finding.check for finding in findings if finding.ok is False]


@pytest.mark.thorough
def test_a_task_becomes_a_folder_that_checks_but_for_the_kernel(here: Path) -> None:
    """Reference, buffers, fields, parameters and bound come from the module; only the kernel is left to write."""
    done = CliRunner().invoke(app, ["init", "7_Pick_.py", "--trust", "--json"])
    assert done.exit_code == 0, done.output
    assert "HEARD" not in done.output
    facts = json.loads(done.stdout)
    assert facts["kernel"] == "Pick"
    folder = here / "kernels" / "Pick"
    names = [Path(file).relative_to(here).as_posix() for file in facts["files"]]
    assert names == [*(f"kernels/Pick/{name}" for name in ("kernel.cu", "kernel.py", "task.py")), "studies/Pick.toml"]
    assert (folder / "task.py").read_text(encoding="utf-8") == TASK
    assert 'problems = ["rows=64 picked=128 features=48"]' in (here / "studies" / "Pick.toml").read_text(
        encoding="utf-8"
    )
    kernel = load_kernel(folder)
    assert kernel.field_names == ["rows", "picked", "features"]
    problem = kernel.problem("10,20,30")
    tensors = kernel.workload.tensors(problem, kernel.space.default())
    assert {name: (one.dtype, one.shape, one.role) for name, one in tensors.items()} == {
        "table": ("f32", (10, 30), "input"),
        "index": ("i64", (20,), "input"),
        "weight": ("f32", (30,), "input"),
        "out": ("f32", (20, 30), "output"),
    }
    assert (tensors["index"].low, tensors["index"].high) == (0, 9)
    assert 0.3 < tensors["weight"].scale < 3
    assert "Tolerance" not in (folder / "kernel.py").read_text(encoding="utf-8")
    assert type(kernel.workload.error["out"]).__name__ == "PropagatedBound"
    assert [one.name for one in kernel.workload.baselines] == ["torch"]
    assert failed(folder) == ["simulated run"]
    (folder / "kernel.cu").write_text(
        (folder / "kernel.cu").read_text(encoding="utf-8").partition('extern "C"')[0] + KERNEL, encoding="utf-8"
    )
    assert failed(folder) == []


def test_a_task_runs_only_with_consent(here: Path) -> None:
    """Without --trust nothing runs and nothing is written."""
    (here / "mark.py").write_text(TASK + "\nopen('ran', 'w')\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["init", "mark.py"])
    assert done.exit_code == 2
    assert "--trust" in done.stderr
    assert sorted(path.name for path in here.iterdir()) == ["7_Pick_.py", "mark.py"]


def test_what_a_task_is_shows_in_its_text() -> None:
    """Three names at the top level, whatever else stands there; nothing runs to see it."""
    assert is_task(TASK)
    assert not is_task(TASK.replace("def get_init_inputs", "def others"))
    assert not is_task("extern int a;")
    assert not is_task("import kernel_tuner")


def test_sizes_are_whole_numbers_at_the_top() -> None:
    """Numbers, products, tuples; not what is assigned twice, computed, a float, negative or without bound."""
    text = (
        "a = 4\nb = 2 * 3\nshape = (5, a, 7)\nc = a * 2\nd = 1.5\ne = 1\ne = 2\nf = True\ng = 9 ** 9 ** 9\nh: int = 8\n"
    )
    assert sizes_of(text) == {"a": 4, "b": 6, "shape_0": 5, "shape_2": 7, "h": 8}


def test_a_file_runs_at_other_sizes() -> None:
    """What a file computes from a size follows it; a file that lacks a name is told which."""
    text = "n = 4\nshape = (n, 3)\ntwice = 2 * n\nclass Model: pass\ndef get_inputs(): return [n]\n"
    with pytest.raises(KernelError, match="get_init_inputs"):
        namespace(text, {})
    found = namespace(text + "def get_init_inputs(): return []\n", {"n": 10, "shape_1": 6})
    assert (found["n"], found["shape"], found["twice"], found["get_inputs"]()) == (10, (10, 6), 20, [10])


def test_a_file_runs_once_for_its_sizes(tmp_path: Path) -> None:
    """Draws of an argument are many, a few for each candidate: other sizes run the file again, other draws do not."""
    import torch

    text = (
        "import torch\nn = 4\nopen('PATH', 'a').write('.')\nclass Model: pass\n"
        "def get_inputs(): return [torch.randperm(n)]\ndef get_init_inputs(): return []\n"
    )
    ran = tmp_path / "ran"
    (tmp_path / "task.py").write_text(text.replace("PATH", str(ran)), encoding="utf-8")
    task, generator = TorchTask(tmp_path / "task.py"), torch.Generator().manual_seed(1)
    drawn = {tuple(task.argument({"n": 20}, 0, generator).tolist()) for _ in range(5)}
    assert [sorted(one) for one in drawn] == [list(range(20))] * 5
    assert len(task.argument({"n": 9}, 0, generator)) == 9
    assert ran.read_text() == ".."


Shape = Callable[[Mapping[str, int]], tuple[tuple[int, ...], ...] | None]


@pytest.mark.parametrize(
    ("own", "shapes", "found"),
    [
        ({"m": 64, "k": 32}, lambda s: ((s["m"], s["k"]),), Fitted({"m": 1, "k": 1}, (("p.m", "p.k"),))),
        ({"b": 8, "s": 32}, lambda s: ((s["b"] * s["s"], 3),), Fitted({"b": 1, "s": 1}, (("p.b * p.s", "3"),))),
        ({"n": 40}, lambda s: ((2 * s["n"], s["n"] - 4),), Fitted({"n": 1}, (("2 * p.n", "p.n - 4"),))),
        ({"h": 64}, lambda s: (((s["h"] + 2 - 3) // 2 + 1,),), Fitted({"h": 1}, (("(p.h + 1) // 2",),))),
        ({"a": 9, "b": 5}, lambda s: ((s["a"] + s["b"],),), Fitted({"a": 1, "b": 1}, (("p.a + p.b",),))),
        (
            {"n": 64, "groups": 8},
            lambda s: None if s["n"] % s["groups"] else ((s["n"],),),
            Fitted({"n": 8}, (("p.n",),)),
        ),
        ({"n": 10}, lambda s: ((s["n"] ** 2,),), Fitted({}, (("100",),))),
    ],
)
def test_extents_become_formulas(own: Mapping[str, int], shapes: Shape, found: Fitted) -> None:
    """Products, sums and windows are recognised; a size that must be a multiple says so; the rest stays a number."""
    assert fit(own, shapes) == found


def test_sizes_that_must_be_equal_are_one_field() -> None:
    """Of two sizes that cannot change alone the first one stands for both."""

    def shapes(sizes: Mapping[str, int]) -> tuple[tuple[int, ...], ...] | None:
        return ((sizes["m"], sizes["n"]),) if sizes["m"] == sizes["n"] else None

    assert tied({"m": 16, "n": 16, "other": 16}, shapes) == {"n": "m"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("return [features, scale]", "raise OSError('no such data')"), "OSError: no such data"),
        (("rows = 64", "import os\nos._exit(7)\nrows = 64"), "exited with 7"),
        (("1.5]", "'text']"), "cannot be run"),
    ],
)
@pytest.mark.slow
def test_a_task_affects_only_its_child_process(here: Path, change: tuple[str, str], said: str) -> None:
    """A task that fails, leaves, or passes what no kernel takes is a mistake of its file, told in a sentence."""
    (here / "bad.py").write_text(TASK.replace(*change), encoding="utf-8")
    done = CliRunner().invoke(app, ["init", "bad.py", "--trust"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert not (here / "kernels").exists()


def test_the_stub_takes_no_name_of_the_task_s() -> None:
    """A size called `i` is the stub's parameter, so the stub counts elements under another name."""
    from evokern.scaffold.torch_task.child import kernel_cu
    from evokern.scaffold.torch_task.probe import Probe, TaskTensor

    x, out = TaskTensor("x", "f32", ("p.i", "p.j")), TaskTensor("out", "f32", ("p.i",))
    fields = {"i": (1, 16), "j": (1, 32)}
    text = kernel_cu("sums", "sums.py", Probe(fields, (x, 2, 0.5), (), (out,), (), True, False, {}, ()))
    assert (
        "forward(const float* __restrict__ x, int number_1, float number_2, float* __restrict__ out, int i, int j)"
        in text
    )
    assert "if (element >= (long long)i) return;" in text


@pytest.mark.thorough
def test_numbers_that_hang_together_are_drawn_by_the_task(here: Path) -> None:
    """A permutation and sorted offsets come from `get_inputs`, by the gate's generator; labels are drawn by range."""
    import torch

    from evokern.scaffold.torch_task.child import kernel_py
    from evokern.scaffold.torch_task.probe import probe

    text = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x, order, offsets, labels):
        return x[order] + offsets.sum() + labels[:, None]

rows = 64

def get_inputs():
    offsets = torch.randint(0, 100, (16,)).sort().values
    return [torch.rand(rows, 8), torch.randperm(rows), offsets, torch.randint(0, 3, (rows,))]

def get_init_inputs():
    return []
"""
    folder = here / "kernels" / "order"
    folder.mkdir(parents=True)
    (folder / "task.py").write_text(text, encoding="utf-8")
    (folder / "kernel.cu").write_text("", encoding="utf-8")
    declared = kernel_py("order", "order.py", probe(text, "order.py"), {})
    (folder / "kernel.py").write_text(declared, encoding="utf-8")
    kernel = load_kernel(folder)
    tensors = kernel.workload.tensors(kernel.problem("20"), kernel.space.default())
    drawn = {name: tensor.draw for name, tensor in tensors.items()}
    assert {name for name, draw in drawn.items() if draw} == {"order", "offsets"}
    assert (tensors["order"].change, tensors["labels"].change) == ("nothing", "elements")
    generator = torch.Generator().manual_seed(1)
    order, again = (drawn["order"](generator) for _ in range(2))  # type: ignore[misc]
    assert sorted(order.tolist()) == list(range(20))
    assert order.tolist() != again.tolist()
    offsets = drawn["offsets"](generator).tolist()  # type: ignore[misc]
    assert offsets == sorted(offsets)
    same = drawn["order"](torch.Generator().manual_seed(1))  # type: ignore[misc]
    assert torch.equal(order, same)
