"""Code of an operator in C++ and in Python: the shape of a call, the dispatch, and the numbers of the launches.

Both texts are written from the same description (`Description`), and mean the same for each shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pprint import pformat
from typing import Any

from evokern.declaration.kernel import Kernel
from evokern.escaping import c_string, in_comment, in_docstring
from evokern.export.formula import cpp, member, python
from evokern.export.launcher import conditions
from evokern.pack.operations import TorchOperation
from evokern.pack.signature import Derived, Mode, OperatorArgument, OperatorBuffer, Signature
from evokern.pack.tree import CAPABILITY, MODE, Tree, TreeLeaf
from evokern.pack.variant import Variant

ELSEWHERE = "elsewhere"
"""Suffix of the operator that reports errors and runs baselines."""
_CHOSEN = "the number of a variant, or -1 - n for baseline n"
"""Result of `choose`, for comments."""


@dataclass(frozen=True)
class Description:
    """Everything that the code of an operator is written from."""

    kernel: Kernel
    """The kernel."""
    package: str
    """Name of the package, and of the operator's namespace."""
    name: str
    """Name of the operator."""
    signature: Signature
    """Arguments and results."""
    variants: tuple[Variant, ...]
    """Variants, each for one mode."""
    tree: Tree
    """Dispatch."""
    operation: TorchOperation | None = None
    """Operation of torch that the operator computes; None for any other kernel."""

    def mode_of(self, variant: Variant) -> int:
        """Return the index of a variant's mode."""
        for index, mode in enumerate(self.signature.modes):
            if all(str(variant.problem[name]) == value for name, value in mode.names.items()):
                return index
        raise AssertionError(variant.title)

    def tables(self) -> list[dict[str, Any]]:
        """Return the launches of each variant as plain data (`Variant.table`)."""
        found = []
        for variant in self.variants:
            mode = self.signature.modes[self.mode_of(variant)]
            names = [*(b.declared for b in (*mode.inputs, *mode.outputs)), *variant.workspaces]
            found.append(variant.table({name: index for index, name in enumerate(names)}))
        return found


# ---- C++


def cpp_code(made: Description) -> str:
    """Return `operator.cpp`."""
    signature = made.signature
    inputs, outputs, arguments = len(signature.inputs), len(signature.outputs), signature.arguments
    parts = [
        f"// Operator {made.package}::{made.name}: dispatch and launches, written by evokern. Do not edit.\n",
        '#include "operator.h"\n',
        "namespace {\n",
        _cpp_shape(made),
        *(_cpp_read(index, mode, arguments) for index, mode in enumerate(signature.modes)),
        *(_cpp_takes(made, index) for index in range(len(made.variants))),
        f"// Returns {_CHOSEN}.",
        "int choose(const Shape& shape) {",
        *_tree_code(made.tree, 1, "if ({}) {{", _cpp_leaf),
        "}\n",
        *(_cpp_numbers(index, variant) for index, variant in enumerate(made.variants)),
        *(_cpp_outputs(index, mode) for index, mode in enumerate(signature.modes)),
        *(_cpp_table(index, table) for index, table in enumerate(made.tables())),
        _cpp_lists(made),
        "}  // namespace\n",
        _CPP_RUN.replace("{INPUTS}", str(inputs))
        .replace("{OUTPUTS}", str(outputs))
        .replace("{ARGUMENTS}", str(len(arguments)))
        .replace("{MODES}", str(len(signature.modes)))
        .replace("{VARIANTS}", str(len(made.variants)))
        .replace("{NUMBERS}", str(max(len(list(one.numbers())) for one in made.variants)))
        .replace("{WORKSPACES}", str(max(len(one.workspaces) for one in made.variants)))
        .replace("{TAKEN}", ", ".join(f"Tensor::taken(stack[{i}])" for i in range(inputs)))
        .replace("{FACTS}", ", ".join(f"Facts(inputs[{i}])" for i in range(inputs)))
        .replace("{ELSEWHERE}", c_string(f"{made.package}::{made.name}_{ELSEWHERE}"))
        .replace("{REGISTERED}", f"{made.package}, CUDA")
        .replace("{NAME}", c_string(made.name)),
    ]
    return "\n".join(parts)


