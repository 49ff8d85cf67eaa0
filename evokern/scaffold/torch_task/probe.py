"""Run a task (only in a child process) to find its variable sizes, shapes, dtypes, parameters and scalars."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from evokern.declaration.torch_task import constructed, namespace, sizes_of, tensors_in
from evokern.errors import SourceError
from evokern.scaffold.torch_task.shapes import Fitted, Shapes, Sizes, fit, tied

DTYPES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "u8",
}  # fmt: skip
"""torch's dtype → evokern's; a boolean is a byte."""
SMALL_ELEMENTS = 20_000
"""Maximum number of elements in all buffers of a small problem; a simulated gate runs it in about a second."""
MOST_ELEMENTS = 1 << 24
"""Maximum number of elements in all buffers of a task that has only one size."""
DRAWS = 8
"""Number of times that inputs are generated to find the range of integers."""
SEVERAL_BLOCKS = 600
"""Minimum number of output elements; it fills more than two blocks of the default candidate, the last partially."""


@dataclass(frozen=True)
class TaskTensor:
    """A tensor of a task."""

    name: str
    """Name in the declaration and in `forward`'s signature."""
    dtype: str
    """evokern's name of the tensor's dtype."""
    shape: tuple[str, ...]
    """Each extent, as Python text over `p.NAME`."""
    truth: bool = False
    """Whether the torch tensor contains booleans, which the kernel receives as bytes."""
    scale: float = 1.0
    """Standard deviation of the tensor's values."""
    low: int = 0
    """For integers: smallest value seen."""
    high: str = "127"
    """For integers: largest possible value, as Python text over `p.NAME`."""
    parameter: str = ""
    """The module's name of a parameter; empty for an argument of `forward` and for an output."""
    place: int | None = None
    """Position among the arguments if its integers are constrained (a permutation, sorted, or constant), so that only
    `get_inputs` can generate them."""


@dataclass(frozen=True)
class Probe:
    """Result of probing a KernelBench task: its sizes, arguments, parameters and outputs."""

    fields: Mapping[str, tuple[int, int]]
    """Size → its required divisor, and its value in the file."""
    arguments: tuple[TaskTensor | float | int | None, ...]
    """Arguments of `forward` in order: tensors and numbers."""
    parameters: tuple[TaskTensor, ...]
    """Parameters of the module, and buffers that affect its result."""
    outputs: tuple[TaskTensor, ...]
    """Tensors that `forward` returns."""
    small: tuple[Mapping[str, int], ...]
    """Small problems with which the file can run."""
    training: bool
    """Whether the module runs in training mode; False if that uses random numbers."""
    copies: bool
    """Whether `forward` writes to its arguments."""
    ties: Mapping[str, str]
    """Size → another field that always has the same value."""
    notes: tuple[str, ...]
    """Notes for the user, one sentence each."""


def probe(text: str, name: str) -> Probe:
    """Run a task and return its sizes, arguments, parameters and outputs.

    Args:
        text: text of the task.
        name: file name, for messages.

    Raises:
        SourceError: the task cannot be run, or has arguments that a kernel cannot take.
    """
    every = sizes_of(text)
    ties: dict[str, str] = {}

    def whole(sizes: Sizes) -> Sizes:
        return {**every, **sizes, **{one: sizes[partner] for one, partner in ties.items() if partner in sizes}}

    def shapes(sizes: Sizes) -> Shapes | None:
        try:
            return _shapes(text, whole(sizes), name)
        except Exception:  # the file may do anything at a size that it was not written for
            return None

    try:
        known = _shapes(text, every, name)
    except Exception as error:
        raise SourceError(
            f"{name} cannot be run without data (torch's meta device): {type(error).__name__}: {error}"
        ) from error
    ties |= tied(every, shapes)
    own = {size: value for size, value in every.items() if size not in ties}
    found = fit(own, shapes)
    small = _small_problems(own, found, shapes)
    if not small and sum(map(_elements, known)) > MOST_ELEMENTS:
        raise SourceError(
            f"{name} has {sum(map(_elements, known)):,} elements, and none of its sizes could be reduced; name the "
            "sizes at the top of the file (batch_size = 16), or use smaller values. Named sizes: "
            f"{', '.join(every) or 'none'}"
        )
    return _described(text, name, own, found, small, whole(small[0] if small else own), ties)


def _shapes(text: str, sizes: Sizes, name: str) -> Shapes:
    """Return the shapes of arguments, parameters and outputs, in order, without computing anything."""
    with torch.device("meta"), torch.no_grad():
        space = namespace(text, sizes, name)
        module, arguments = constructed(space), list(space["get_inputs"]())
        answer = tensors_in(module(*arguments))
    taken = [a for a in arguments if isinstance(a, torch.Tensor)]
    every = [*taken, *(value for _, value in module.named_parameters()), *(b for _, b in _buffers(module)), *answer]
    return tuple(tuple(tensor.shape) or (1,) for tensor in every)


