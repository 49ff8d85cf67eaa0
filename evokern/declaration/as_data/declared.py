"""Declaration of a kernel as data, as `evokern.tune` makes it: no `kernel.py` runs, so a database suffices to load it.

The content of such a kernel is its source, its headers, `tune.json` (the declaration) and `values.json` (the values of
integer inputs). The geometry is arithmetic over the parameters, or a table. Only the reference and other Python
functions are missing: a process that has them passes them to its workers as a pickle, and `register` makes them known
to everything that loads the kernel later.
"""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evokern.declaration.as_data.expressions import value_of
from evokern.declaration.as_data.golden import Compared, KernelReference, compared_with, with_values
from evokern.declaration.as_data.words import SHAPES
from evokern.declaration.bounds.derived import with_derived_bounds
from evokern.declaration.genes import Config, Mutation, Parameter
from evokern.declaration.kernel import (
    Baseline,
    Constraint,
    Kernel,
    Launch,
    Problem,
    ProblemField,
    Scalar,
    Tensor,
    Tolerance,
    Workload,
)
from evokern.declaration.kernel_files import KernelContent, KernelFile
from evokern.errors import KernelError

if TYPE_CHECKING:
    import torch

DECLARATION = "tune.json"
"""File with the declaration."""
VALUES = "values.json"
"""File with the values of integer inputs."""


@dataclass(frozen=True)
class Functions:
    """Python functions of a declaration."""

    reference: Callable[..., Any]
    """The reference, as the user wrote it."""
    draws: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Input → function that generates its values."""
    error: Mapping[str, Any] = field(default_factory=dict)
    """Output → bound on its error; empty if the bounds are derived or tolerances are given."""
    file: str = ""
    """File with the code of the reference, which a pickle does not contain; empty if there is none."""


_registered: dict[str, bytes] = {}
"""Digest of the functions of a declaration → their pickle."""
_passed: list[str] = []
"""Functions passed with --reference."""


def register(digest: str, functions: bytes, passed: str = "") -> None:
    """Make functions known to kernels that are loaded later in this process.

    Args:
        digest: digest of the functions.
        functions: their pickle.
        passed: value of --reference, for messages.
    """
    _registered[digest] = functions
    _passed.extend([passed] if passed else [])


def is_declared(content: KernelContent | None) -> bool:
    """Return whether a kernel is declared as data."""
    return content is not None and any(file.name == DECLARATION for file in content.files)


def data_of(files: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the declaration among stored texts, or None if the kernel is declared in `kernel.py`."""
    return json.loads(files[DECLARATION]) if DECLARATION in files else None


def reference_option(files: Mapping[str, str]) -> tuple[str, ...]:
    """Return the option of a command that names the reference; empty if the kernel is declared in `kernel.py`."""
    data = data_of(files)
    return () if data is None else ("--reference", data["reference"]["path"] or "FILE.py:NAME")


def content_of(files: Mapping[str, str], folder: Path) -> KernelContent:
    """Return the content of a declared kernel from the texts that a database stores.

    Raises:
        KernelError: the stored declaration is damaged.
    """
    data = data_of(files) or {}
    try:
        includes = data["includes"]
        found = tuple(
            KernelFile(name, folder / name, text.encode(), tuple(includes.get(name, ())))
            for name, text in files.items()
        )
        return KernelContent(found, functions=_registered.get(data["functions"], b""))
    except (AttributeError, KeyError, TypeError) as error:
        raise _damaged(error) from error


def has_functions(kernel: Kernel) -> bool:
    """Return whether the functions of a kernel are known; only a kernel declared as data may lack them."""
    content = kernel.content
    return content is None or not is_declared(content) or bool(content.functions)


def check_functions(kernel: Kernel) -> None:
    """Require the functions of a kernel that is declared as data; other kernels always have them.

    Raises:
        KernelError: they are not known in this process.
    """
    if has_functions(kernel):
        return
    raise KernelError(f"the reference of study {kernel.name} is not known here; {functions_advice(kernel)}")