def _cpp_shape(made: Description) -> str:
    members = [CAPABILITY, MODE, *(member(entry.name) for entry in made.signature.fields)]
    return f"struct Shape {{\n  int64_t {', '.join(f'{name} = 0' for name in members)};\n}};\n"


def _cpp_read(index: int, mode: Mode, arguments: Sequence[OperatorArgument]) -> str:
    lines = [
        "// Reads the shape of a call; returns false if the shapes of the inputs do not fit each other.",
        f"bool read_{index}(const int64_t* const* sizes, [[maybe_unused]] const int64_t* arguments, Shape& shape) {{",
        f"  shape.{MODE} = {index};",
    ]
    for one in mode.derived:
        lines.append(f"  shape.{member(one.field)} = {_derived(one, '/')};")
    for place, argument in enumerate(arguments):
        lines.append(f"  shape.{member(argument.field)} = arguments[{place}];")
    checks = [
        f"sizes[{number}][{axis}] == {cpp(formula)}"
        for number, buffer in enumerate(mode.inputs)
        for axis, formula in enumerate(buffer.shape)
    ]
    checks += [f"{_product(buffer)} <= MOST_ELEMENTS" for buffer in mode.outputs]
    return "\n".join([*lines, f"  return {' && '.join(checks) or 'true'};", "}\n"])


def _product(buffer: OperatorBuffer) -> str:
    """Return the number of elements in C++."""
    return " * ".join(f"({cpp(extent)})" for extent in buffer.shape) or "1"


def _dtype(buffer: OperatorBuffer) -> str:
    """Return torch's number of a data type in C++."""
    from evokern.gate.data import torch_dtype  # imports torch

    return f"aoti_torch_dtype_{str(torch_dtype(buffer.dtype)).removeprefix('torch.')}()"


def _derived(one: Derived, divide: str) -> str:
    text = f"sizes[{one.buffer}][{one.axis}]"
    text += f" * {one.times}" if one.times > 1 else ""
    return text + (f" {divide} {one.over}" if one.over > 1 else "")


def _cpp_takes(made: Description, index: int) -> str:
    variant = made.variants[index]
    rules = [f"({condition})" for condition, _, _ in conditions(made.kernel, variant.traces)]
    own = [f"shape.{CAPABILITY} == {variant.capability}", f"shape.{MODE} == {made.mode_of(variant)}", *rules]
    joined = " &&\n         ".join(own)
    return f"{in_comment('// ' + variant.title)}\nbool takes_{index}(const Shape& shape) {{\n  return {joined};\n}}\n"


def _condition(factors: Sequence[str], most: int) -> str:
    """Return a decision, which C++ and Python read alike; products are computed in double and so cannot overflow."""
    product = " * ".join(f"shape.{_shape_member(name)}" for name in factors)
    return f"{product} <= {most}" if len(factors) == 1 else f"1.0 * {product} <= {float(most)!r}"


def _cpp_leaf(leaf: TreeLeaf) -> list[str]:
    tried = [f"if (takes_{number}(shape)) return {number};" for number in leaf.variants]
    return [*tried, f"return {-1 - leaf.baseline};"]


def _shape_member(field: str) -> str:
    return field if field in (CAPABILITY, MODE) else member(field)


def _tree_code(tree: Tree, depth: int, split: str, leaf: Any, end: str = "  }") -> Iterator[str]:
    """Yield the lines of a decision tree.

    Args:
        tree: the tree.
        depth: number of indentations of two blanks (four in Python).
        split: line of a decision, with a place for its condition.
        leaf: function that returns the lines of a leaf.
        end: last line of the first branch; empty in Python.
    """
    blank = ("  " if end else "    ") * depth
    if isinstance(tree, TreeLeaf):
        yield from (blank + line for line in leaf(tree))
        return
    yield blank + split.format(_condition(tree.fields, tree.most))
    yield from _tree_code(tree.yes, depth + 1, split, leaf, end)
    if end:
        yield blank + end.strip()
    yield from _tree_code(tree.no, depth, split, leaf, end)


