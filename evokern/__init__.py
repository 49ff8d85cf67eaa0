"""evokern finds the fastest provably right variant of a CUDA kernel within a time budget, with evidence."""

import warnings
from typing import Any

from evokern.analysis.evaluate import Evaluator, SourceResult
from evokern.api import evaluate, resume, search
from evokern.declaration.bounds import (
    Attention,
    Elementwise,
    ErrorBound,
    Mean,
    RmsNorm,
    Softmax,
    Sum,
    SumOfProducts,
)
from evokern.declaration.bounds.layer_norm import LayerNorm
from evokern.declaration.foreign import ForeignSource
from evokern.declaration.genes import Config, Gene, Mutation, Parameter
from evokern.declaration.kernel import (
    AtMost,
    Baseline,
    Constraint,
    Kernel,
    L2Window,
    Launch,
    Problem,
    ProblemField,
    Scalar,
    Slice,
    Tensor,
    Tolerance,
    VectorAccess,
    Workload,
    divides,
    f32,
    i32,
    i64,
)
from evokern.errors import EvokernError, UsageError
from evokern.results import StudyResults, load_study
from evokern.search import Progress, SearchResult
from evokern.version import __version__

_OLD_NAMES = {"Need": AtMost}
"""Names from version 0.2.0 that still work, until 0.4.0."""


def __getattr__(name: str) -> Any:
    """Return the object that a deprecated name refers to, and issue a DeprecationWarning."""
    if name not in _OLD_NAMES:
        raise AttributeError(f"module 'evokern' has no attribute {name!r}")
    new = _OLD_NAMES[name]
    warnings.warn(f"evokern.{name} is deprecated; use evokern.{new.__name__}", DeprecationWarning, stacklevel=2)
    return new


__all__ = [
    "AtMost",
    "Attention",
    "Baseline",
    "Config",
    "Constraint",
    "Elementwise",
    "ErrorBound",
    "Evaluator",
    "EvokernError",
    "ForeignSource",
    "Gene",
    "Kernel",
    "L2Window",
    "Launch",
    "LayerNorm",
    "Mean",
    "Mutation",
    "Parameter",
    "Problem",
    "ProblemField",
    "Progress",
    "RmsNorm",
    "Scalar",
    "SearchResult",
    "Slice",
    "Softmax",
    "SourceResult",
    "StudyResults",
    "Sum",
    "SumOfProducts",
    "Tensor",
    "Tolerance",
    "UsageError",
    "VectorAccess",
    "Workload",
    "__version__",
    "divides",
    "evaluate",
    "f32",
    "i32",
    "i64",
    "load_study",
    "resume",
    "search",
]
