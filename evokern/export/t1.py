"""Export of a study's space as a T1 file, an input format shared by auto-tuners (odgaard/TuningSchema, version 1.0.0).

T1 stores expressions as text, but evokern declares functions. Therefore launches are called with traced genes, and
arithmetic constraints are read from `kernel.py`. Other constraints and the genes' conditions are stored under
`evokern`, which other readers ignore.
"""

from __future__ import annotations

import ast
import random
import re
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evokern.analysis.candidates import chip_of
from evokern.compile.isolated import compile_program
from evokern.compile.nvrtc import compiler_version
from evokern.compile.records import CompileFailure
from evokern.cuda_source.lexer import without_comments
from evokern.declaration.feasibility import launches_of
from evokern.declaration.genes import Config, Gene
from evokern.declaration.header.text import choice_macro
from evokern.declaration.kernel import DTYPE_BYTES, SCALAR_BYTES, Kernel, Launch, Problem, Scalar, Tensor
from evokern.declaration.kernel_files import GENERATED
from evokern.declaration.render import read_source, render
from evokern.errors import KERNEL_CODE_EXCEPTIONS, DeviceError, InternalError, KernelError, StudyError
from evokern.export.formula import Formula, evaluate, simplified
from evokern.export.traced import GuardRecorder, Traced, formula_of
from evokern.hardware.profiles import Profile
from evokern.search.stored_kernel import stored_kernel
from evokern.store import Reader, StudyRecord
from evokern.store.records import gene_table
from evokern.version import __version__
from evokern.wording import command

FORMAT_VERSION = 1
TRIED = 100
"""Number of configurations on which the formulas for grid and block are compared with the kernel's functions."""
_TYPES = {"f32": "float", "f64": "double", "f16": "half", "i8": "int8", "u8": "uint8", "i16": "int16", "i32": "int32",
          "u32": "uint32", "i64": "int64", "u64": "uint64", "bool": "bool"}  # fmt: skip
"""evokern's type → T1's type; other types are `custom` with a size."""
_ACCESS = {"input": "ReadOnly", "constant": "ReadOnly", "output": "WriteOnly"}


def t1(reader: Reader, record: StudyRecord, *, problem: int = 0, trust: bool = False) -> dict[str, Any]:
    """Return the JSON object of a T1 file with a study's space.

    Args:
        reader: the open database.
        record: the study.
        problem: index of the study's problem.
        trust: whether to load the kernel's declaration from the database if the folder is missing or changed.

    Raises:
        KernelError: the kernel's code differs from the study's, and is not trusted.
        StudyError: the problem does not exist, or the default candidate gets tensor maps.
        InternalError: the source does not compile with the options of the file, which is a bug in evokern.
    """
    if not 0 <= problem < len(record.problems):
        raise StudyError(
            f"study {record.name} has no problem {problem}; "
            f"its problems are numbered from 0 to {len(record.problems) - 1}"
        )
    with tempfile.TemporaryDirectory(prefix="evokern-export-") as scratch:
        kernel = stored_kernel(reader, record, record.kernel_digest, Path(scratch), trust=trust)
        chosen = kernel.problem(record.problems[problem])
        conditions, left_out = _conditions(kernel, chosen)
        specification = _specification(kernel, chosen, record.device, left_out)
        compiled = compiled_space(
            kernel, chosen, chip_of(record.device, reader.sessions(record)), specification, left_out
        )
        if kernel.folder.is_relative_to(Path(scratch).resolve()):  # the files exist only in the database
            specification["KernelFile"] = kernel.source
    own = {
        "version": __version__,
        "study": record.name,
        "kernel": record.kernel,
        "kernel_digest": record.kernel_digest,
        "problem": dict(chosen),
        "genes": [gene_table(gene) for gene in record.genes],
        "left_out": left_out,
        "checks": compiled,
    }
    made: dict[str, Any] = {
        "General": {"FormatVersion": FORMAT_VERSION, "TimeUnit": "Microseconds", "OutputFormat": "JSON"},
        "ConfigurationSpace": {
            "TuningParameters": [_parameter(gene) for gene in record.genes],
            "Conditions": conditions,
        },
        "KernelSpecification": specification,
        "Search": {"Name": record.sampler},
        "Budget": [{"Type": "TuningDuration", "BudgetValue": record.budget_s}],
        "evokern": own,
    }
    if record.trials_limit:
        made["Budget"] = [{"Type": "ConfigurationCount", "BudgetValue": record.trials_limit}]
    return made