def _cpp_numbers(index: int, variant: Variant) -> str:
    rows = [
        f"  n[{place}] = {cpp(formula)};  {in_comment('// ' + what)}"
        for place, (what, formula) in enumerate(variant.numbers())
    ]
    head = f"void numbers_{index}([[maybe_unused]] const Shape& shape, int64_t* n) {{"
    return "\n".join([head, *rows, "}\n"])


def _cpp_outputs(index: int, mode: Mode) -> str:
    lines = []
    for number, buffer in enumerate(mode.outputs):
        extents = ", ".join(f"static_cast<int64_t>({cpp(extent)})" for extent in buffer.shape) or "0"
        lines.append(f"  const int64_t extents_{number}[] = {{{extents}}};")
        rank, dtype = len(buffer.shape), _dtype(buffer)
        lines.append(f"  results[{number}] = empty(extents_{number}, {rank}, {dtype}, device);")
        lines.append(
            f"  buffers[{number}] = {{results[{number}].data(), bytes_of(extents_{number}, {rank}, {dtype})}};"
        )
    head = (
        f"void results_{index}([[maybe_unused]] const Shape& shape, [[maybe_unused]] int device, "
        "[[maybe_unused]] Tensor* results, [[maybe_unused]] Memory* buffers) {"
    )
    return "\n".join([head, *lines, "}\n"])


def _cpp_table(index: int, table: dict[str, Any]) -> str:
    lines = []
    symbols = ", ".join(c_string(symbol) for symbol in table["symbols"])
    lines.append(f"const char* const symbols_{index}[] = {{{symbols}}};")
    launches = []
    for number, launch in enumerate(table["launches"]):
        slots = ", ".join(f"{{{kind.upper()}, {value}ULL}}" for kind, value in launch["arguments"])
        lines.append(f"const Slot slots_{index}_{number}[] = {{{slots or '{CONSTANT, 0}'}}};")
        maps = ", ".join(
            f"{{{one['buffer']}, {one['dtype']}, {one['rank']}, {one['swizzle']}, {one['number']}}}"
            for one in launch["maps"]
        )
        lines.append(f"const MapTable maps_{index}_{number}[] = {{{maps or '{0, 0, 0, 0, 0}'}}};")
        cluster = ", ".join(map(str, launch["cluster"] or (0, 0, 0)))
        window, ratio = launch["window"] or (-1, 0.0)
        launches.append(
            f"{{{launch['entry']}, {launch['first']}, {str(launch['cooperative']).lower()}, {{{cluster}}}, {window}, "
            f"{float(ratio)!r}f, slots_{index}_{number}, {len(launch['arguments'])}, maps_{index}_{number}}}"
        )
    lines.append(f"const LaunchTable launches_{index}[] = {{{', '.join(launches)}}};")
    spaces = ", ".join(f"{{{one['number']}, {str(one['zero']).lower()}}}" for one in table["workspaces"])
    lines.append(f"const Workspace workspaces_{index}[] = {{{spaces or '{0, false}'}}};\n")
    return "\n".join(lines)


def _cpp_lists(made: Description) -> str:
    rows = [
        f"    {{{table['capability']}, {table['alignment']}, {str(table['large_cluster']).lower()}, "
        f"{str(table['keeps_state']).lower()}, symbols_{i}, {len(table['symbols'])}, launches_{i}, "
        f"{len(table['launches'])}, workspaces_{i}, {len(table['workspaces'])}}},"
        for i, table in enumerate(made.tables())
    ]
    modes = []
    for mode in made.signature.modes:
        inputs = ", ".join(f"{{{_dtype(b)}, {len(b.shape)}}}" for b in mode.inputs)
        modes.append(f"    {{{inputs}}},")
    counted = range(len(made.variants)), range(len(made.signature.modes))
    return "\n".join(
        [
            "const VariantTable variants[] = {", *rows, "};",
            f"const BufferTable inputs_of[][{len(made.signature.inputs)}] = {{", *modes, "};",
            "using Numbers = void (*)(const Shape&, int64_t*);",
            f"const Numbers numbers_of[] = {{{', '.join(f'numbers_{i}' for i in counted[0])}}};",
            "using Read = bool (*)(const int64_t* const*, const int64_t*, Shape&);",
            f"const Read read_of[] = {{{', '.join(f'read_{i}' for i in counted[1])}}};",
            "using Results = void (*)(const Shape&, int, Tensor*, Memory*);",
            f"const Results results_of[] = {{{', '.join(f'results_{i}' for i in counted[1])}}};",
            f"Code codes[{len(made.variants)}];\n",
        ]
    )  # fmt: skip


