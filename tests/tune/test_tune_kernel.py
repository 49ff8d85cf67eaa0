"""`evokern.tune_kernel`: Kernel Tuner's arguments, its form of results, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evokern
from evokern.errors import UsageError
from evokern.tuning.kernel_tuner import translated
from evokern.tuning.options import KernelTunerArguments

SOURCE = """
__global__ void axpy(float *out, const float *x, float *y, float factor, int n) {
  for (int k = 0; k < per; k++) {
    int i = (blockIdx.x * per + k) * block_size_x + threadIdx.x;
    if (i < n) out[i] = factor * x[i] + y[i];
  }
}
"""
N = 3000
X, Y = (np.random.default_rng(seed).standard_normal(N).astype(np.float32) for seed in (1, 2))
CALL: dict[str, Any] = {
    "kernel_name": "axpy", "kernel_source": SOURCE, "problem_size": N,
    "arguments": [np.zeros(N, np.float32), X, Y, np.float32(2), np.int32(N)],
    "tune_params": {"block_size_x": [64, 128], "per": [1, 2]}, "grid_div_x": ["block_size_x", "per"],
}  # fmt: skip
ANSWER = [2 * X + Y, None, None, None, None]


def test_results_have_the_form_of_kernel_tuner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that breaks a restriction is left out, times are in ms, metrics are computed."""
    monkeypatch.chdir(tmp_path)
    results, env = evokern.tune_kernel(
        **CALL, answer=ANSWER, restrictions=["block_size_x * per <= 128", lambda p: p["per"] < 3],
        metrics={"GB/s": lambda p: 12e-6 * N / p["time"], "twice": "2 * time"}, device="sim:l4", verbose=False,
    )  # fmt: skip
    assert {(one["block_size_x"], one["per"]) for one in results} == {(64, 1), (64, 2), (128, 1)}
    assert all(0 < one["time"] < 1 and one["twice"] == 2 * one["time"] and one["GB/s"] > 0 for one in results)
    assert env["best_config"] == min(results, key=lambda one: one["time"])
    assert env["study"].best_params == {name: env["best_config"][name] for name in CALL["tune_params"]}


def test_a_wrong_answer_leaves_no_champion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs are compared with `answer` on the given inputs."""
    monkeypatch.chdir(tmp_path)
    wrong = ANSWER[0].copy()
    wrong[N - 1] += 1
    with pytest.warns(UserWarning, match="no candidate of axpy is right"):
        results, env = evokern.tune_kernel(**CALL, answer=[wrong, *ANSWER[1:]], device="sim:l4")
    assert env["best_config"] is None and {one["__error__"] for one in results} == {"RuntimeFailedConfig"}


def _translated(**changes: Any) -> Any:
    return translated(KernelTunerArguments(**{**CALL, "answer": ANSWER, **changes}))


def test_roles_and_functions_are_taken_from_the_call() -> None:
    """Outputs are those with an answer; functions of the parameters are used as they are."""
    made = _translated(
        grid_div_x=lambda p: p["block_size_x"] * p["per"], problem_size=lambda p: (N, 1), smem_args={"size": 64},
        block_size_names=["block_size_x"], compiler_options=["-DUNUSED=1", "-I."],
    ).options  # fmt: skip
    assert [type(one).__name__ for one in made["args"]] == ["OutLike", "ndarray", "ndarray", "float", "int"]
    config = evokern.Config({"block_size_x": 64, "per": 2})
    assert (made["grid"](config), made["block"](config), made["shared"](config)) == (24, 64, 64)
    assert made["options"] == ("-DUNUSED=1",) and made["tolerance"] == (1e-6, 1e-5)
    code = _translated(kernel_source=lambda p: SOURCE.replace("block_size_x", str(p["block_size_x"]))).options
    assert "block_size_x" in code["source"]


def test_without_answer_the_comparison_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default candidate serves as the reference, and a note says that its result is not known to be right."""
    made = _translated(answer=None)
    assert "not with a known result" in made.note and "no known result" in made.options["reference"].compared_with
    monkeypatch.chdir(tmp_path)
    source = SOURCE.replace("y[i];", "y[i] + (per - 1);")
    with pytest.warns(UserWarning, match="not with a known result"):
        results, _ = evokern.tune_kernel(**{**CALL, "kernel_source": source}, device="sim:l4", verbose=False)
    assert {one["per"]: one.get("__error__") for one in results} == {1: None, 2: "RuntimeFailedConfig"}
    own = _translated(answer=None, reference=lambda x, y, factor, n: factor * x + y)
    assert own.note == "" and "draw" not in own.options


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observers": [object()]}, "does not support observers"),
        ({"cache": "cache.json"}, "does not support cache='cache.json'; pass db="),
        ({"objective": "energy"}, "does not support objective='energy'"),
        ({"strategy": "bayes_opt"}, "strategy='bayes_opt'; use 'brute_force', 'random_sample'"),
        ({"strategy_options": {"popsize": 3}}, "strategy option 'popsize'"),
        ({"verify": lambda a, b, atol: True}, "does not support verify"),
        ({"cmem_args": {"w": X}}, "does not support cmem_args"),
        ({"lang": "OpenCL"}, "tunes OPENCL code"),
        ({"answer": [None] * 5}, "writes arguments\\[0\\] \\(out\\), but answer has no array for it"),
        ({"answer": [ANSWER[0][1:], None, None, None, None]}, "answer\\[0\\] does not have the shape"),
        ({"arguments": CALL["arguments"][:4]}, "has 5 parameters, but the tuner passes 4 arguments"),
        ({"kernel_source": "missing.cu"}, "'missing.cu' is neither code nor a file"),
        ({"kernel_source": lambda p: "x\n" * p["per"]}, "generates its kernel source with a function"),
        ({"reference": lambda x, y: x}, "both answer and reference"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused(changes: dict[str, Any], message: str) -> None:
    """One sentence names the argument and what to do instead."""
    with pytest.raises(UsageError, match=message):
        _translated(**changes)
