"""Mistakes in a call of `evokern.tune`: one clear sentence each, before anything is compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import evokern

SOURCE = """
__global__ void scale(const float* x, float* y, float factor, int n) {
  int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i < n) y[i] = factor * x[i];
}
"""
X = torch.randn(1000)


def call(**changes: Any) -> None:
    """Call `tune` with some arguments replaced."""
    arguments: dict[str, Any] = {
        "source": SOURCE, "entry": "scale", "args": [X, evokern.out_like(X), 2.0, 1000],
        "params": {"BLOCK": [64, 128]}, "grid": lambda p: evokern.cdiv(1000, p.BLOCK), "block": lambda p: p.BLOCK,
        "reference": lambda x: 2 * x, "device": "sim:l4", "trials": 2,
    }  # fmt: skip
    evokern.tune(**{**arguments, **changes})


def args(*given: Any) -> dict[str, Any]:
    return {"args": list(given)}


OUT = evokern.out_like(X)
CASES = {
    "non-contiguous": (args(torch.randn(1000, 2)[:, 0], OUT, 2.0, 1000), "(x) is not contiguous", "x.contiguous()"),
    "numpy non-contiguous": (
        args(np.zeros((4, 4), np.float32).T, evokern.out_like(np.zeros((4, 4), np.float32)), 2.0, 16),
        "not contiguous", "np.ascontiguousarray(x)",
    ),
    "dtype": (args(X.double(), OUT, 2.0, 1000), "args[0] (x) is float64", "x.to(torch.float32)"),
    "numpy dtype": (args(np.ones(8), evokern.out_like(np.ones(8)), 2.0, 8), "is float64", "x.astype('float32')"),
    "unsupported dtype": (args(X.to(torch.complex64), OUT, 2.0, 1000), "complex64", "float32"),
    "too few": (args(X, OUT, 2.0), "args has 3 entries", "takes 4 parameters"),
    "number for array": (args(3.0, OUT, 2.0, 1000), "args[0] (x) is the number 3.0", "const float* x"),
    "array for number": (args(X, OUT, X, 1000), "args[2] (factor) is an array", "takes a number"),
    "list for array": (args([1.0], OUT, 2.0, 1000), "args[0] (x) is a list", "torch, NumPy or CuPy array"),
    "float for int": (args(X, OUT, 2.0, 1000.0), "args[3] (n) is 1000.0", "pass an int"),
    "int too large": (args(X, OUT, 2.0, 2**31), "does not fit", "2147483647"),
    "no output": (args(X, X.clone(), 2.0, 1000), "args has no output", "evokern.out_like(y)"),
    "no output among zeros": (args(X, 0 * X, 2.0, 1000), "args has no output", "evokern.out_like(y)"),
    "output to const": (args(OUT, OUT, 2.0, 1000), "args[0] (x) is an output", "const float* x"),
    "no elements": (args(X[:0], OUT, 2.0, 1000), "has no elements", "args[0] (x)"),
    "nan": (args(X / 0 * 0, OUT, 2.0, 1000), "infinity or NaN", "args[0] (x)"),
    "constant": (args(torch.ones(1000), OUT, 2.0, 1000), "has the value 1 in every element", "draw="),
    "mixed libraries": (args(np.ones(1000, np.float32) + X.numpy(), OUT, 2.0, 1000), "numpy and torch", "one library"),
    "args a string": ({"args": "x"}, "args is str", "a list"),
    "args None": (args(None, OUT, 2.0, 1000), "args[0] (x) is None", "array"),
    "empty params": ({"params": {}}, "params is {}", "dictionary"),
    "no values": ({"params": {"BLOCK": []}}, "BLOCK has no values", "at least one"),
    "float values": ({"params": {"BLOCK": [0.5]}}, "BLOCK has the values [0.5]", "whole numbers"),
    "values a number": ({"params": {"BLOCK": 64}}, "BLOCK is 64", "a list"),
    "value twice": ({"params": {"BLOCK": [64, 64]}}, "lists 64 twice", "BLOCK"),
    "bad name": ({"params": {"BLOCK SIZE": [64]}}, "'BLOCK SIZE'", "C identifier"),
    "mistyped param": (
        {"params": {"BLOKC": [64, 128]}, "grid": 16, "block": 64}, "BLOKC occurs neither", "did you mean 'BLOCK'",
    ),
    "mistyped in grid": ({"grid": lambda p: p.BLOKC}, "grid: there is no parameter 'BLOKC'", "did you mean 'BLOCK'"),
    "mistyped in entry": ({"entry": "scale<{BLOKC}>"}, "{BLOKC}", "did you mean 'BLOCK'"),
    "unknown kernel": ({"entry": "scales"}, "no kernel 'scales'", "did you mean 'scale'"),
    "lambda raises": ({"grid": lambda p: 1 // (p.BLOCK - 64)}, "grid raised ZeroDivisionError", "BLOCK=64"),
    "grid a float": ({"grid": lambda p: 1000 / p.BLOCK}, "grid returned 15.625", "evokern.cdiv"),
    "zero divides": (
        {"params": {"BLOCK": [64], "ITEMS": [1, 0]}, "grid": lambda p: 1000 // (p.BLOCK * p.ITEMS)},
        "for BLOCK=64 ITEMS=0; ITEMS is 0", "remove this value from params",
    ),
    "zero multiplies": (
        {"params": {"BLOCK": [0, 64]}, "block": lambda p: 2 * p.BLOCK, "grid": 1}, "block returned 0 for BLOCK=0",
        "where=lambda p: p.BLOCK > 0",
    ),
    "zero in where": (
        {"params": {"A": [0, 1], "BLOCK": [64]}, "where": lambda p: p.BLOCK % p.A == 0}, "where raised", "A is 0",
    ),
    "name of a path": ({"name": "../x"}, "name is '../x'", "no slash"),
    "name of a file": ({"name": "a\\b"}, "use no slash, backslash", "db="),
    "name of a database": ({"name": "runs.db:x"}, "name is 'runs.db:x'", "colon"),
    "name as an option": ({"name": "-x"}, "name is '-x'", "start it with a letter"),
    "name no text": ({"name": 3}, "name is 3", "start it with a letter"),
    "name unprintable": ({"name": "a\nb"}, "name is 'a\\nb'", "start it with a letter"),
    "grid zero": ({"grid": lambda p: 0}, "grid returned 0", "at least 1"),
    "too many threads": ({"block": lambda p: 32 * p.BLOCK}, "more than 1024 threads", "use fewer"),
    "nvcc option": ({"options": ["-ccbin=evil"]}, "NVRTC does not accept -ccbin=evil", "remove"),
    "options a string": ({"options": "--use_fast_math"}, "options is '--use_fast_math'", "a list"),
    "block None": ({"block": None}, "block is None", "whole numbers"),
    "shared negative": ({"shared": lambda p: -p.BLOCK}, "shared returned -64", "at least 0"),
    "where excludes all": ({"where": lambda p: p.BLOCK > 128}, "where excludes every combination", "relax"),
    "where not a function": ({"where": "BLOCK > 2"}, "where is 'BLOCK > 2'", "lambda p"),
    "where returns None": ({"where": lambda p: None}, "where returned None", "True or False"),
    "reference shape": ({"reference": lambda x: x[:10]}, "returned shape (10,)", "shape (1000,)"),
    "reference dtype": ({"reference": lambda x: (2 * x).float()}, "returned float32", "float64"),
    "reference raises": ({"reference": lambda x: x @ x @ x}, "raised", "x (1000,)"),
    "reference count": ({"reference": lambda x: (x, x)}, "returned 2 arrays", "1 output"),
    "reference nothing": ({"reference": lambda x: None}, "returned nothing", "1 output"),
    "reference parameters": ({"reference": lambda x, y, z, w: x}, "must take the inputs", "(x)"),
    "reference no function": ({"reference": 3}, "reference is 3", "a function"),
    "no bound": ({"reference": lambda x: torch.fft.fft(x).real}, "cannot be derived", "tolerance="),
    "tolerance": ({"tolerance": "small"}, "tolerance is 'small'", "(atol, rtol)"),
    "tolerance of unknown": ({"tolerance": {"z": 1e-3}}, "no output 'z'", "y"),
    "error": ({"error": 3}, "error is 3", "evokern.Elementwise"),
    "draw of unknown": ({"draw": {"z": (0, 1)}}, "no input 'z'", "x"),
    "draw": ({"draw": {"x": 3}}, "draw['x'] is 3", "(low, high)"),
    "parameter defined": (
        {"source": "#define BLOCK 256\n" + SOURCE}, "replaces the value of the parameter BLOCK", "#ifndef BLOCK",
    ),
    "missing file": ({"source": "missing.cu"}, "missing.cu", "check the path"),
    "callbacks": ({"callbacks": [lambda: None]}, "callbacks[0]", "(study, trial)"),
    "budget": ({"budget": "soon"}, "budget", "soon"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_one_sentence(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message contains the value and the remedy, and neither a study nor a program is made."""
    monkeypatch.chdir(tmp_path)
    changes, value, remedy = CASES[case]
    with pytest.raises(evokern.UsageError) as caught:
        call(**changes)
    message = str(caught.value)
    assert value in message and remedy in message, message
    assert "\n" not in message
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_argument_is_named() -> None:
    """Python's own error suggests the argument."""
    with pytest.raises(TypeError, match="did you mean 'grid'"):
        call(gird=1)


class _OnGpu(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    device = torch.device("cuda:1")  # type: ignore[assignment]


def test_a_tensor_on_another_gpu_is_named() -> None:
    """An array's GPU must be that of `device`."""
    elsewhere = X.as_subclass(_OnGpu)
    with pytest.raises(evokern.UsageError, match=r"args\[0\] \(x\) is on cuda:1, but device='cuda:0'"):
        call(**args(elsewhere, OUT, 2.0, 1000), device="cuda:0")
