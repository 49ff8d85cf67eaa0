"""C++ code that calls the reference in an exported program, for all elements or for a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evokern.declaration.kernel import Kernel, Problem
from evokern.export.bound_check import SOURCES, BoundFunction, ExportedLimit, growth
from evokern.export.formula import member
from evokern.export.launcher import number
from evokern.export.sampled_check import SampledField
from evokern.export.trace import Traces

WHOLE_S = 5.0
"""Longest time of the reference for all elements, in seconds; above it, the program checks a sample."""
SAMPLE_S = 0.5
"""Shortest time of the reference for a sample, in seconds; the longest is four times that."""
TIMED_S = 0.05
"""Shortest sample time from which the time for all elements is estimated, in seconds."""


def reference_runs(
    kernel: Kernel,
    problem: Problem,
    traces: Traces,
    by_role: Mapping[str, Sequence[str]],
    sampled: Sequence[SampledField],
    limits: Mapping[str, ExportedLimit],
) -> str:
    """Return the C++ function `run_reference`, and `reference_within` if fields can be sampled.

    Args:
        kernel: kernel with the reference.
        problem: the study's problem, for fields that are not numbers.
        traces: extents as formulas over the fields.
        by_role: names of inputs and outputs, in the order of the reference's arguments.
        sampled: fields that can be sampled.
        limits: allowed error of each output.
    """
    used = dict.fromkeys(limit.function.name for limit in limits.values() if limit.function is not None)
    position = {one.name: index for index, one in enumerate(sampled)}
    parts = {name: f"part_{index}" for index, name in enumerate(by_role["input"])}
    lines = [
        "/// Returns the reference values of every output, for all indices or the picked indices of sampled fields.",
        "std::vector<Expected> run_reference(const Shape& shape, std::vector<Input>& inputs,",
        "                                    [[maybe_unused]] const std::vector<std::vector<long long>>& picked) {",
        f"  std::vector<Expected> expected({len(by_role['output'])});",
    ]
    arguments, values = [], _vectors(by_role["input"], sampled)
    for entry in kernel.fields:
        if entry.name in traces.fields:
            arguments.append(_field(f"shape.{member(entry.name)}", position.get(entry.name)))
        elif len(entry.choices) > 1:
            arguments.append(str(entry.choices.index(problem[entry.name])))
    for index, name in enumerate(by_role["input"]):
        whole = f"inputs[{index}].values"
        if any(name in one.axes for one in sampled):
            lines += [
                f"  std::vector<double> {parts[name]};",
                f"  if (!picked.empty()) {parts[name]} = taken({whole}, {_places(name, traces, sampled)});",
            ]
        arguments.append(f"{values[index]}.data()")
    for index, name in enumerate(by_role["output"]):
        extents = traces.tensors[name].shape
        count = " * ".join(f"static_cast<size_t>({number(extent)})" for extent in extents) or "1"
        if sampled:
            lines.append(f"  if (!picked.empty()) expected[{index}].places = {_places(name, traces, sampled)};")
            count = f"picked.empty() ? {count} : expected[{index}].places.size()"
        lines.append(f"  expected[{index}].values.resize({count});")
        arguments.append(f"expected[{index}].values.data()")
    lines.append(f"  evokern_reference::reference({', '.join(arguments)});")
    for names in dict.fromkeys(limit.absolute for limit in limits.values() if limit.absolute):
        lines += _magnitudes(names, [name for name in limits if limits[name].absolute == names], by_role, arguments)
    of = dict(zip(by_role["input"], values, strict=True))
    for name, limit in limits.items():
        if limit.function is not None:
            call = _call(limit.function, of, traces, growth(kernel, problem, traces))
            lines.append(f"  {limit.function.name}(expected[{by_role['output'].index(name)}], {call});")
    lines += ["  return expected;", "}", ""]
    absolute = dict.fromkeys(name for limit in limits.values() for name in limit.absolute)
    entire = [by_role["input"].index(name) for name in absolute if not any(name in one.axes for one in sampled)]
    return "\n".join([*(SOURCES[name] for name in used), *lines, *([_within(sampled, entire)] if sampled else ())])


def _vectors(inputs: Sequence[str], sampled: Sequence[SampledField]) -> list[str]:
    """Return the C++ vector of each input's values, or of the picked ones."""
    return [
        f"(picked.empty() ? inputs[{index}].values : part_{index})"
        if any(name in one.axes for one in sampled)
        else f"inputs[{index}].values"
        for index, name in enumerate(inputs)
    ]


def _call(function: BoundFunction, values: Mapping[str, str], traces: Traces, grown: str) -> str:
    """Return the arguments of a function that computes a bound."""
    operands = ["std::vector<double>()" if name is None else values[name] for name in function.operands]
    extents = [f"static_cast<size_t>({number(traces.tensors[name].shape[axis])})" for name, axis in function.extents]
    factors = [f"{factor!r} * {grown}" for factor in function.factors]
    return ", ".join([*operands, *extents, *map(repr, function.numbers), *factors])


