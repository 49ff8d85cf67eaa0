"""evokern finds the fastest provably right variant of a CUDA kernel within a time budget, with evidence."""

from evokern.analysis.evaluate import Evaluator, SourceResult
from evokern.api import evaluate, resume, search
from evokern.declaration.foreign import ForeignSource
from evokern.declaration.genes import Config, Gene, Mutation, Parameter
from evokern.declaration.kernel import (
    Baseline,
    Constraint,
    Kernel,
    L2Window,
    Launch,
    Need,
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

__all__ = [
    "Baseline",
    "Config",
    "Constraint",
    "Evaluator",
    "EvokernError",
    "ForeignSource",
    "Gene",
    "Kernel",
    "L2Window",
    "Launch",
    "Mutation",
    "Need",
    "Parameter",
    "Problem",
    "ProblemField",
    "Progress",
    "Scalar",
    "SearchResult",
    "Slice",
    "SourceResult",
    "StudyResults",
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
