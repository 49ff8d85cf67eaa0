"""Exceptions of evokern.

    EvokernError
    ├── UsageError            Usage error: exit code 2, one message, no traceback.
    │   ├── SpaceError        Unknown or unsuitable gene, value or constraint.
    │   ├── KernelError       Invalid kernel folder.
    │   │   └── CodeChangedError  Header that changed while the kernel was in use.
    │   ├── StudyError        Invalid or unknown study.
    │   │   └── RefutedError      No verified champion after a refuted one: exit code 1.
    │   ├── DeviceError       Missing device, or not the device of the study.
    │   ├── SourceError       CUDA or PTX file that cannot be read or executed.
    │   ├── GridTooLargeError Grid whose blocks wait for each other and that no chip can hold.
    │   └── StoreError        Database that cannot be used.
    └── InternalError         Bug in evokern: exit code 3.

A rejected candidate never raises an exception; it is an outcome (`evokern.study.trial.Outcome`). Messages contain the
invalid value and the remedy.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from evokern.escaping import visible_lines


class EvokernError(Exception):
    """Base class of all exceptions that evokern raises on purpose."""

    exit_code = 3

    def __str__(self) -> str:
        """Return the message with control characters escaped."""
        return visible_lines(super().__str__())


class UsageError(EvokernError):
    """Error that the user can fix; the message says how."""

    exit_code = 2


class SpaceError(UsageError):
    """Unknown or unsuitable gene, value or constraint."""


class KernelError(UsageError):
    """Invalid kernel folder: a missing file, an unknown entry point, or a reference that raises an exception."""


class CodeChangedError(KernelError):
    """Header outside a kernel's folder that changed while the kernel was in use; it concerns every candidate."""


class StudyError(UsageError):
    """Unknown study, or a study file that is malformed or does not match its kernel."""


class RefutedError(StudyError):
    """Study whose best trials were refuted by their verification, which is a negative result: exit code 1."""

    exit_code = 1


class DeviceError(UsageError):
    """Missing device, or not the device on which the study started."""


class GridTooLargeError(UsageError):
    """Grid whose blocks wait for each other and that no chip can hold at once.

    Attributes:
        evidence: evidence for the record of an infeasible trial, as JSON values.
    """

    def __init__(self, message: str, evidence: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.evidence = evidence


class SourceError(UsageError):
    """CUDA or PTX source that cannot be read or executed."""


class StoreError(UsageError):
    """Database that cannot be used because it is locked, corrupt, read-only, too new or in an unsuitable location."""


class InternalError(EvokernError):
    """Violated invariant, that is, a bug in evokern; please report the message."""


KERNEL_CODE_EXCEPTIONS = (Exception, SystemExit)
"""Exceptions to catch around kernel code; they include that of `sys.exit`, which must not end evokern silently."""


MAX_INTEGER = 2**63 - 1
"""Largest integer that the database can store; the bound for seeds, limits and counts."""


MOST_LISTED = 100
"""Maximum number of valid words in a message."""


def suggestion(word: object, known: Iterable[str]) -> str:
    """Return a clause that suggests the nearest valid word or integer and lists the valid ones.

    Args:
        word: the given word.
        known: the valid words.

    Returns:
        For example ``did you mean 'BLOCK_M'? known: BLOCK_M, BLOCK_N``; empty if there is no valid word.
    """
    options, word = list(known), str(word)
    if not options:
        return ""
    lowered = {option.lower(): option for option in options}
    if all(_WHOLE.fullmatch(text) for text in (word, *options)):
        close = [min(options, key=lambda option: abs(int(option) - int(word)))]
    else:
        close = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
        close = close or [option for option in lowered if _DIGITS.sub("", option) == _DIGITS.sub("", word.lower())]
    guess = f"did you mean {lowered[close[0].lower()]!r}? " if close else ""
    further = f", … ({len(options):,} in all)" if len(options) > MOST_LISTED else ""
    return f"{guess}known: {', '.join(options[:MOST_LISTED])}{further}"


_WHOLE = re.compile(r"-?\d+")
_DIGITS = re.compile(r"\d")
