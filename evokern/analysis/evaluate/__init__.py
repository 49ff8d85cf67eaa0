"""Evaluation of external sources in place of a kernel's source, in separate processes."""

from evokern.analysis.evaluate.evaluator import Evaluator, OnResult
from evokern.analysis.evaluate.result import Source, SourceResult, given_source, sources_of

__all__ = ["Evaluator", "OnResult", "Source", "SourceResult", "given_source", "sources_of"]
