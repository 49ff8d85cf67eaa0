"""C++ code in an exported program that restores variables with declared state before each call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evokern.compile.elf import variable_name
from evokern.compile.fingerprint import variables_in_use
from evokern.compile.isolated import compile_ptx
from evokern.compile.module_state import restored_state
from evokern.compile.records import Program
from evokern.cuda_source.mangled import is_of_template
from evokern.declaration.kernel import Kernel
from evokern.declaration.render import Rendered
from evokern.errors import KernelError
from evokern.hardware.profiles import Profile
from evokern.ptx.parser import Parser

_BYTES_A_LINE = 24


@dataclass(frozen=True)
class RestoredVariable:
    """A variable of the kernel's source that is restored before each call."""

    name: str
    """Name in the source, with namespaces."""
    value: int | bytes
    """Byte that fills the variable, or all its bytes."""

    @property
    def _initial(self) -> str:
        return "evokern_initial_" + self.name.replace("::", "_")

    def definition(self) -> str:
        """Return the C++ definition of the initial bytes in GPU memory; empty if one byte fills the variable."""
        if isinstance(self.value, int):
            return ""
        numbers = [str(byte) for byte in self.value]
        lines = [", ".join(numbers[at : at + _BYTES_A_LINE]) for at in range(0, len(numbers), _BYTES_A_LINE)]
        body = ",\n    ".join(lines)
        return (
            f"/// Value of `{self.name}` at the start of each call.\n"
            f"static __device__ const unsigned char {self._initial}[] = {{\n    {body}}};\n"
        )

    def statements(self) -> Iterator[str]:
        """Yield the C++ statements that restore the variable on `evokern_stream` and return an error code."""
        yield "  void* evokern_variable = nullptr;"
        yield f"  cudaError_t evokern_error = cudaGetSymbolAddress(&evokern_variable, ::{self.name});"
        yield "  if (evokern_error != cudaSuccess) return evokern_error;"
        if isinstance(self.value, int):
            yield f"  return cudaMemsetAsync(evokern_variable, {self.value}, sizeof(::{self.name}), evokern_stream);"
            return
        yield "  void* evokern_initial = nullptr;"
        yield f"  evokern_error = cudaGetSymbolAddress(&evokern_initial, {self._initial});"
        yield "  if (evokern_error != cudaSuccess) return evokern_error;"
        yield f'  static_assert(sizeof({self._initial}) == sizeof(::{self.name}), "wrong size of its declared state");'
        yield f"  return cudaMemcpyAsync(evokern_variable, evokern_initial, sizeof(::{self.name}),"
        yield "                         cudaMemcpyDeviceToDevice, evokern_stream);"


def restored_variables(kernel: Kernel, rendered: Rendered, chip: Profile) -> list[RestoredVariable]:
    """Return the variables with declared state that a candidate uses.

    Raises:
        KernelError: the candidate does not compile, or a program cannot name one of the variables.
        DeviceError: the compiler, which lists the variables, is not installed.
    """
    if not kernel.state:
        return []
    built = compile_ptx(
        rendered.source, rendered.name, rendered.headers, rendered.options, rendered.entries, chip.compute_capability,
        line_info=False, suffix=rendered.architecture_suffix,
    )  # fmt: skip
    if not isinstance(built, Program):
        raise KernelError(f"kernel {kernel.name} does not compile: {built.message}")
    variables, in_use = Parser(built.ptx, rendered.name).variables, variables_in_use(built.ptx)
    sizes = {name: one.size for name, one in variables.items() if one.space == "global" and name in in_use}
    found = []
    for symbol, value in restored_state(kernel.state, sizes).items():
        if symbol.startswith("_ZZ") or is_of_template(symbol):
            raise KernelError(
                f"kernel {kernel.name}: state names {variable_name(symbol)!r}, which is static in a function or part "
                "of a template, so the exported program cannot refer to it; declare it at namespace scope"
            )
        found.append(RestoredVariable(variable_name(symbol), value))
    return found