def functions_of(content: KernelContent) -> Functions:
    """Return the functions of a kernel that is declared as data; they must be known."""
    found: Functions = pickle.loads(content.functions)
    return found


def passing_of(content: KernelContent) -> Passing:
    """Return how arguments reach the reference of a kernel that is declared as data."""
    return _Declared({file.name: file.text for file in content.files}, None).passing()


def functions_advice(kernel: Kernel) -> str:
    """Return how to provide the functions of a kernel that is declared as data."""
    return advice(json.loads(kernel.file_text(DECLARATION) or "{}"))


def declared_kernel(folder: Path, content: KernelContent, *, tried: bool = False) -> Kernel:
    """Return the kernel that a content declares as data.

    Args:
        folder: folder of the source.
        content: the source and the declaration.
        tried: whether to run the reference once for a derived bound, which takes long for a large problem.

    Raises:
        KernelError: the declaration is damaged, or an output has neither a tolerance nor a derived bound.
    """
    texts = {file.name: file.text for file in content.files}
    functions = functions_of(content) if content.functions else None
    try:
        kernel = _Declared(texts, functions).kernel(folder, content)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise _damaged(error) from error
    return with_derived_bounds(with_values(kernel), tried=tried) if functions is not None else kernel


def _damaged(error: Exception) -> KernelError:
    return KernelError(
        f"the stored declaration of the kernel is damaged ({type(error).__name__}: {error}); call evokern.tune again "
        "with fresh=True"
    )


