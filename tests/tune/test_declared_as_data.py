"""A kernel declared by a call: what is stored, what changes are named, and what the reference gets."""

from __future__ import annotations

import functools
import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import evokern
from evokern.declaration.as_data import declared
from evokern.declaration.as_data.changes import declaration_changes, newest_texts
from evokern.declaration.as_data.declared import DECLARATION, content_of, declared_kernel
from evokern.declaration.kernel import Kernel
from evokern.export.banner import Provenance
from evokern.export.golden import golden_of
from evokern.export.standalone import standalone_program
from evokern.gate.comparison import tolerances
from evokern.gate.data import draw
from evokern.hardware.profiles import CHIPS
from evokern.progress.terminal import TerminalBar, share_of
from evokern.search import Progress
from evokern.search.stored_kernel import stored_kernel
from evokern.tuning.call import tuned_kernel
from evokern.tuning.options import TuneOptions
from evokern.tuning.reference import _code_text, digest_of, import_path, imported, place_of, register_reference

SOURCE = """
__global__ void add(const float* x, const int* index, float* y, float factor, int n) {
  int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i < n) y[i] += factor * x[index[i]];
}
"""


def reference(x: Any, index: Any, y: Any, factor: float, n: int) -> Any:
    assert index.dtype in (torch.int32, np.int32) and n == 64
    return y + factor * x[index.long() if isinstance(index, torch.Tensor) else index]


def made(stored: Any = None, **changes: Any) -> Kernel:
    """Return the kernel of a call."""
    generator = torch.Generator().manual_seed(changes.pop("seed", 0))
    x = torch.rand(64, generator=generator) + 1
    index = torch.randint(0, 64, (64,), generator=generator, dtype=torch.int32)
    arguments: dict[str, Any] = {
        "source": SOURCE, "entry": "add", "args": [x, index, evokern.inout(torch.zeros(64)), 0.5, 64],
        "params": {"BLOCK": [32, 64]}, "grid": lambda p: 64 // p.BLOCK, "block": lambda p: p.BLOCK,
        "reference": reference, "tolerance": 1e-5,
    }  # fmt: skip
    return tuned_kernel(TuneOptions(**{**arguments, **changes}), stored).kernel


def texts(kernel: Kernel) -> dict[str, str]:
    assert kernel.content is not None
    return kernel.content.stored(kernel.folder)


def test_values_stay_in_the_range_of_the_example() -> None:
    """Floating-point inputs are drawn within the range, integers keep their values, and zeros stay zeros."""
    kernel = made()
    tensors = kernel.workload.tensors(kernel.problem({}), kernel.space.default())
    low, high = tensors["x"].span or (0, 0)
    assert 1 <= low < high <= 2
    generator = torch.Generator().manual_seed(1)
    for kind in ("normal", "large", "equal_rows", "denormal", "edges"):
        values = {name: torch.empty(64, dtype=torch.int32 if name == "index" else torch.float32) for name in tensors}
        for name, tensor in tensors.items():
            draw(tensor, kind, values[name], generator)  # type: ignore[arg-type]
        assert float(values["x"].min()) >= low and float(values["x"].max()) <= high
        assert bool((values["y"] == 0).all())
        assert torch.equal(values["index"], made().workload.tensors(kernel.problem({}), None)["index"].draw(generator))  # type: ignore[arg-type,misc]


def test_the_reference_gets_inputs_and_numbers_in_order() -> None:
    """Inputs are float64, integers keep their dtype, and an output that is read is an input too."""
    kernel = made()
    x, y = torch.rand(64, dtype=torch.float64), torch.rand(64, dtype=torch.float64)
    index = torch.arange(64, dtype=torch.float64)
    found = kernel.workload.reference(kernel.problem({}), {"x": x, "index": index, "y": y})
    assert list(found) == ["y"] and torch.equal(found["y"], y + 0.5 * x)


def test_numpy_functions_get_numpy_arrays() -> None:
    """The reference gets arrays of the library of the examples."""
    seen: list[type] = []

    def double(x: Any) -> Any:
        seen.append(type(x))
        return 2 * x

    x = np.random.default_rng(0).random(8, np.float32)
    source = SOURCE.replace("const int* index, ", "").replace("x[index[i]]", "x[i]").replace("+=", "=")
    kernel = made(source=source, args=[x, evokern.out_like(x), 2.0, 8], reference=double)
    values = torch.rand(8, dtype=torch.float64)
    assert torch.equal(kernel.workload.reference(kernel.problem({}), {"x": values})["y"], 2 * values)
    assert seen[-1] is np.ndarray


