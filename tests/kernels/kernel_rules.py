"""The assertions of a kernel's generated header, evaluated for many candidates by one run of the host's compiler."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from evokern.declaration.genes import Config
from evokern.declaration.header.leaves import problem_constants
from evokern.declaration.header.rules import HELPERS, rules
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.render import macros
from evokern.doctor import host_compiler

_ASSERTION = re.compile(r'static_assert\((.*), "(\w+): .*"\);')


def asserted_rules(kernel: Kernel, problem: Problem) -> list[str]:
    """Return the names of the rules that the generated header asserts, in order."""
    return [match[2] for text in rules(kernel, problem)[0] if (match := _ASSERTION.fullmatch(text))]


def fields_of(kernel: Kernel, problem: Problem) -> dict[str, str]:
    """Return the constants of the generated header with the problem's fields, as name → value."""
    return dict(re.findall(r"(problem_\w+) = (-?\d+)", problem_constants(kernel, problem)))


def verdicts(kernel: Kernel, pairs: Sequence[tuple[Config, Problem]], folder: Path) -> list[dict[str, bool]]:
    """Return what each assertion says of each candidate.

    The conditions become the body of a function whose parameters are the candidate's macros and the problem's fields.
    """
    conditions = [_ASSERTION.fullmatch(text) for text in rules(kernel, pairs[0][1])[0]]
    tables = [macros(kernel, config, problem) | fields_of(kernel, problem) for config, problem in pairs]
    parameters = [*(gene.name for gene in kernel.genes), *kernel.macros(*pairs[0]), *fields_of(kernel, pairs[0][1])]
    lines = [f"#define {name} {value}" for name, value in tables[0].items() if name not in parameters]
    lines += ["#include <cstdio>", *HELPERS]
    lines += [f"static void judge({', '.join(f'long long {name}' for name in parameters)}) {{"]
    lines += [
        f'std::printf("%d ", static_cast<int>({match[1].replace("evokern_rules::problem_", "problem_")}));'
        for match in conditions
        if match
    ]
    lines += ['std::printf("\\n");', "}", "int main() {"]
    lines += [f"  judge({', '.join(table[name] for name in parameters)});" for table in tables] + ["}"]
    (folder / "rules.cpp").write_text("\n".join(lines), encoding="utf-8")
    command = [str(host_compiler()), "-std=c++17", "-w", "-o", str(folder / "rules"), str(folder / "rules.cpp")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    output = subprocess.run([str(folder / "rules")], check=True, capture_output=True, text=True, timeout=60).stdout
    names = asserted_rules(kernel, pairs[0][1])
    return [dict(zip(names, (word == "1" for word in row.split()), strict=True)) for row in output.splitlines()]
