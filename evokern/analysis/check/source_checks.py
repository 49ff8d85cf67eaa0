"""Checks that a kernel's source matches its declaration: entry points, macros, state and static asserts."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

from evokern.analysis.check.folder import SAMPLE, Folder, Results
from evokern.compile.device_code import collision_text, macro_collisions
from evokern.cuda_source import KernelFunction
from evokern.declaration.feasibility import check as check_feasible
from evokern.declaration.feasibility import launches_of
from evokern.declaration.genes import Config
from evokern.declaration.header.rules import rules
from evokern.declaration.header.text import choice_macro, constant_macro
from evokern.declaration.kernel import Launch, Scalar, Tensor, TileMap
from evokern.declaration.kernel_files import GENERATED
from evokern.declaration.render import Rendered, macros, read_source
from evokern.errors import KernelError, suggestion
from evokern.hardware.profiles import CHIPS
from evokern.wording import count_verb


def entries(folder: Folder) -> Results:
    """Check that every launch names an entry point and passes matching arguments, with writable outputs."""
    kernel = folder.kernel
    seen: dict[str, None] = {}
    rng = random.Random(0)
    configs = [kernel.space.default(), *(kernel.space.draw(rng) for _ in range(SAMPLE))]
    chip = CHIPS["h200"]
    for config, problem in ((c, p) for c in configs for p in folder.problems[:1]):
        if config != configs[0] and check_feasible(kernel, config, [problem], chip) is not None:
            continue
        tensors = kernel.workload.buffers(problem, config)
        fault = _missing_constant(folder, tensors)
        unwritten: dict[str, str] = {}
        written: set[str] = set()
        for launch in launches_of(kernel, config, problem) if not fault else ():
            entry = folder.source.entry(launch.entry).entry
            seen[entry.qualified] = None
            fault = fault or _launch_fault(launch, entry, tensors)
            if fault:
                break
            for parameter, argument in zip(entry.parameters, launch.args, strict=True):
                if isinstance(argument, TileMap):
                    written.add(argument.tensor)
                elif isinstance(argument, str) and tensors[argument].role in ("output", "inout"):
                    if parameter.const:
                        unwritten[argument] = f"{launch.entry}: {parameter.type} {parameter.name}"
                    else:
                        written.add(argument)
        for name in unwritten.keys() - written:
            fault = fault or (
                f"{unwritten[name]} is const but receives the {tensors[name].role} {name!r}; drop the const"
            )
        if fault:
            yield False, fault
            return
    yield True, ", ".join(seen)


def _missing_constant(folder: Folder, tensors: Mapping[str, Tensor]) -> str:
    """Return that the source lacks the array of a constant tensor, or an empty string."""
    text = "\n".join([folder.source.text, *folder.source.headers.values()])
    for name in (name for name, tensor in tensors.items() if tensor.role == "constant"):
        if not re.search(rf"__constant__[^;]*\b{re.escape(name)}\b\s*(?:\[|;|=)", text):
            return f"tensor {name!r} is a constant, but {folder.kernel.source} has no __constant__ array of that name"
    return ""


def _launch_fault(launch: Launch, entry: KernelFunction, tensors: Mapping[str, Tensor]) -> str:
    """Return why a launch does not match the parameters of its entry point, or an empty string."""
    if launch.l2_window and launch.l2_window.tensor not in tensors:
        known = suggestion(launch.l2_window.tensor, tensors)
        return f"{launch.entry}: the L2 window names no tensor: {launch.l2_window.tensor!r}; {known}"
    if len(entry.parameters) != len(launch.args):
        given = ", ".join(map(_argument_text, launch.args))
        return (
            f"{entry.signature} takes {len(entry.parameters)} arguments, but the launch passes {len(launch.args)}: "
            f"{given}"
        )
    for parameter, argument in zip(entry.parameters, launch.args, strict=True):
        called = f"{launch.entry}: {parameter.type} {parameter.name}"
        if isinstance(argument, str) and argument not in tensors:
            return f"{launch.entry}: argument {argument!r} is not a tensor; the tensors are {', '.join(tensors)}"
        if isinstance(argument, TileMap) and "__grid_constant__" not in parameter.type:
            return (
                f"{called} gets a tensor map, so its type must be const __grid_constant__ CUtensorMap; tensor copies "
                "read the map from the arguments"
            )
        if parameter.pointer != isinstance(argument, str):
            want = "a tensor" if parameter.pointer else "a Scalar or a TileMap"
            return f"{called} needs {want}, but the launch passes {_argument_text(argument)}"
        if parameter.of_pointers:
            return f"{called} points to pointers, but a tensor contains numbers; pass one pointer for each array"
    return ""


def _argument_text(argument: str | Scalar | TileMap) -> str:
    if isinstance(argument, TileMap):
        return f"a tensor map of {argument.tensor}"
    return argument if isinstance(argument, str) else f"{argument.dtype} {argument.value}"


def declared_state(folder: Folder) -> Results:
    """Check that the source has every variable of the declared state."""
    kernel = folder.kernel
    if not kernel.state:
        return
    source, headers = read_source(kernel)
    text = "\n".join([source, *headers.values()])
    missing = [name for name in kernel.state if not _is_variable(name.rpartition("::")[2], text)]
    known = re.findall(r"__device__[^;(){}]*?(\w+)\s*(?:\[[^;]*\]\s*)?(?:=[^;]*|\{[^;]*)?;", text)
    for name in missing:
        remedy = suggestion(name, dict.fromkeys(known)) or "the source has no __device__ variable"
        yield False, f"state names {name!r}, but {kernel.source} has no variable of that name: {remedy}"
    if not missing:
        yield True, f"restored before every call: {', '.join(kernel.state)}"


def _is_variable(name: str, text: str) -> bool:
    """Return whether a text declares a `__device__` variable, or a static variable of a function."""
    declared = rf"(?:__device__|\bstatic\b|__managed__)[^;(){{}}]*\b{re.escape(name)}\b\s*(?:\[|;|=|\{{|,)"
    return bool(re.search(declared, text)) or name.startswith("_Z")  # mangled names do not appear in the source


def gene_macros(folder: Folder) -> Results:
    """Check that the source uses every gene and problem macro, and includes the generated header or has `#error`s."""
    kernel = folder.kernel
    source, headers = read_source(kernel)
    generated = headers.pop(GENERATED, None) is not None
    constants = [gene.name for gene in kernel.genes if gene.as_ == "constexpr"]
    if constants and not generated:
        add = f'add #include "{GENERATED}" to {kernel.source}, which defines them'
        yield False, f"{', '.join(constants)}: as_='constexpr' needs the generated header; {add}"
        return
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", "\n".join([source, *headers.values()]), flags=re.DOTALL)
    conditions = re.compile(r"^[ \t]*#[ \t]*(?:if|ifdef|ifndef|elif)\b.*$", re.MULTILINE)
    words = set(re.findall(r"[A-Za-z_]\w*", conditions.sub(" ", text))) | _tested(conditions.findall(text))
    required = {macro.name for macro in folder.source.macros if macro.kind == "required"}
    hidden = {choice_macro(gene, value) for gene in kernel.genes for value in gene.values if isinstance(value, str)}
    hidden |= {constant_macro(gene.name) for gene in kernel.genes}
    given = macros(kernel, kernel.space.default(), folder.problems[0])
    names = [name for name in given if name not in hidden]
    names += [gene.name for gene in kernel.genes if gene.as_ != "macro"]
    arguments = {gene.name for gene in kernel.genes if gene.as_ == "template"}
    words -= arguments  # a template argument has an effect only through the entry point
    unused = [name for name in names if name not in words]
    launch_only = {name for name in unused if _changes_the_launch(folder, name)}
    unused = [name for name in unused if name not in launch_only]
    lenient = [] if generated else [name for name in names if name not in required | launch_only | arguments]
    program = Rendered(source, kernel.source, headers, tuple(f"-D{name}={value}" for name, value in given.items()), ())
    found = [(file, one) for file, places in macro_collisions(program).items() for one in places]
    wrong = [collision_text(file, one) for file, one in found]
    replaced = {one.name for _, one in found}
    unused = [name for name in unused if name not in replaced]
    lenient = [name for name in lenient if name not in replaced]
    if unused:
        wrong.append(f"{kernel.source} never uses {', '.join(unused)}, so a different value has no effect")
    if lenient:
        wrong.append(
            f'{kernel.source} has no #error for an undefined {", ".join(lenient)}; add #include "{GENERATED}" or an '
            "#error; otherwise a default value may apply without notice"
        )
    if wrong:
        yield False, "; ".join(wrong)
    else:
        through = f"; used only by kernel.py: {', '.join(sorted(launch_only))}" if launch_only else ""
        safe = f"{GENERATED} has a value for each" if generated else "each has an #error if undefined"
        yield True, f"{count_verb(len(names) - len(launch_only), 'macro')} used; {safe}{through}"


def _changes_the_launch(folder: Folder, name: str) -> bool:
    """Return whether a gene that the source does not name changes a launch or another macro."""
    kernel, problem, rng = folder.kernel, folder.problems[0], random.Random(0)
    if name not in {gene.name for gene in kernel.genes}:
        return False
    gene = kernel.space.gene(name)

    def seen(config: Config) -> tuple[object, ...]:
        return launches_of(kernel, config, problem), dict(kernel.macros(config, problem))

    if len(gene.values) == 1:
        # Try a value outside the space, because the gene has only one.
        (only,) = gene.values
        config = kernel.space.default()
        other = Config({**config, name: 2 * only if isinstance(only, int) else f"{only}_"})
        try:
            return seen(other) != seen(config)
        except KernelError:
            return True
    for config in [kernel.space.default(), *(kernel.space.draw(rng) for _ in range(SAMPLE))]:
        if kernel.space.active(gene, config):
            tried = gene.values if len(gene.values) <= _TRIED else rng.sample(gene.values, _TRIED)
            own = seen(config)
            if any(seen(kernel.space.canonical({**config, name: value})) != own for value in tried):
                return True
    return False


_TRIED = 32
"""Maximum number of a gene's values that are tried in each configuration."""