def test_the_database_suffices_to_load_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Geometry, buffers and genes come from the stored texts; only the reference is missing."""
    kernel = made()
    stored = texts(kernel)
    monkeypatch.setattr(declared, "_registered", {})  # as in another process
    loaded = declared_kernel(tmp_path, content_of(stored, tmp_path))
    problem, config = loaded.problem({}), loaded.space.default()
    assert loaded.genes == kernel.genes and loaded.launches(config, problem) == kernel.launches(config, problem)
    with pytest.raises(evokern.UsageError, match=r"pass --reference .*test_declared_as_data:reference"):
        loaded.workload.reference(problem, {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": SOURCE.replace("+=", "+= 1.f *")}, "the source changed (add.cu)"),
        ({"args": [torch.rand(32) + 1, torch.zeros(32, dtype=torch.int32), evokern.inout(torch.zeros(32)), 0.5, 64]},
         "args[0] was x f32[64], is x f32[32]"),
        ({"reference": lambda x, index, y: y + x[index.long()] / 2}, "the reference changed"),
        ({"grid": lambda q: (64 // q.BLOCK, 1)}, ""),
        ({"grid": lambda p: 128 // p.BLOCK}, "grid changed"),
        ({"tolerance": 1e-3}, "tolerance changed"),
        ({"draw": {"x": (0, 1)}}, "args[0] (x) are drawn otherwise"),
    ],
)  # fmt: skip
def test_a_change_is_named(changes: dict[str, Any], message: str) -> None:
    """Another source, argument list, reference or geometry is named; one that means the same is none."""
    before = texts(made())
    found = declaration_changes(before, texts(made(before, **changes)))
    assert message in "; ".join(found) if message else before == texts(made(before, **changes))


@pytest.mark.parametrize(
    "source",
    [
        "// a comment\n" + SOURCE,
        SOURCE.replace("int i =", "int   i /* index */ =").replace("\n", "\n\n"),
        SOURCE.replace("__global__ void", "__global__\nvoid"),
        SOURCE.replace("\n", "  \r\n"),
    ],
)
def test_comments_and_white_space_are_no_change(source: str) -> None:
    """The compiler sees the same code; the new text is the one that exports use."""
    ran, now = texts(made()), texts(made(source=source))
    assert ran != now and declaration_changes(ran, now) == [] and newest_texts(ran, now) is now
    assert declaration_changes(texts(made(source=SOURCE + "#define X 1")), now) == ["the source changed (add.cu)"]


def test_a_name_in_a_condition_is_no_change() -> None:
    """The text of a condition is for messages only."""
    before = texts(made(where=lambda p: p.BLOCK < 100))
    assert declaration_changes(before, texts(made(where=lambda  q: ( q.BLOCK < 100 )))) == []  # fmt: skip
    assert declaration_changes(before, texts(made(where=lambda p: p.BLOCK < 50))) == ["where changed"]


def test_a_renamed_file_is_no_change(tmp_path: Path) -> None:
    """The code of a source counts, not its name; a header that changed is named."""
    for name, factor in (("one", 1), ("two", 1), ("three", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f.cuh").write_text(f"#define F {factor}")
        (tmp_path / name / f"{name}.cu").write_text('#include "f.cuh"' + SOURCE)
    one, two, three = (texts(made(source=tmp_path / name / f"{name}.cu")) for name in ("one", "two", "three"))
    assert declaration_changes(one, two) == []
    assert declaration_changes(one, three) == ["the source changed (f.cuh)"]


def test_unseeded_examples_are_no_change() -> None:
    """A study keeps the ranges and values of its first call."""
    before = texts(made(seed=0))
    assert texts(made(before, seed=1)) == before
    assert texts(made(seed=1)) != before


@pytest.mark.parametrize("text", ["__import__('os')", "c.__class__", "(lambda: 1)()", "[1 for _ in 'a']", "open('f')"])
def test_a_stored_declaration_runs_no_code(text: str, tmp_path: Path) -> None:
    """Expressions of a database are arithmetic only."""
    stored = texts(made())
    data = json.loads(stored[DECLARATION])
    data["grid"] = {"cases": [{"when": [], "value": [text, "1", "1"]}]}
    loaded = declared_kernel(tmp_path, content_of({**stored, DECLARATION: json.dumps(data)}, tmp_path))
    with pytest.raises(ValueError, match="is not an arithmetic expression"):
        loaded.launches(loaded.space.default(), loaded.problem({}))


def test_a_database_that_others_can_write_needs_trust(tmp_path: Path) -> None:
    """The stored source runs on the GPU, so it must be the user's own."""
    stored, db = texts(made()), tmp_path / "runs.db"
    db.touch(mode=0o600)
    reader: Any = SimpleNamespace(path=db, source=lambda digest: stored)
    record: Any = SimpleNamespace(settings={}, kernel_digest="")
    assert stored_kernel(reader, record, "", tmp_path, trust=False).name == "add"
    db.chmod(0o666)
    with pytest.raises(evokern.UsageError, match="pass --trust"):
        stored_kernel(reader, record, "", tmp_path, trust=False)
    assert stored_kernel(reader, record, "", tmp_path, trust=True).name == "add"


