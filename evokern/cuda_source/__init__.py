"""Reader of CUDA source files: finds kernels, launches and macros, and separates device code from host code."""

from __future__ import annotations

from evokern.cuda_source.reader.element_types import ELEMENT_TYPES, UNSUPPORTED, UNSUPPORTED_TYPES
from evokern.cuda_source.reader.reader import CudaSource, device_only, read
from evokern.cuda_source.reader.records import (
    Constant,
    EntryPoint,
    HostFunction,
    Include,
    KernelFunction,
    Macro,
    Parameter,
    SharedArray,
    TemplateParameter,
)
from evokern.cuda_source.specialize.specialize import specialize

__all__ = [
    "ELEMENT_TYPES",
    "UNSUPPORTED",
    "UNSUPPORTED_TYPES",
    "Constant",
    "CudaSource",
    "EntryPoint",
    "HostFunction",
    "Include",
    "KernelFunction",
    "Macro",
    "Parameter",
    "SharedArray",
    "TemplateParameter",
    "device_only",
    "read",
    "specialize",
]
