"""Conversion of driver API error codes to candidate outcomes."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver

from evokern.gate.check import RunFailed
from evokern.study.trial import Outcome


def check(answer: tuple[Any, ...]) -> Any:
    """Return the results of a driver call without its error code.

    Raises:
        RunFailed: the call failed; the evidence names the CUDA error.
    """
    error, *values = answer
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RunFailed(Outcome.CRASHED, {"error": error_name(error)})
    return values[0] if len(values) == 1 else values


def error_name(error: Any) -> str:
    """Return the name of a CUDA error, for example `CUDA_ERROR_MISALIGNED_ADDRESS`."""
    _, name = driver.cuGetErrorName(error)
    return name.decode() if name else str(error)


def context_error() -> str | None:
    """Return the error that makes this process's context unusable, or None."""
    (error,) = driver.cuCtxSynchronize()
    return None if error == driver.CUresult.CUDA_SUCCESS else error_name(error)