_CPP_RUN = """\
// ---- the operator

constexpr int INPUTS = {INPUTS}, OUTPUTS = {OUTPUTS}, ARGUMENTS = {ARGUMENTS}, MODES = {MODES}, VARIANTS = {VARIANTS};
constexpr int NUMBERS = {NUMBERS}, WORKSPACES = {WORKSPACES}, BUFFERS = INPUTS + OUTPUTS + WORKSPACES;

// Calls the operator in Python that reports errors and runs baselines. Its last result is the text of an error.
static void run_elsewhere(StableIValue* stack, Tensor* inputs, const int64_t* arguments) {
  StableIValue passed[std::max(INPUTS + ARGUMENTS, OUTPUTS + 1)];
  for (int i = 0; i < INPUTS; i++) passed[i] = inputs[i].given();
  for (int i = 0; i < ARGUMENTS; i++) passed[INPUTS + i] = torch::stable::detail::from(arguments[i]);
  checked(torch_call_dispatcher({ELSEWHERE}, "", passed, TORCH_ABI_VERSION), "cannot run the baseline");
  Tensor results[OUTPUTS + 1];
  for (int i = 0; i <= OUTPUTS; i++) results[i] = Tensor::taken(passed[i]);
  int64_t length = 0;
  checked(aoti_torch_get_numel(results[OUTPUTS].get(), &length), "cannot run the baseline");
  if (length > 0) throw std::runtime_error(std::string(static_cast<const char*>(results[OUTPUTS].data()), length));
  for (int i = 0; i < OUTPUTS; i++) stack[i] = results[i].given();
}

static void run(StableIValue* stack, uint64_t, uint64_t) {
  Tensor inputs[INPUTS] = {{TAKEN}};
  int64_t arguments[ARGUMENTS + 1] = {};
  for (int i = 0; i < ARGUMENTS; i++) arguments[i] = torch::stable::detail::to<int64_t>(stack[INPUTS + i]);
  const Facts facts[INPUTS] = {{FACTS}};
  const int64_t* extents[INPUTS];
  for (int i = 0; i < INPUTS; i++) extents[i] = facts[i].sizes;
  const int index = facts[0].index;

  Shape shape;
  int chosen = -1;
  for (int mode = 0; mode < MODES && chosen < 0; mode++) {
    bool fits = true;
    for (int i = 0; i < INPUTS; i++) fits = fits && facts[i].fits(inputs_of[mode][i], index);
    if (!fits || !read_of[mode](extents, arguments, shape)) continue;
    shape.evokern_sm = device(index).capability;
    chosen = choose(shape);
  }
  Memory buffers[BUFFERS + 1];
  for (int i = 0; i < INPUTS && chosen >= 0; i++) {
    buffers[i] = {inputs[i].data(), facts[i].elements * aoti_torch_dtype_element_size(facts[i].dtype)};
    if (reinterpret_cast<uintptr_t>(buffers[i].address) % variants[chosen].alignment != 0) chosen = -1;
  }
  if (chosen < 0) return run_elsewhere(stack, inputs, arguments);

  const VariantTable& table = variants[chosen];
  int64_t numbers[NUMBERS];
  numbers_of[chosen](shape, numbers);
  void* stream = nullptr;
  checked(driver().current_stream(index, &stream), "the GPU has no current stream");
  Tensor results[OUTPUTS + 1], workspaces[WORKSPACES + 1];
  results_of[shape.evokern_mode](shape, index, results, buffers + INPUTS);
  const ContextGuard context(device(index));
  Loaded& code = loaded(codes[chosen], table, index, stream);
  for (int i = 0; i < table.workspace_count; i++) {
    const int64_t bytes = numbers[table.workspaces[i].number];
    workspaces[i] = empty(&bytes, 1, aoti_torch_dtype_uint8(), index);
    Memory& space = buffers[INPUTS + OUTPUTS + i] = {workspaces[i].data(), static_cast<size_t>(bytes)};
    if (!table.workspaces[i].zero || bytes == 0) continue;
    driver().check(driver().fill(reinterpret_cast<uint64_t>(space.address), 0, space.bytes, stream), "cannot clear");
  }
  enqueue(table, code, numbers, buffers, index, stream);
  codes[chosen].calls.fetch_add(1, std::memory_order_relaxed);
  for (int i = 0; i < OUTPUTS; i++) stack[i] = results[i].given();
}

STABLE_TORCH_LIBRARY_IMPL({REGISTERED}, m) { m.impl({NAME}, &run); }

// ---- functions for Python

#pragma GCC visibility push(default)
extern "C" {
void evokern_set_code(int variant, const char* cubin, size_t size) { codes[variant].cubin.assign(cubin, size); }
uint64_t evokern_calls(int variant) { return codes[variant].calls.load(); }
int evokern_choose(const int64_t* values) {
  Shape shape;
  std::copy_n(values, sizeof(Shape) / sizeof(int64_t), reinterpret_cast<int64_t*>(&shape));
  return choose(shape);
}
void evokern_numbers(int variant, const int64_t* values, int64_t* numbers) {
  Shape shape;
  std::copy_n(values, sizeof(Shape) / sizeof(int64_t), reinterpret_cast<int64_t*>(&shape));
  numbers_of[variant](shape, numbers);
}
}
#pragma GCC visibility pop
"""


