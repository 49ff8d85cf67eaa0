"""Declared state: the values of writable module variables at the start of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from evokern.errors import KernelError

State: TypeAlias = Mapping[str, "int | bytes"]
"""Name of a variable in the source → initial bytes, or one byte that fills the variable."""


def checked_state(kernel: str, state: object) -> State:
    """Return a kernel's declared state after checking its types.

    Raises:
        KernelError: the state is not a mapping of names to bytes.
    """
    remedy = "write state={'name': 0} for zeros, or the variable's initial bytes: {'name': bytes(...)}"
    if not isinstance(state, Mapping):
        raise KernelError(f"kernel {kernel}: state = {state!r} is not a mapping; {remedy}")
    found: dict[str, int | bytes] = {}
    for name, value in state.items():
        if not isinstance(name, str) or not name:
            raise KernelError(f"kernel {kernel}: state names {name!r}, which is not a variable name; {remedy}")
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 0xFF:
            found[name] = value
        elif isinstance(value, (bytes, bytearray)) and value:
            found[name] = bytes(value)
        else:
            raise KernelError(
                f"kernel {kernel}: state of {name!r} is {value!r}; it must be bytes or a number from 0 to 255; {remedy}"
            )
    return found
