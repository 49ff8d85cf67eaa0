"""Messages about a tuned study name arguments of the call, and only commands that work for it."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import evokern
from evokern.analysis import no_success
from evokern.compile import module_state
from evokern.declaration.as_data.words import SHAPES, call_words
from evokern.declaration.bounds import derived
from evokern.gate import check
from evokern.study.options import python_words

FOLDER = ("kernel.py", "`evokern sanitize", "`evokern check", "--fresh", "large=", "launch's args", "study file")


class _Messages(ast.NodeVisitor):
    """The texts of a module's messages, with NAME in place of values."""

    def __init__(self, module: ModuleType) -> None:
        self.found: list[str] = []
        self.visit(ast.parse(inspect.getsource(module)))

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        parts = (one.value if isinstance(one, ast.Constant) else _value(one) for one in node.values)
        self.found.append("".join(map(str, parts)))

    def visit_Constant(self, node: ast.Constant) -> None:
        self.found.extend([node.value] if isinstance(node.value, str) else [])


def _value(node: ast.expr) -> str:
    text = ast.unparse(node)
    return f"evokern {text.split(chr(39))[1]} NAME" if "command('" in text else "NAME"


@pytest.mark.parametrize("module", [no_success, module_state, derived, check])
def test_no_message_of_a_folder_reaches_a_tuned_study(module: ModuleType) -> None:
    """Every message of the modules that advise on failures has words for a call."""
    for text in _Messages(module).found:
        words = call_words(text, [SHAPES])
        assert not [one for one in FOLDER if one in words], (text, words)
        assert call_words(text, ["M", "N"]) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Choose that device with --device or another database with --db, or use `--fresh` (keeps it)",
         "Choose that device with device= or another database with db=, or use `fresh=True` (keeps it)"),
        ("a GPU with --device cuda:N, or --device sim:l4", "a GPU with device='cuda:N', or device='sim:l4'"),
        ("run `evokern verify x --db a.db`, or pass --db a.db", "run `evokern verify x --db a.db`, or pass db='a.db'"),
        ("with --no-verify or --trials 20.", "with verify=False or trials=20."),
        ("the option --use_fast_math and --profile NAME", "the option --use_fast_math and --profile NAME"),
        ("name one with --device CHIP", "name one with device=CHIP"),
    ],
)  # fmt: skip
def test_errors_of_python_calls_name_arguments(text: str, words: str) -> None:
    """Options that are arguments of the function are written as arguments; commands stay commands."""
    with pytest.raises(evokern.UsageError) as caught, python_words(("device", "db", "fresh", "verify", "trials")):
        raise evokern.UsageError(text)
    assert str(caught.value) == words


def test_a_device_that_does_not_exist_is_named_as_an_argument(tmp_path: Path) -> None:
    """A call on a machine without that GPU advises `device=`."""
    import numpy as np

    x = np.linspace(-1, 1, 64, dtype=np.float32)
    with pytest.raises(evokern.UsageError, match="device=") as caught:
        evokern.tune(
            "__global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] * A; }", "k",
            [x, evokern.out_like(x)], {"A": [1]}, grid=1, block=64, reference=lambda x: x, tolerance=1e-5,
            device="cuda:9", db=tmp_path / "runs.db",
        )  # fmt: skip
    assert "--" not in str(caught.value)