def chosen(rule: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    """Return the value of a stored function of the parameters.

    Args:
        rule: `value` (a list of expressions), `cases` (conditions with values), or `table` over the parameters `of`.
        config: the parameters, also as attributes.

    Raises:
        LookupError: the function is not known for this configuration.
    """
    if "table" in rule:
        return rule["table"][",".join(str(config[name]) for name in rule["of"])]
    for case in rule["cases"]:
        if all(value_of(condition, config) for condition in case["when"]):
            return [value_of(text, config) for text in case["value"]]
    raise LookupError(f"no case covers {dict(config)}")


@dataclass(frozen=True)
class Passing:
    """How arguments reach the reference."""

    inputs: tuple[str, ...]
    """Inputs, in the order of the arguments."""
    outputs: tuple[str, ...]
    """Outputs, in the order of the arguments."""
    order: tuple[str | int | float, ...]
    """Arguments of the reference: names of inputs, and numbers."""
    dtypes: Mapping[str, str]
    """Input → its dtype as torch names it, for inputs whose values are integers or bool."""
    framework: str
    """Library of the arrays: `torch`, `numpy` or `cupy`."""
    shapes: Mapping[str, tuple[int, ...]]
    """Output → its shape."""

    def call(
        self, function: Callable[..., Any], inputs: Mapping[str, Any], *, copied: bool = True
    ) -> dict[str, torch.Tensor]:
        """Call the reference and return its outputs by name, as torch tensors on the device of the inputs.

        Args:
            function: the reference.
            inputs: name → tensor.
            copied: whether the reference gets copies, because it may change its arguments in place.

        Raises:
            KernelError: the reference returned something else than the outputs.
        """
        own = {name: values.clone() for name, values in inputs.items()} if copied else inputs
        given = [self._passed(one, own[one]) if isinstance(one, str) else one for one in self.order]
        answer = function(*given)
        parts = _parts(answer, self.outputs)
        if len(parts) != len(self.outputs):
            raise KernelError(
                f"the reference returned {_counted(parts)}, but the arguments have {_counted(self.outputs, 'output')} "
                f"({', '.join(self.outputs)}); return one array for each, in this order"
            )
        device = next((one.device for one in inputs.values()), None)
        return {name: self._result(name, part, device) for name, part in zip(self.outputs, parts, strict=True)}

    def _passed(self, name: str, values: Any) -> Any:
        import torch

        if name in self.dtypes:
            values = values.to(getattr(torch, self.dtypes[name]))
        # Arithmetic on tensors without data shows the operations.
        if self.framework == "torch" or values.device.type == "meta":
            return values
        if self.framework == "numpy":
            return values.cpu().numpy()
        import cupy

        return cupy.asarray(values.cpu().numpy()) if values.device.type == "cpu" else cupy.from_dlpack(values)

    def _result(self, name: str, part: Any, device: Any) -> torch.Tensor:
        import torch

        if not isinstance(part, torch.Tensor):
            if hasattr(part, "get") and type(part).__module__.startswith("cupy"):
                part = part.get()
            try:
                part = torch.as_tensor(part)
            except (TypeError, ValueError, RuntimeError) as error:
                raise KernelError(
                    f"the reference returned {type(part).__name__} for output {name}; return an array"
                ) from error
        made: torch.Tensor = part if device is None or part.device.type == "meta" else part.to(device)
        wanted = self.shapes[name]
        return (made.reshape(wanted) if made.ndim == 0 and set(wanted) <= {1} else made).contiguous()


def _parts(answer: Any, outputs: Sequence[str]) -> list[Any]:
    if isinstance(answer, Mapping):
        return [answer[name] for name in outputs] if set(answer) == set(outputs) else list(answer.values())
    if isinstance(answer, (tuple, list)):
        return list(answer)
    return [] if answer is None else [answer]


def _counted(parts: Sequence[Any], what: str = "array") -> str:
    return "nothing" if not parts else f"1 {what}" if len(parts) == 1 else f"{len(parts)} {what}s"


class _Declared:
    """Builder of a kernel from its declaration."""

    def __init__(self, texts: Mapping[str, str], functions: Functions | None) -> None:
        self.data: dict[str, Any] = json.loads(texts[DECLARATION])
        self.values: dict[str, Any] = json.loads(texts[VALUES]) if VALUES in texts else {}
        self.functions = functions
        self.arguments: list[dict[str, Any]] = self.data["arguments"]
        self.arrays = [one for one in self.arguments if "role" in one]
        self.outputs = [one for one in self.arrays if one["role"] in ("output", "inout")]

    def kernel(self, folder: Path, content: KernelContent) -> Kernel:
        data = self.data
        genes = tuple(
            (Mutation if isinstance(values[0], str) else Parameter)(
                name, values, data["default"][name], as_="template" if name in data["template"] else "macro"
            )
            for name, values in data["params"].items()
        )
        where = data["where"]
        named = [f"where_{number}" for number in range(1, len(where) + 1)] if len(where) > 1 else ["where"]
        shapes = data["shapes"]
        return Kernel(
            name=data["name"],
            genes=genes,
            fields=(ProblemField(SHAPES, choices=(shapes,), default=shapes, doc="shapes of inputs and outputs"),),
            launches=self.launches,
            workload=self.workload(),
            constraints=tuple(
                Constraint(name, partial(_holds, rule), f"`where` excludes it: {rule['text']}")
                for name, rule in zip(named, where, strict=False)
            ),
            options=tuple(data["options"]),
            deterministic=data["deterministic"],
            source=data["source"],
            folder=folder,
            content=content,
        )

    def launches(self, config: Config, problem: Problem) -> Sequence[Launch]:
        data = self.data
        passed = tuple(one["name"] if "role" in one else Scalar(one["scalar"], one["value"]) for one in self.arguments)
        grid, block, (shared,) = (chosen(data[name], config) for name in ("grid", "block", "shared"))
        return [Launch(data["entry"], tuple(grid), tuple(block), passed, shared_bytes=shared)]

    def workload(self) -> Workload:
        data, functions = self.data, self.functions
        tensors = {one["name"]: self.tensor(one) for one in self.arrays}
        moved = sum(
            tensor.bytes * (2 if tensor.role == "inout" else 1)
            for tensor in tensors.values()
            if tensor.role != "input" or data["reads_all"]
        )
        known: Any = self.reference if functions is None else functions.reference
        itself, other = isinstance(known, KernelReference), compared_with(known)
        baselines: tuple[Baseline, ...] = ()
        if functions is not None and self.passing().framework == "torch" and not itself:
            baselines = (Baseline(data["reference"]["name"], self.baseline),)
        return Workload(
            tensors=lambda p, c: tensors,
            reference=known if itself else Compared(self.reference, other) if other else self.reference,
            tolerance=self.tolerance(),
            error={} if functions is None else dict(functions.error),
            flops=lambda p: data["flops"],
            bytes=lambda p: moved,
            baselines=baselines,
            cpp_reference=False,
        )

    def tensor(self, one: Mapping[str, Any]) -> Tensor:
        name, draw = one["name"], None
        extra: dict[str, Any] = {}
        if name in self.values:
            draw, extra = partial(_kept, self.values[name]), {"change": "nothing"}
        elif self.functions is not None and name in self.functions.draws:
            draw, extra = partial(_drawn, self.functions.draws[name]), {"change": "nothing"}
        elif "span" in one:
            extra = {"scale": one["scale"], "span": tuple(one["span"])}
        elif "low" in one:
            extra = {"low": one["low"], "high": one["high"]}
        return Tensor(one["dtype"], tuple(one["shape"]), one["role"], draw=draw, **extra)

    def tolerance(self) -> dict[str, Tolerance]:
        """Return the given tolerances; without functions, a placeholder in place of bounds, for reading only."""
        given = {name: Tolerance(*pair) for name, pair in self.data["tolerance"].items()}
        missing = self.outputs if self.functions is None else ()
        return {one["name"]: Tolerance(0.0, 0.0) for one in missing} | given

    def passing(self) -> Passing:
        reference = self.data["reference"]
        return Passing(
            inputs=tuple(one["name"] for one in self.arrays if one["role"] != "output"),
            outputs=tuple(one["name"] for one in self.outputs),
            order=tuple(reference["order"]),
            dtypes={one["name"]: one["kept"] for one in self.arrays if "kept" in one},
            framework=reference["library"],
            shapes={one["name"]: tuple(one["shape"]) for one in self.outputs},
        )

    def reference(self, problem: Problem, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        import torch

        if self.functions is None:
            raise KernelError(f"the reference of kernel {self.data['name']} is not known here; {advice(self.data)}")
        found = self.passing().call(self.functions.reference, inputs)
        rounded = {one["name"] for one in self.outputs if one["dtype"][0] in "iu"}
        return {name: one.to(torch.float64) if name in rounded else one for name, one in found.items()}

    def baseline(self, problem: Problem, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        assert self.functions is not None, "a baseline needs the reference"
        return self.passing().call(self.functions.reference, inputs, copied=False)


def advice(data: Mapping[str, Any]) -> str:
    """Return how to provide the functions of a declaration."""
    reference = data["reference"]
    if data["functions"] != reference["digest"]:
        return "call evokern.tune again, because the study also has draw= or error= functions"
    if _passed:
        return f"{_passed[-1]} differs from it, or from a function or value that it uses; call evokern.tune again"
    if reference["path"]:
        return f"pass --reference {reference['path']}, or call evokern.tune again"
    found = f"it is {reference.get('kind') or 'a function without a name'}; call evokern.tune again"
    if not reference.get("movable"):
        return found
    return f"{found}, or put it into a file under a name and pass --reference FILE.py:NAME"


def _holds(rule: Mapping[str, Any], config: Config) -> bool:
    return bool(chosen(rule, config)[0])


def _kept(stored: Mapping[str, Any], generator: torch.Generator) -> torch.Tensor:
    """Return stored values."""
    import torch

    raw = bytearray(zlib.decompress(base64.b64decode(stored["data"])))
    values = torch.frombuffer(raw, dtype=getattr(torch, stored["dtype"]))
    return values.reshape(stored["shape"]).to(generator.device)


def _drawn(function: Callable[..., Any], generator: torch.Generator) -> torch.Tensor:
    """Return the values of a `draw` function, which may be an array of any library."""
    import torch

    seed = int(torch.randint(1 << 62, (1,), generator=generator, device=generator.device))
    made = function(torch.Generator().manual_seed(seed))  # on the CPU, also for a GPU
    if not isinstance(made, torch.Tensor):
        made = torch.as_tensor(made.get() if hasattr(made, "get") else made)
    return made.to(generator.device)