def _magnitudes(
    absolute: Sequence[str], outputs: Sequence[str], by_role: Mapping[str, Sequence[str]], arguments: Sequence[str]
) -> list[str]:
    """Return C++ that calls the reference again on absolute values of some inputs, for bounds on sums.

    Args:
        absolute: the inputs.
        outputs: the outputs with such a bound; the results of others are discarded.
        by_role: names of inputs and outputs.
        arguments: arguments of the reference: fields, inputs, outputs.
    """
    lines, changed = ["  {  // magnitudes of the bounds on rounding errors"], list(arguments)
    first = len(arguments) - len(by_role["output"])
    for name in absolute:
        index = by_role["input"].index(name)
        at = first - len(by_role["input"]) + index
        if "picked" in arguments[at]:
            lines.append(f"    const std::vector<double> absolute_{index} = absolute(part_{index});")
        changed[at] = arguments[at].replace(f"inputs[{index}].values", f"magnitudes_of(inputs[{index}])")
        changed[at] = changed[at].replace(f"part_{index}", f"absolute_{index}")
    for index in range(len(by_role["output"])):
        lines.append(f"    std::vector<double> magnitudes_{index}(expected[{index}].values.size());")
        changed[first + index] = f"magnitudes_{index}.data()"
    lines.append(f"    evokern_reference::reference({', '.join(changed)});")
    lines += [
        f"    expected[{by_role['output'].index(name)}].magnitudes.swap(magnitudes_{by_role['output'].index(name)});"
        for name in outputs
    ]
    return [*lines, "  }"]


def _field(whole: str, position: int | None) -> str:
    if position is None:
        return f"static_cast<int>({whole})"
    picked = f"static_cast<long long>(picked[{position}].size())"
    return f"static_cast<int>(picked.empty() ? {whole} : {picked})"


def _places(name: str, traces: Traces, sampled: Sequence[SampledField]) -> str:
    """Return the C++ call that computes the positions of a tensor's sampled elements."""
    extents = traces.tensors[name].shape
    chosen = {one.axes[name]: index for index, one in enumerate(sampled) if name in one.axes}
    picked = [f"picked[{chosen[axis]}]" if axis in chosen else "{}" for axis in range(len(extents))]
    return f"places_of({{{', '.join(map(number, extents))}}}, {{{', '.join(picked)}}})"


def _within(sampled: Sequence[SampledField], entire: Sequence[int]) -> str:
    """Return C++ that runs the reference for a sample.

    Args:
        sampled: fields that can be sampled.
        entire: positions of inputs without such a field whose absolute values a bound needs.
    """
    once = "".join(f"  magnitudes_of(inputs[{index}]);  // not part of the time of a sample\n" for index in entire)
    extents = ", ".join(f"shape.{member(one.name)}" for one in sampled)
    steps = ", ".join(str(one.step) for one in sampled)
    names = ", ".join(f'"{one.name}"' for one in sampled)
    return f"""constexpr double WHOLE_S = {WHOLE_S!r};    // longest time of the reference for all elements, s
constexpr double SAMPLE_S = {SAMPLE_S!r};   // shortest time of the reference for a sample, s
constexpr double TIMED_S = {TIMED_S!r};   // shortest sample time for estimating the time for all elements, s

/// Returns `count` indices below an extent: the first, the last, and random others.
std::vector<long long> pick(long long extent, long long count, std::mt19937_64& random) {{
  std::vector<long long> picked = {{0, extent - 1}};
  std::uniform_int_distribution<long long> any(0, extent - 1);
  while (static_cast<long long>(picked.size()) < 2 * count) picked.push_back(any(random));
  std::shuffle(picked.begin() + 2, picked.end(), random);
  std::vector<long long> distinct;
  std::vector<bool> seen(extent);
  for (const long long index : picked)
    if (static_cast<long long>(distinct.size()) < count && !seen[index]) seen[index] = true, distinct.push_back(index);
  for (long long i = 0; static_cast<long long>(distinct.size()) < count; i++)
    if (!seen[i]) seen[i] = true, distinct.push_back(i);
  std::sort(distinct.begin(), distinct.end());
  return distinct;
}}

/// Returns the reference values of all elements; if they would take over WHOLE_S, those of a sample that grows until
/// it takes SAMPLE_S.
std::vector<Expected> reference_within(const Shape& shape, std::vector<Input>& inputs, std::mt19937_64& random,
                                       bool whole) {{
{once}  constexpr size_t FIELDS = {len(sampled)};
  const long long extents[FIELDS] = {{{extents}}}, steps[FIELDS] = {{{steps}}};
  const char* names[FIELDS] = {{{names}}};
  long long counts[FIELDS];
  for (size_t i = 0; i < FIELDS; i++) counts[i] = std::min(extents[i], steps[i]);
  while (!whole) {{
    double ratio = 1;
    size_t least = 0;  // the field with the smallest picked share
    std::vector<std::vector<long long>> picked;
    for (size_t i = 0; i < FIELDS; i++) {{
      ratio *= static_cast<double>(extents[i]) / counts[i];
      if (static_cast<double>(counts[i]) / extents[i] < static_cast<double>(counts[least]) / extents[least]) least = i;
      picked.push_back(pick(extents[i], counts[i], random));
    }}
    if (ratio <= 1) break;
    const auto began = std::chrono::steady_clock::now();
    std::vector<Expected> expected = run_reference(shape, inputs, picked);
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    if (took >= TIMED_S && took * ratio <= WHOLE_S) break;
    if (took >= SAMPLE_S) {{
      std::printf("checked: a sample");
      for (size_t i = 0; i < FIELDS; i++) std::printf(", %lld of %lld %s", counts[i], extents[i], names[i]);
      std::printf("; the reference for all elements would take about %.0f s (--whole)\\n", took * ratio);
      return expected;
    }}
    counts[least] = std::min(extents[least], 4 * counts[least]);
  }}
  return run_reference(shape, inputs, {{}});
}}
"""
