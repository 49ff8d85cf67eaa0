"""Reader of CUDA source files: finds kernels, launches and macros, and separates device code from host code."""

from __future__ import annotations

from evokern.cuda_source.c_types import ELEMENT_TYPES, UNSUPPORTED, UNSUPPORTED_TYPES
from evokern.cuda_source.reader.reader import CudaSource, device_only, read
from evokern.cuda_source.reader.records import (
    EntryPoint,
    HostFunction,
    Include,
    KernelFunction,
    Macro,
    Parameter,
    TemplateParameter,
)
from evokern.cuda_source.specialize.specialize import specialize

__all__ = [
    "ELEMENT_TYPES", "UNSUPPORTED", "UNSUPPORTED_TYPES", "CudaSource", "EntryPoint", "HostFunction", "Include",
    "KernelFunction", "Macro", "Parameter", "TemplateParameter", "device_only", "read", "specialize",
]  # fmt: skip