def _buffers(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, value) for name, value in module.named_buffers() if value.is_floating_point()]


def _small_problems(own: Sizes, found: Fitted, shapes: Any) -> tuple[Mapping[str, int], ...]:
    """Return up to two small problems with unequal extents and tails, one of them with several blocks."""
    made: list[tuple[Mapping[str, int], int]] = []
    for base in (6, 10, 16, 24, 40, 64, 100, 160, 256):
        for turn in (0, 1):
            sizes = {}
            for place, (name, step) in enumerate(found.steps.items()):
                wanted = base + 1 + (5 * place + 3 * turn) % 11
                sizes[name] = min(own[name], step * -(-wanted // step))
            known = shapes({**own, **sizes}) if sizes not in [one for one, _ in made] else None
            if known is None or not _agrees(found, {**own, **sizes}, known):
                continue
            if made and sum(map(_elements, known)) > SMALL_ELEMENTS:
                return _chosen(made)
            made.append((sizes, _elements(known[-1])))
    return _chosen(made)


def _chosen(made: Sequence[tuple[Mapping[str, int], int]]) -> tuple[Mapping[str, int], ...]:
    """Return the first problem whose output has several blocks, followed by the smallest problem."""
    if len(made) < 2:
        return tuple(sizes for sizes, _ in made)
    several = next((sizes for sizes, elements in made[1:] if elements >= SEVERAL_BLOCKS), made[-1][0])
    return several, made[0][0]


def _agrees(found: Fitted, sizes: Sizes, known: Shapes) -> bool:
    texts = [[eval(f.replace("p.", ""), {"__builtins__": {}}, dict(sizes)) for f in row] for row in found.formulas]
    return [tuple(row) for row in texts] == list(known)


def _elements(shape: Sequence[int]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


def _described(
    text: str,
    name: str,
    own: Sizes,
    found: Fitted,
    small: tuple[Mapping[str, int], ...],
    sizes: Sizes,
    ties: Mapping[str, str],
) -> Probe:
    torch.manual_seed(0)
    with torch.no_grad():
        space = namespace(text, sizes, name)
        module, given = constructed(space), list(space["get_inputs"]())
        notes: list[str] = []
        training, copies, answer = _run(module, given, notes)
        draws = _draws(text, name, {**own, **sizes}, small, ties)
    formulas = iter(found.formulas)
    signature = _argument_names(space["Model"], len(given))
    arguments: list[TaskTensor | float | int | None] = []
    used = set(found.steps)
    for own_name, value in zip(signature, given, strict=True):
        if isinstance(value, torch.Tensor):
            made = _tensor(_unused(own_name, used), value, next(formulas))
            if not (value.is_floating_point() or made.truth):
                low, high = _bounds(draws, len(arguments), list(found.steps))
                made = replace(made, low=low, high=high)
            if not value.is_floating_point() and _are_constrained([given[len(arguments)] for _, given in draws]):
                made = replace(made, place=len(arguments))
            arguments.append(made)
        elif value is None or isinstance(value, (int, float)):
            arguments.append(value)
        else:
            raise SourceError(f"{name}: get_inputs returns a {type(value).__name__}, which kernels do not support")
    parameters = [
        _tensor(_unused(own_name, used), value, next(formulas), own_name)
        for own_name, value in module.named_parameters()
    ]
    for own_name, value in _buffers(module):
        formula = next(formulas)
        if _matters(module, own_name, given, answer, training):
            parameters.append(_tensor(_unused(own_name, used), value, formula, own_name))
    outputs = []
    for place, value in enumerate(answer):
        label = "out" if len(answer) == 1 else f"out_{place}"
        outputs.append(_tensor(_unused(label, used), value, next(formulas)))
        if not value.is_floating_point():
            notes.append(f"kernel.py: output {label} contains integers, which must match exactly; if several values "
                         "are valid (such as an index among equal values), make `reference` choose the same one as "
                         "the kernel")  # fmt: skip
    if not answer:
        raise SourceError(f"{name}: forward returns no tensor")
    if not found.steps:
        notes.append(f"kernel.py: none of the sizes of {name} could become a field; the problem has only one size")
    fields = {size: (step, own[size]) for size, step in found.steps.items()}
    return Probe(
        fields, tuple(arguments), tuple(parameters), tuple(outputs), small, training, copies, dict(ties), tuple(notes)
    )


_Draw = tuple[Mapping[str, int], Sequence[Any]]


def _draws(
    text: str, name: str, sizes: Sizes, small: Sequence[Mapping[str, int]], ties: Mapping[str, str]
) -> list[_Draw]:
    """Return inputs from `get_inputs`, generated several times for each small problem."""
    found: list[_Draw] = []
    for problem in small or [{}]:
        at = {**sizes, **problem}
        at |= {one: at[partner] for one, partner in ties.items()}
        space = namespace(text, at, name)
        found += [(at, list(space["get_inputs"]())) for _ in range(DRAWS)]
    return found


def _bounds(draws: Sequence[_Draw], place: int, fields: Sequence[str]) -> tuple[int, str]:
    """Return the smallest and largest value of an integer argument; the largest may depend on a field."""
    lows = [int(given[place].min()) for _, given in draws]
    highs = [(sizes, int(given[place].max())) for sizes, given in draws]
    below = [
        field
        for field in fields
        if all(high < sizes[field] for sizes, high in highs) and any(2 * high >= sizes[field] for sizes, high in highs)
    ]
    if min(lows) == 0 and below and len({high for _, high in highs}) > 1:
        return 0, f"p.{min(below, key=lambda field: highs[0][0][field])} - 1"
    return min(lows), str(min(max(h for s, h in highs if s == sizes) for sizes, _ in highs))


def _are_constrained(draws: Sequence[Any]) -> bool:
    """Return whether integers are constrained: always the same, sorted, or all different."""
    rows = [draw.reshape(-1, draw.shape[-1]) if draw.dim() else draw.reshape(1, 1) for draw in draws]
    if all(int(row.min()) == int(row.max()) or row.shape[-1] < 4 for row in rows):
        return False  # constant, or too few to decide
    same = all(torch.equal(one, two) for one, two in itertools.pairwise(rows) if one.shape == two.shape)
    ordered = all(bool((row[:, 1:] >= row[:, :-1]).all()) for row in rows)
    different = all(bool((row.sort().values.diff() > 0).all()) for row in rows)
    return same or ordered or different


def _run(
    module: torch.nn.Module, given: Sequence[Any], notes: list[str]
) -> tuple[bool, bool, tuple[torch.Tensor, ...]]:
    """Run a module in its initial mode, or in evaluation mode if the initial mode uses random numbers."""
    first = tensors_in(module(*copy.deepcopy(list(given))))
    used = copy.deepcopy(list(given))
    second = tensors_in(module(*used))
    pairs = [(a, b) for a, b in zip(given, used, strict=True) if isinstance(a, torch.Tensor)]
    copies = not all(torch.equal(a, b) for a, b in pairs)
    if all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second, strict=True)):
        return True, copies, first
    module.eval()
    notes.append(
        "kernel.py: the module uses random numbers in training mode; the reference is its result in evaluation mode"
    )
    return False, copies, tensors_in(module(*copy.deepcopy(list(given))))


def _matters(
    module: torch.nn.Module, name: str, given: Sequence[Any], answer: Sequence[torch.Tensor], training: bool
) -> bool:
    """Return whether the result depends on a buffer."""
    changed = {own: value + 1 if own == name else value.clone() for own, value in _buffers(module)}
    module.train(training)
    with torch.no_grad():
        again = tensors_in(torch.func.functional_call(module, changed, tuple(copy.deepcopy(list(given)))))
    return not all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(answer, again, strict=True))