# ---- Python


def python_code(made: Description) -> str:
    """Return `rules.py`, with the same dispatch and numbers as `operator.cpp`."""
    signature = made.signature
    members = [CAPABILITY, MODE, *(member(entry.name) for entry in signature.fields)]
    parts = [
        f'"""Dispatch and launches of {made.package}::{made.name}, written by evokern. Do not edit."""\n',
        "from __future__ import annotations\n",
        "from typing import NamedTuple\n\n",
        "class Shape(NamedTuple):",
        '    """Architecture, mode, and numeric fields of the problem of a call."""\n',
        *(f"    {name}: int" for name in members),
        "\n",
        *(_python_constant(name, value) for name, value in _constants(made)),
        "",
        *(_python_read(index, mode, signature) for index, mode in enumerate(signature.modes)),
        *(_python_results(index, mode) for index, mode in enumerate(signature.modes)),
        *(_python_refusal(made, index) for index in range(len(made.variants))),
        *(_python_numbers(index, variant) for index, variant in enumerate(made.variants)),
        "def choose(shape):",
        f'    """Return {_CHOSEN}."""',
        *_tree_code(made.tree, 1, "if {}:", _python_leaf, ""),
        "\n\ndef preferred(shape):",
        '    """Return the variants that may run for a shape, in the order of preference."""',
        *_tree_code(made.tree, 1, "if {}:", lambda leaf: [f"return {leaf.variants!r}"], ""),
        "\n",
        *(
            f"{name} = ({''.join(f'{stem}_{i}, ' for i in range(count))})"
            for name, stem, count in (
                ("READ", "read", len(signature.modes)),
                ("INPUT_SIZES", "input_sizes", len(signature.modes)),
                ("RESULTS", "results", len(signature.modes)),
                ("REFUSAL", "refusal", len(made.variants)),
                ("NUMBERS", "numbers", len(made.variants)),
            )
        ),
        "",
    ]
    return "\n".join(parts)


