"""A torch module as what is right: a file with `Model`, `get_inputs` and `get_init_inputs`, as KernelBench has them.

    class Model(nn.Module): ...        the computation
    batch_size, features = 16, 1024    sizes: whole numbers at the top of the file
    def get_inputs(): ...              what `forward` gets
    def get_init_inputs(): ...         what `Model` gets

(Ouyang et al., KernelBench, arXiv 2502.10517, section 3.) The sizes become fields of the problem: the file is run with
other numbers in their place, so that what it computes from them follows. It is run when it is first asked for, by
whoever may run the `kernel.py` beside it; torch is imported then.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import operator
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evokern.declaration.genes import Value
from evokern.errors import KernelError

if TYPE_CHECKING:
    import torch

NEEDED = ("Model", "get_inputs", "get_init_inputs")
"""What such a file defines."""
_MODULES_KEPT = 6


class TorchTask:
    """The module of such a file, at any sizes, in any dtype, on any device."""

    def __init__(
        self, path: Path, *, training: bool = True, copies: bool = False, tied: Mapping[str, str] | None = None
    ) -> None:
        """Name a file; it is not run yet.

        Args:
            path: the file.
            training: the module's mode; KernelBench leaves it as it is constructed, in training.
            copies: whether `forward` writes to its arguments, which must then be copies.
            tied: size → the field of the problem that it is always equal to.
        """
        self._path = path
        self._training = training
        self._copies = copies
        self._tied = dict(tied or {})
        self._module = functools.lru_cache(maxsize=_MODULES_KEPT)(self._made)
        self._names = functools.lru_cache(maxsize=_MODULES_KEPT)(self._ran)

    def outputs(
        self, p: Mapping[str, Value], arguments: Sequence[Any], parameters: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Run the module.

        Args:
            p: sizes by name.
            arguments: what `forward` gets, in order; its floating-point tensors say in which dtype, and on which
                device, the module runs.
            parameters: the module's own name of each parameter → its value.

        Returns:
            Every tensor that `forward` returns, a number as a tensor of one element.
        """
        import torch

        given = [a for a in (*arguments, *parameters.values()) if isinstance(a, torch.Tensor)]
        floats = [a.dtype for a in given if a.is_floating_point()]
        device = given[0].device if given else torch.device("cpu")
        module = self._module(tuple(p.items()), floats[0] if floats else None, device)
        if self._copies:
            arguments = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
        own = dict([*module.named_parameters(), *module.named_buffers()])
        shaped = {name: value.reshape(own[name].shape) for name, value in parameters.items()}
        with torch.no_grad():
            return tensors_in(torch.func.functional_call(module, shaped, tuple(arguments)))

    def argument(self, p: Mapping[str, Value], place: int, generator: torch.Generator) -> torch.Tensor:
        """Return what `get_inputs` draws for one of `forward`'s arguments, whole numbers.

        Args:
            p: sizes by name.
            place: the argument's place.
            generator: decides what is drawn; on its device the values are returned.
        """
        import torch

        seed = int(torch.randint(1 << 62, (1,), generator=generator, device=generator.device))
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            space = self._names(tuple(p.items()))
            torch.manual_seed(seed)
            value = list(space["get_inputs"]())[place]
        made: torch.Tensor = value.to(generator.device)
        return made.reshape(1) if made.dim() == 0 else made

    def _made(self, sizes: tuple[tuple[str, Value], ...], dtype: Any, device: torch.device) -> torch.nn.Module:
        import torch

        space = self._names(sizes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module: torch.nn.Module = constructed(space)
        module.train(self._training)
        return module.to(device=device, dtype=dtype) if dtype is not None else module.to(device=device)

    def _ran(self, sizes: tuple[tuple[str, Value], ...]) -> dict[str, Any]:
        """Run the file, and return its names."""
        given = dict(sizes)
        given |= {name: given[field] for name, field in self._tied.items()}
        return namespace(self._path.read_text(encoding="utf-8"), given, self._path.name)


def tensors_in(answer: Any) -> tuple[torch.Tensor, ...]:
    """Return the tensors of what a `forward` returned, in order, those without an axis with one of extent 1."""
    import torch

    if isinstance(answer, torch.Tensor):
        return (answer.reshape(1) if answer.dim() == 0 else answer,)
    if isinstance(answer, Mapping):
        answer = list(answer.values())
    if isinstance(answer, (list, tuple)):
        return tuple(tensor for part in answer for tensor in tensors_in(part))
    return ()


def constructed(space: Mapping[str, Any]) -> Any:
    """Return a new module of a file that was run."""
    given = space["get_init_inputs"]()
    return space["Model"](**given) if isinstance(given, Mapping) else space["Model"](*given)


def sizes_of(text: str) -> dict[str, int]:
    """Return the whole numbers that a file assigns at its top level, by name; those of a tuple as `name_0`, `name_1`.

    Raises:
        SyntaxError: it is no Python.
    """
    found: dict[str, int] = {}
    for name, node in _assigned(ast.parse(text)):
        parts = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
        values = [_whole(part) for part in parts]
        named = zip(_names(name, node), values, strict=True)
        found |= {key: value for key, value in named if value is not None and key not in found}
    return found


def namespace(text: str, sizes: Mapping[str, Value], name: str = "task.py") -> dict[str, Any]:
    """Run a file with other sizes, and return its names.

    Args:
        text: the file.
        sizes: values in place of those that `sizes_of` names.
        name: its name, for tracebacks.

    Raises:
        KernelError: it lacks one of `NEEDED`.
    """
    tree = ast.parse(text)
    for key, node in _assigned(tree):
        parts = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
        for place, (own, part) in enumerate(zip(_names(key, node), parts, strict=True)):
            if own in sizes and _whole(part) is not None:
                made = ast.copy_location(ast.Constant(int(sizes[own])), part)
                if isinstance(node, (ast.Tuple, ast.List)):
                    node.elts[place] = made
                else:
                    _statement(tree, node).value = made
    module = types.ModuleType(f"_evokern_task_{hashlib.sha256(text.encode()).hexdigest()[:12]}")
    sys.modules[module.__name__] = module  # what a class of the file looks up by its module's name
    exec(compile(tree, name, "exec"), module.__dict__)
    missing = [one for one in NEEDED if one not in module.__dict__]
    if missing:
        raise KernelError(f"{name} does not define {', '.join(missing)}")
    return module.__dict__


def _assigned(tree: ast.Module) -> list[tuple[str, ast.expr]]:
    """Return names that are assigned once at the top level, with their expressions; `a, b = 1, 2` is two of them."""
    pairs: list[tuple[str, ast.expr]] = []
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pairs.append((name, value))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pairs.append((name, value))
    names = [name for name, _ in pairs]
    return [(name, value) for name, value in pairs if names.count(name) == 1]


def _statement(tree: ast.Module, value: ast.expr) -> ast.Assign | ast.AnnAssign:
    return next(s for s in tree.body if isinstance(s, (ast.Assign, ast.AnnAssign)) and s.value is value)


def _names(name: str, node: ast.expr) -> list[str]:
    if isinstance(node, (ast.Tuple, ast.List)):
        return [f"{name}_{place}" for place in range(len(node.elts))]
    return [name]


def _whole(node: ast.expr) -> int | None:
    """Return the value of a constant expression such as `256 * 1024` where it is a positive whole number."""
    value = _value(node)
    return value if value is not None and 0 < value < 1 << 31 else None


def _value(node: ast.expr) -> int | None:
    match node:
        case ast.Constant(value=value) if type(value) is int:
            return value
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SIGNS:
            a, b = _value(left), _value(right)
            if a is None or b is None or abs(a) >= _MOST or abs(b) >= _MOST:
                return None
            if isinstance(sign, (ast.Pow, ast.LShift)) and not 0 <= b <= _MOST_POWER:
                return None
            return _SIGNS[type(sign)](a, b) if b or not isinstance(sign, ast.FloorDiv) else None
    return None


_SIGNS: Mapping[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow, ast.LShift: operator.lshift,
}  # fmt: skip
_MOST, _MOST_POWER = 1 << 40, 40
"""Largest numbers and exponents that are worked out."""