def _tensor(name: str, value: torch.Tensor, shape: tuple[str, ...], parameter: str = "") -> TaskTensor:
    dtype = DTYPES.get(value.dtype)
    if dtype is None:
        raise SourceError(f"tensor {name} has dtype {value.dtype}, which evokern does not support")
    if value.dtype is torch.bool:
        return TaskTensor(name, dtype, shape, truth=True, low=0, high="1", parameter=parameter)
    if not value.is_floating_point():
        return TaskTensor(name, dtype, shape, low=int(value.min()), high=str(int(value.max())), parameter=parameter)
    size = float(value.double().square().mean().sqrt()) if parameter else 1.0
    return TaskTensor(name, dtype, shape, scale=float(f"{size:.2g}") if size > 0 else 1.0, parameter=parameter)


def _argument_names(model: Any, count: int) -> list[str]:
    code = model.forward.__code__
    names = list(code.co_varnames[1 : code.co_argcount])[:count]
    return [*names, *(f"input_{place}" for place in range(len(names), count))]


def _unused(name: str, used: set[str]) -> str:
    """Return an unused C identifier similar to a name."""
    plain = re.sub(r"\W", "_", name)
    while plain in used or plain in _KEYWORDS or not plain.isidentifier():
        plain += "_"
    used.add(plain)
    return plain


_KEYWORDS = frozenset(  # of C++, and names in the generated files
    (
        *("auto", "bool", "break", "case", "char", "class", "const", "continue", "default", "delete", "do", "double"),
        *("else", "enum", "extern", "float", "for", "goto", "if", "inline", "int", "long", "namespace", "new"),
        *("operator", "private", "public", "return", "short", "signed", "static", "struct", "switch", "template"),
        *("this", "throw", "union", "unsigned", "using", "virtual", "void", "volatile", "while", "forward", "BLOCK"),
    )
)