def _constants(made: Description) -> Iterator[tuple[str, Any]]:
    signature = made.signature
    results = ["Tensor"] * len(signature.outputs)
    joined = f"({', '.join(results)})" if len(results) != 1 else results[0]
    elsewhere = f"({', '.join([*results, 'Tensor'])})" if results else "Tensor"
    yield "NAME", made.name
    yield "SCHEMA", f"{made.name}({signature.arguments_schema}) -> {joined}"
    yield "ELSEWHERE", f"{made.name}_{ELSEWHERE}({signature.arguments_schema}) -> {elsewhere}"
    yield "INPUTS", tuple(b.name for b in signature.inputs)
    yield "DECLARED", tuple(b.declared for b in signature.inputs)
    yield "CHANGED", tuple(i for i, b in enumerate(signature.inputs) if b.changed)
    yield "OUTPUTS", tuple(b.declared for b in signature.outputs)
    yield "ARGUMENTS", tuple((a.name, a.default) for a in signature.arguments)
    yield "FIELDS", tuple(entry.name for entry in signature.fields)
    yield (
        "MODES",
        [
            {
                "names": dict(mode.names),
                "inputs": [(b.dtype, len(b.shape), b.drawn, b.scale, b.low, b.high) for b in mode.inputs],
                "outputs": [b.dtype for b in mode.outputs],
            }
            for mode in signature.modes
        ],
    )
    yield "ARGUMENT_FIELDS", tuple((a.name, a.field) for a in signature.arguments)
    yield (
        "VARIANTS",
        [
            {
                **table,
                "mode": made.mode_of(variant),
                "problem": {entry.name: variant.problem[entry.name] for entry in signature.fields},
            }
            for table, variant in zip(made.tables(), made.variants, strict=True)
        ],
    )


def _python_constant(name: str, value: Any) -> str:
    return f"{name} = {pformat(value, width=116, sort_dicts=False)}"


def _python_read(index: int, mode: Mode, signature: Signature) -> str:
    values = {one.field: _derived(one, "//") for one in mode.derived}
    values |= {argument.field: f"arguments[{place}]" for place, argument in enumerate(signature.arguments)}
    fields = "".join(f", {values[entry.name]}" for entry in signature.fields)
    return (
        f"def read_{index}(sizes, arguments, capability):\n"
        '    """Return the shape of a call; its inputs must then have the sizes that it determines."""\n'
        f"    return Shape(capability, {index}{fields})\n\n\n"
        f"def input_sizes_{index}(shape):\n"
        '    """Return the sizes of the inputs."""\n'
        f"    return {_sizes(mode.inputs)}\n\n"
    )


def _sizes(buffers: Sequence[OperatorBuffer]) -> str:
    """Return the sizes of buffers as a list in Python."""
    tuples = ("(" + "".join(f"{python(extent)}, " for extent in buffer.shape).strip() + ")" for buffer in buffers)
    return f"[{', '.join(tuples)}]"


def _python_results(index: int, mode: Mode) -> str:
    lines = [f"def results_{index}(shape):", '    """Return the sizes of the results."""']
    return "\n".join([*lines, f"    return {_sizes(mode.outputs)}\n\n"])


def _python_refusal(made: Description, index: int) -> str:
    variant = made.variants[index]
    lines = [
        f"def refusal_{index}(shape):",
        f'    """Return why this variant does not take a shape; empty if it does: {in_docstring(variant.title)}."""',
        f"    if shape.{CAPABILITY} != {variant.capability}:",
        f"        return {f'it was compiled for sm_{variant.capability}'!r}",
        f"    if shape.{MODE} != {made.mode_of(variant)}:",
        "        return 'it was compiled for other data types'",
    ]
    for _, condition, reason in conditions(made.kernel, variant.traces):
        lines += [f"    if not ({condition}):", f"        return {reason!r}"]
    return "\n".join([*lines, "    return ''\n\n"])


def _python_numbers(index: int, variant: Variant) -> str:
    rows = [f"        {python(formula)},  {in_comment('# ' + what)}" for what, formula in variant.numbers()]
    head = [f"def numbers_{index}(shape):", '    """Return the numbers of the launches."""', "    return ("]
    return "\n".join([*head, *rows, "    )\n\n"])


def _python_leaf(leaf: TreeLeaf) -> list[str]:
    tried = []
    for number in leaf.variants:
        tried += [f"if not refusal_{number}(shape):", f"    return {number}"]
    return [*tried, f"return {-1 - leaf.baseline}"]