def _parameter(gene: Gene) -> dict[str, Any]:
    kinds = {type(value) for value in gene.values}
    kind = "string" if str in kinds else "float" if float in kinds else "int"
    return {"Name": gene.name, "Type": kind, "Values": repr(list(gene.values)), "Default": gene.default}


# ---- constraints


def _conditions(kernel: Kernel, problem: Problem) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the arithmetic constraints, and descriptions of the other constraints."""
    written = _written_constraints(kernel)
    found: list[dict[str, Any]] = []
    left_out: list[str] = []
    for constraint in kernel.constraints:
        function = written.get(constraint.name)
        text = None
        if function is not None:
            names = [argument.arg for argument in function.args.args]
            translator = _Translator(kernel, problem, names)
            text = translator.text(function.body)
        if text is None:
            left_out.append(f"constraint {constraint.name}")
            continue
        used = [gene.name for gene in kernel.genes if gene.name in _words(text)]
        if used:
            found.append({"Expression": text, "Parameters": used})
    return found, left_out


def _written_constraints(kernel: Kernel) -> dict[str, ast.Lambda]:
    """Return constraint name → lambda in `kernel.py`."""
    tree = ast.parse(kernel.file_text("kernel.py") or "")
    found: dict[str, ast.Lambda] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Constraint":
            match [*node.args, *(keyword.value for keyword in node.keywords)]:
                case [ast.Constant(value=str(name)), ast.Lambda() as function, *_]:
                    found[name] = function
    return found


def _words(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}


class _Untranslatable(Exception):  # noqa: N818 (ends a recursion; not an error)
    """The expression is not arithmetic over genes and fields."""


class _Translator(ast.NodeTransformer):
    """Translator of constraints to T1: `c.NAME` becomes `NAME`, `p.NAME` its value, `divides(a, b)` `b % a == 0`."""

    def __init__(self, kernel: Kernel, problem: Problem, names: list[str]) -> None:
        self.genes = {gene.name for gene in kernel.genes}
        self.problem = problem
        self.config, self.shape = (*names, "", "")[:2]

    def text(self, node: ast.expr) -> str | None:
        """Return an expression as text, or None if it is not arithmetic."""
        try:
            return ast.unparse(self.visit(node))
        except _Untranslatable:
            return None

    def _named(self, owner: ast.expr, name: str) -> ast.expr:
        if isinstance(owner, ast.Name) and owner.id == self.config and name in self.genes:
            return ast.Name(name)
        if isinstance(owner, ast.Name) and owner.id == self.shape and name in self.problem:
            return ast.Constant(self.problem[name])
        raise _Untranslatable

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self._named(node.value, node.attr)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            return self._named(node.value, node.slice.value)
        raise _Untranslatable

    def visit_Name(self, node: ast.Name) -> ast.expr:
        raise _Untranslatable

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        given = [self.visit(item) for item in node.args]
        if name in ("min", "max") and not node.keywords:
            return ast.Call(ast.Name(name), given, [])
        if name == "divides" and len(given) >= 2:
            left: ast.expr = ast.BinOp(given[1], ast.Mod(), given[0])
            return ast.Compare(left, [ast.Eq()], [ast.Constant(0)])
        if name in ("AtMost", "Need") and len(given) >= 2:
            return ast.Compare(given[0], [ast.LtE()], [given[1]])
        raise _Untranslatable

    def generic_visit(self, node: ast.AST) -> ast.AST:
        allowed = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Constant, ast.Tuple, ast.List,
                   ast.operator, ast.unaryop, ast.boolop, ast.cmpop)  # fmt: skip
        if not isinstance(node, allowed):
            raise _Untranslatable
        return super().generic_visit(node)


# ---- the kernel


def _specification(kernel: Kernel, problem: Problem, device: str, left_out: list[str]) -> dict[str, Any]:
    default = kernel.space.default()
    launches = launches_of(kernel, default, problem)
    first = launches[0]
    if first.maps:
        raise StudyError(f"kernel {kernel.name} gets tensor maps, which a T1 file cannot describe; use --format cu")
    if len(launches) > 1:
        left_out.append(f"{len(launches) - 1} more launches per call")
    sizes = _sizes(kernel, default, problem)
    if sizes is None:
        left_out.append("formulas of grid and block over the genes; the values are those of the default candidate")
        sizes = [tuple(map(str, extents)) for extents in (first.grid, first.block)]
    tensors = dict(kernel.workload.tensors(problem, default))
    macros = [f"-D{name}={value}" for name, value in dict(kernel.macros(default, problem)).items()]
    left_out += _undefined_values(kernel, problem)
    return {
        "Language": "CUDA",
        "Device": {"Name": device},
        "CompilerOptions": [*kernel.options, *macros, *_choice_macros(kernel)],
        "KernelName": first.entry,
        "KernelFile": str(kernel.source_path),
        "GlobalSizeType": "CUDA",
        "GlobalSize": dict(zip("XYZ", sizes[0], strict=True)),
        "LocalSize": dict(zip("XYZ", sizes[1], strict=True)),
        # Kernel Tuner reads ProblemSize instead of GlobalSize; divided by 1, it counts blocks.
        "ProblemSize": list(sizes[0]),
        **{f"GridDiv{axis}": ["1"] for axis in "XYZ"},
        "SharedMemory": first.shared_bytes,
        "Arguments": [*_arguments(first, tensors), *_symbols(tensors)],
    }


def compiled_space(
    kernel: Kernel, problem: Problem, chip: Profile, specification: Mapping[str, Any], left_out: list[str]
) -> str:
    """Compile the default candidate as the file describes it, and return the check in words.

    Args:
        kernel: the kernel.
        problem: the study's problem.
        chip: the study's chip.
        specification: the file's description of the kernel.
        left_out: list of parts that T1 cannot express; named choices are added if their words cannot be macros.

    Raises:
        KernelError: the kernel itself does not compile.
        InternalError: the kernel compiles, but not with the options of the file.
    """
    default = kernel.space.default()
    text, headers = read_source(kernel)
    target = f"{chip.architecture}{kernel.architecture_suffix(default)}"
    genes = [f"-D{gene.name}={default[gene.name]}" for gene in kernel.genes if gene.as_ == "macro"]
    options = ([*specification["CompilerOptions"], *genes], render(kernel, default, problem).options)
    entries = (specification["KernelName"],)
    try:
        made, own = (compile_program(text, kernel.source, headers, one, entries, target) for one in options)
        version = compiler_version()
    except DeviceError as error:
        return f"the kernel was not compiled: {error}"
    if isinstance(own, CompileFailure):
        raise KernelError(f"the default candidate of kernel {kernel.name} does not compile: {own.message}")
    if not isinstance(made, CompileFailure):
        return f"the default candidate compiled with {version} for {target}"
    if named := [gene.name for gene in kernel.genes if _choices(gene)]:
        left_out.append(f"the macros of the named choices of {', '.join(named)}; the source does not compile without")
        return f"does not compile with {version} for {target}: {made.message}"
    raise InternalError(
        f"the space exported for kernel {kernel.name} does not compile with {version} for {target}: {made.message}. "
        "Nothing was written. This is a bug in evokern; please report it with the kernel"
    )


def _undefined_values(kernel: Kernel, problem: Problem) -> list[str]:
    """Return the values that another tuner, which only defines the genes as macros, does not pass to the source."""
    found = []
    if others := [gene.name for gene in kernel.genes if gene.as_ != "macro"]:
        found.append(f"the genes {', '.join(others)}, which are not macros of the source")
    rng = random.Random(0)
    default = dict(kernel.macros(kernel.space.default(), problem))
    drawn = [dict(kernel.macros(kernel.space.draw(rng), problem)) for _ in range(TRIED)]
    if varying := [name for name, value in default.items() if any(one.get(name) != value for one in drawn)]:
        found.append(f"the macros {', '.join(varying)}, which depend on genes; the values are the default candidate's")
    if GENERATED in read_source(kernel)[1]:
        found.append(f"the header {GENERATED}; write it with `{command('render', kernel.name)}`")
    return found


def _choices(gene: Gene) -> bool:
    return gene.as_ == "macro" and any(isinstance(value, str) for value in gene.values)


def _expands(gene: Gene, text: str, headers: Mapping[str, str]) -> bool:
    """Return whether the words of named choices can be macros: names that no source contains."""
    words = {word for source in (text, *headers.values()) for word in re.findall(r"\w+", without_comments(source))}
    return all(str(value).isidentifier() and str(value) not in words for value in gene.values)


def _choice_macros(kernel: Kernel) -> list[str]:
    """Return the options for named choices: their constants, and their words, which other tuners pass as values."""
    text, headers = read_source(kernel)
    made, words = [], Counter(str(value) for gene in kernel.genes if _choices(gene) for value in gene.values)
    for gene in filter(_choices, kernel.genes):
        made += [f"-D{choice_macro(gene, value)}={index}" for index, value in enumerate(gene.values)]
        if _expands(gene, text, headers):
            made += [f"-D{value}={choice_macro(gene, value)}" for value in gene.values if words[str(value)] == 1]
    return made


def _sizes(kernel: Kernel, default: Config, problem: Problem) -> list[tuple[str, ...]] | None:
    """Return grid and block as formulas over the genes, or None if no single formula fits all configurations."""
    recorder = GuardRecorder()
    values = {
        name: Traced.make(value, ("field", name), recorder) if type(value) is int else value
        for name, value in default.items()
    }
    rng = random.Random(0)
    try:
        first = kernel.launches(Config(values), problem)[0]
        formulas = [[simplified(formula_of(extent), {}) for extent in part] for part in (first.grid, first.block)]
        for config in [kernel.space.draw(rng) for _ in range(TRIED)]:
            other = kernel.launches(config, problem)[0]
            numbers = {name: value for name, value in config.items() if isinstance(value, int)}
            for part, wanted in zip(formulas, (other.grid, other.block), strict=True):
                if tuple(evaluate(formula, numbers) for formula in part) != wanted:
                    return None
    except KERNEL_CODE_EXCEPTIONS:  # the declared function needs plain numbers, or rejects this configuration
        return None
    return [tuple(map(_python, part)) for part in formulas]


def _python(formula: Formula) -> str:
    match formula:
        case ("field", name):
            return str(name)
        case ("number", number):
            return str(number)
        case ("neg", inner):
            return f"-({_python(inner)})"
        case (sign, left, right):
            return f"({_python(left)} {sign} {_python(right)})"
    raise AssertionError(formula)


def _arguments(launch: Launch, tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for argument in launch.args:
        if isinstance(argument, Scalar):
            kind = _type(argument.dtype, SCALAR_BYTES)
            made.append({**kind, "MemoryType": "Scalar", "FillType": "Constant", "FillValue": argument.value})
        elif isinstance(argument, str):
            made.append({"Name": argument, **_vector(tensors[argument]), "MemoryType": "Vector"})
    return made


def _symbols(tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    constants = {name: tensor for name, tensor in tensors.items() if tensor.role == "constant"}
    return [{"Name": name, **_vector(tensor), "MemoryType": "Symbol"} for name, tensor in constants.items()]


def _vector(tensor: Tensor) -> dict[str, Any]:
    fill = {"FillType": "Random"} if tensor.given else {"FillType": "Constant", "FillValue": 0}
    access = {"AccessType": _ACCESS.get(tensor.role, "ReadWrite")}
    return {**_type(tensor.dtype, DTYPE_BYTES), "Size": tensor.elements, **access, **fill}


def _type(dtype: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    return {"Type": _TYPES[dtype]} if dtype in _TYPES else {"Type": "custom", "TypeSize": sizes[dtype]}