def test_a_damaged_declaration_is_named(tmp_path: Path) -> None:
    """A declaration of another version, or with a missing part, is one sentence."""
    stored = texts(made())
    data = json.loads(stored[DECLARATION])
    for key in ("params", "arguments", "includes", "functions"):
        damaged = {name: value for name, value in data.items() if name != key}
        with pytest.raises(evokern.UsageError, match="damaged"):
            declared_kernel(tmp_path, content_of({**stored, DECLARATION: json.dumps(damaged)}, tmp_path))


def test_comments_do_not_change_a_reference() -> None:
    """The digest is of the code and of what it uses."""
    factor = 2

    def first(x: Any) -> Any:
        """Return twice x."""
        return factor * x

    before = digest_of(first)

    def again(x: Any) -> Any:  # the same
        """Return it doubled."""
        return  factor * x  # fmt: skip

    assert _code_text(again) == _code_text(first).replace("'first'", "'again'")
    factor = 3
    assert digest_of(first) != before
    assert import_path(first) == "" and import_path(reference).endswith("test_declared_as_data:reference")


REFERENCES = """
import functools
import importlib
import torch
factor = 2
def scaled(x, factor): return factor * x
class Scale:
    def __init__(self, factor): self.factor = factor
    def __call__(self, x): return self.helped(x)
    @staticmethod
    def helped(x): return 2 * x
    def method(self, x): return self.factor * x
def outer():
    factor = 2
    def nested(x): return factor * x
    return nested
def plain(x): return factor * x
"""
MADE = {
    "a lambda": "lambda x: factor * x",
    "defined inside a function": "outer()",
    "a functools.partial": "functools.partial(scaled, factor=3)",
    "an object of class Scale": "Scale(3)",
    "a method of an object": "Scale(3).method",
}