def _tested(conditions: Sequence[str]) -> set[str]:
    """Return the names whose *value* a condition uses; `defined(NAME)` alone does not count."""
    return {word for line in conditions if "defined" not in line for word in re.findall(r"[A-Za-z_]\w*", line)[1:]}


def static_asserts(folder: Folder) -> Results:
    """Check that each static assert whose message starts with a name has a constraint with the same name.

    If the source includes the generated header, count the assertions that the header contains.
    """
    source, headers = read_source(folder.kernel)
    generated = headers.pop(GENERATED, None) is not None
    text = "\n".join([source, *headers.values()])
    asserted = set(re.findall(r'static_assert\s*\([^;]*?"(\w+):', text))
    declared = {constraint.name for constraint in folder.kernel.constraints}
    missing = sorted(asserted - declared)
    if missing:
        yield (
            False,
            f"static_assert {', '.join(missing)} has no constraint of the same name, so candidates would fail to "
            "compile; add the constraint",
        )
        return
    conditions = " ".join(re.findall(r"static_assert\s*\(([^;]*?)\)\s*;", text))
    both = len(declared & (asserted | set(re.findall(r"\w+", conditions))))
    if generated:
        count = len(rules(folder.kernel, folder.problems[0])[0])
        yield (
            True,
            f"{GENERATED} asserts {count} of {len(declared)} constraints" + (f"; {both} in the source" if both else ""),
        )
        return
    yield (
        True,
        f"{both} of {len(declared)} constraints also have a static_assert" if declared else "no constraints declared",
    )
