"""The rules that a kernel asserts in its source, evaluated for many candidates by one run of the host's compiler."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.render import macros
from evokern.doctor import host_compiler

_ASSERTION = re.compile(r'static_assert\((.*), "(\w+): [^"]*"\);')


def asserted_rules(kernel: Kernel) -> list[str]:
    """Return the names of the rules that the source asserts, in order."""
    return [match[2] for match in _ASSERTION.finditer(kernel.source_path.read_text(encoding="utf-8"))]


def verdicts(kernel: Kernel, pairs: Sequence[tuple[Config, Problem]], folder: Path) -> list[dict[str, bool]]:
    """Return what each assertion of the source says of each candidate.

    The part of the source from its first constant to its last assertion becomes the body of a function whose
    parameters are the candidate's macros.
    """
    text = kernel.source_path.read_text(encoding="utf-8")
    body = text[re.search(r"^constexpr ", text, re.MULTILINE).start() :]  # type: ignore[union-attr]
    body = body[: [match.end() for match in _ASSERTION.finditer(body)][-1]].replace("constexpr", "const")
    tables = [macros(kernel, config, problem) for config, problem in pairs]
    parameters = [*(gene.name for gene in kernel.genes), *kernel.macros(*pairs[0])]
    lines = [f"#define {name} {value}" for name, value in tables[0].items() if name not in parameters]
    lines += ["#include <cstdio>", f"static void judge({', '.join(f'int {name}' for name in parameters)}) {{"]
    lines += [_ASSERTION.sub(r'std::printf("%d ", static_cast<int>(\1));', body), 'std::printf("\\n");', "}"]
    lines += ["int main() {"]
    lines += [f"  judge({', '.join(table[name] for name in parameters)});" for table in tables] + ["}"]
    (folder / "rules.cpp").write_text("\n".join(lines), encoding="utf-8")
    command = [str(host_compiler()), "-std=c++17", "-w", "-o", str(folder / "rules"), str(folder / "rules.cpp")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    output = subprocess.run([str(folder / "rules")], check=True, capture_output=True, text=True, timeout=60).stdout
    names = asserted_rules(kernel)
    return [dict(zip(names, (word == "1" for word in row.split()), strict=True)) for row in output.splitlines()]
