"""evokern finds the fastest provably right variant of a CUDA kernel within a time budget, with evidence."""

import importlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evokern.analysis.evaluate import Evaluator, OnResult, Source, SourceResult
from evokern.api import TrialCallback, evaluate, resume, search, tune, tune_kernel
from evokern.cluster import RayRequest
from evokern.declaration.bounds import (
    Count,
    Elementwise,
    ErrorBound,
    Inputs,
    Mean,
    PerCandidate,
    Precision,
    Reference,
    RmsNorm,
    Softmax,
    Sum,
    SumOfProducts,
)
from evokern.declaration.bounds.attention import Attention, LayerNorm
from evokern.declaration.foreign import Extent, ForeignSource, LaunchGeometry
from evokern.declaration.genes import Config, Gene, Mutation, Parameter, Relieves, Value, When
from evokern.declaration.kernel import (
    Arithmetic,
    AtMost,
    Baseline,
    Constraint,
    GoldenValues,
    Kernel,
    L2Window,
    Launch,
    Problem,
    ProblemField,
    Scalar,
    Slice,
    Tensor,
    TileMap,
    Tolerance,
    VectorAccess,
    Workload,
    divides,
    f32,
    i32,
    i64,
)
from evokern.declaration.kernel_files import KernelContent, KernelFile
from evokern.declaration.space import Predicate, Space
from evokern.declaration.tensor import Role, State
from evokern.device import Answer, BaselineResult, Device, Request, StartReport, Task
from evokern.device.contract import ExecutorState, StartStep
from evokern.errors import EvokernError, UsageError
from evokern.hardware.profiles import Profile
from evokern.results import ExportFormat, SearchResult, StudyResults, StudySummary, list_studies, load_study
from evokern.results.study import packers
from evokern.search import ArmProgress, EndReason, OnProgress, Progress
from evokern.study.settings import GateSettings, InputSet, SamplerSettings, SimulationSettings, Study, TimingSettings
from evokern.study.trial import Evaluation, Outcome, Proposal, Resources, Span, Timing, Trial
from evokern.tuning.marks import InOut, OutLike, cdiv, inout, out_like
from evokern.version import __version__

if TYPE_CHECKING:
    from evokern.device.default_outputs import SameAsDefault
    from evokern.store import StudyRecord

_SLOW = {"StudyRecord": "evokern.store", "SameAsDefault": "evokern.device.default_outputs"}
"""Class → its module, which `import evokern` does not import."""

_OLD_NAMES = {"Need": AtMost}
"""Names from version 0.2.0 that still work, until 0.4.0."""


def _packed(*given: Any, **options: Any) -> Path:
    """Write a trial as an operator for torch (`evokern.pack`, which results may not import)."""
    from evokern.pack import packed_study

    return packed_study(*given, **options).written.folder


packers["torch"] = _packed


def __getattr__(name: str) -> Any:
    """Return a class whose import is slow, or the object that a deprecated name refers to."""
    if name in _SLOW:
        return getattr(importlib.import_module(_SLOW[name]), name)
    if name not in _OLD_NAMES:
        raise AttributeError(f"module 'evokern' has no attribute {name!r}")
    new = _OLD_NAMES[name]
    warnings.warn(f"evokern.{name} is deprecated; use evokern.{new.__name__}", DeprecationWarning, stacklevel=2)
    return new


__all__ = [
    "Answer",
    "Arithmetic",
    "ArmProgress",
    "AtMost",
    "Attention",
    "Baseline",
    "BaselineResult",
    "Config",
    "Constraint",
    "Count",
    "Device",
    "Elementwise",
    "EndReason",
    "ErrorBound",
    "Evaluation",
    "Evaluator",
    "EvokernError",
    "ExecutorState",
    "ExportFormat",
    "Extent",
    "ForeignSource",
    "GateSettings",
    "Gene",
    "GoldenValues",
    "InOut",
    "InputSet",
    "Inputs",
    "Kernel",
    "KernelContent",
    "KernelFile",
    "L2Window",
    "Launch",
    "LaunchGeometry",
    "LayerNorm",
    "Mean",
    "Mutation",
    "OnProgress",
    "OnResult",
    "OutLike",
    "Outcome",
    "Parameter",
    "PerCandidate",
    "Precision",
    "Predicate",
    "Problem",
    "ProblemField",
    "Profile",
    "Progress",
    "Proposal",
    "RayRequest",
    "Reference",
    "Relieves",
    "Request",
    "Resources",
    "RmsNorm",
    "Role",
    "SameAsDefault",
    "SamplerSettings",
    "Scalar",
    "SearchResult",
    "SimulationSettings",
    "Slice",
    "Softmax",
    "Source",
    "SourceResult",
    "Space",
    "Span",
    "StartReport",
    "StartStep",
    "State",
    "Study",
    "StudyRecord",
    "StudyResults",
    "StudySummary",
    "Sum",
    "SumOfProducts",
    "Task",
    "Tensor",
    "TileMap",
    "Timing",
    "TimingSettings",
    "Tolerance",
    "Trial",
    "TrialCallback",
    "UsageError",
    "Value",
    "VectorAccess",
    "When",
    "Workload",
    "__version__",
    "cdiv",
    "divides",
    "evaluate",
    "f32",
    "i32",
    "i64",
    "inout",
    "list_studies",
    "load_study",
    "out_like",
    "resume",
    "search",
    "tune",
    "tune_kernel",
]