@pytest.mark.parametrize("kind", MADE)
def test_the_advice_for_a_reference_without_a_path_is_possible(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind is named; the same object under a name in a file is the study's reference, and another one is not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(declared, "_registered", {})
    monkeypatch.setattr(declared, "_passed", [])
    text = REFERENCES.replace("def outer():\n    factor = 2\n    def nested(x): return factor * x\n    return nested",
                              "def nested(x): return factor * x\ndef outer(): return nested")  # fmt: skip
    (tmp_path / "moved.py").write_text(f"{text}\nkept = {MADE[kind]}\nother = lambda x: x")
    (tmp_path / "first.py").write_text(f"{REFERENCES}\nkept = {MADE[kind]}")
    function = imported("first.py:kept")
    data = {"reference": {**place_of(function), "digest": digest_of(function)}, "functions": digest_of(function)}
    assert declared.advice(data) == (
        f"it is {kind}; call evokern.tune again, or put it into a file under a name and pass --reference FILE.py:NAME"
    )
    assert register_reference("moved.py:kept") == data["functions"]
    register_reference("moved.py:other")
    assert "moved.py:other differs from it" in declared.advice(data)


def test_a_reference_typed_in_a_session_cannot_be_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its text, only another call has the same code."""
    monkeypatch.setattr(declared, "_passed", [])
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("def reference(x): return 2 * x", "<stdin>", "exec"), space)
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    data = {"reference": {**place_of(space["reference"]), "digest": ""}, "functions": ""}
    assert declared.advice(data).endswith("notebook or an interactive session; call evokern.tune again")


def test_the_code_of_a_class_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another method is another reference; the module of the class does not matter."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("one", REFERENCES), ("two", REFERENCES), ("three", REFERENCES.replace("2 * x", "4 * x"))):
        (tmp_path / f"{name}.py").write_text(f"{text}\nkept = Scale(3)")
    one, two, three = (digest_of(imported(f"{name}.py:kept")) for name in ("one", "two", "three"))
    assert one == two != three


def test_the_digest_covers_what_a_reference_uses() -> None:
    """Bound arguments, methods, arrays and helpers count."""

    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = torch.tensor([factor])

        def __call__(self, x: Any) -> Any:
            return self.factor * x

    def helped(helper: Any) -> Any:
        return lambda x: helper(x)

    pairs = [
        (functools.partial(reference, factor=1), functools.partial(reference, factor=2)),
        (Scale(1.0), Scale(2.0)),
        (Scale(1.0).__call__, Scale(2.0).__call__),
        (helped(lambda x: x), helped(lambda x: 2 * x)),
        (torch.exp, torch.sin),
        (np.exp, np.sin),
    ]
    for one, other in pairs:
        assert digest_of(one) == digest_of(one) != digest_of(other)


def test_a_reference_may_change_its_arguments() -> None:
    """The gate's inputs stay as they are."""

    def in_place(x: Any, index: Any, y: Any) -> Any:
        y += x
        return y

    kernel = made(reference=in_place)
    inputs = {name: torch.ones(64, dtype=torch.float64) for name in ("x", "index", "y")}
    assert bool((kernel.workload.reference(kernel.problem({}), inputs)["y"] == 2).all())
    assert bool((inputs["y"] == 1).all())


def test_a_draw_function_needs_no_device() -> None:
    """It gets a generator of the CPU, and may return an array of any library."""
    kernel = made(draw={"x": lambda generator: np.full(64, 3, np.float32)})
    tensor = kernel.workload.tensors(kernel.problem({}), kernel.space.default())["x"]
    out = torch.empty(64)
    draw(tensor, "normal", out, torch.Generator())
    assert bool((out == 3).all())


def test_a_bar_shows_a_search(capsys: pytest.CaptureFixture[str]) -> None:
    """The bar names the study and ends with it."""
    bar = TerminalBar()
    for event in ("opening", "start", "trial", "end"):
        bar(Progress(event, "mine", "sim:l4", trials=3, evaluated=3, trials_limit=6))  # type: ignore[arg-type]
    assert share_of(Progress("trial", "mine", "sim:l4", evaluated=3, trials_limit=6)) == 0.5
    assert "mine" in capsys.readouterr().err


def test_importing_evokern_is_cheap() -> None:
    """`import evokern` imports neither torch nor the reader of CUDA files."""
    text = "import sys, evokern; print({'torch', 'optuna', 'cloudpickle', 'evokern.tuning.call'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.thorough
@pytest.mark.parametrize("known", [True, False])
def test_an_exported_program_names_only_arguments_that_it_takes(known: bool, tmp_path: Path) -> None:
    """It has no shape, and a seed only without golden inputs; nvcc compiles it without a warning."""
    kernel = made()
    problem, config = kernel.problem({}), kernel.space.default()
    limits = tolerances(kernel, None, None)
    golden = golden_of(kernel, config, problem, limits, "best.cu")[0] if known else None
    program = standalone_program(kernel, config, problem, CHIPS["l4"], Provenance(), tolerance=limits, golden=golden)
    usage = "[--check]" if known else "[--check] [SEED]"
    assert f'"usage: %s {usage}\\n"' in program.text and f"./best {usage} " in program.text
    assert ("the values in best.golden" in program.text) == known and "  SHAPE" not in program.text
    if known and shutil.which("nvcc"):
        (tmp_path / "best.cu").write_text(program.text)
        command = ["nvcc", "-arch=sm_89", "-Werror", "all-warnings", "-o", "best", "best.cu"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        done = subprocess.run(["./best", "1", "2"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.startswith("usage: ./best [--check]\n")


def test_functions_of_an_imported_module_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed helper is another reference; modules of installed packages count by name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    digests = []
    for factor in (2, 2, 3):
        (tmp_path / "own_helper.py").write_text(f"import math\ndef scale(x): return math.floor({factor}) * x\n")
        monkeypatch.delitem(sys.modules, "own_helper", raising=False)
        importlib.invalidate_caches()
        space: dict[str, Any] = {"own_helper": importlib.import_module("own_helper")}
        exec(compile("def reference(x): return own_helper.scale(x)", "<test>", "exec"), space)
        digests.append(digest_of(space["reference"]))
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("path", "example"),
    [("F.softmax", "torch.nn.functional:softmax"), ("torch.sum", "torch:sum"), ("softmax", "mykernels:reference")],
)
def test_a_path_without_a_colon_is_refused_with_an_example(path: str, example: str) -> None:
    """The example works if the path is that of a function of torch."""
    with pytest.raises(evokern.UsageError, match=f"{path} is not module:function; write for example {example}"):
        imported(path)
