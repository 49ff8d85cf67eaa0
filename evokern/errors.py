"""The one exception tree of evokern.

    EvokernError
    ├── UsageError            the user can mend it: exit code 2, one message, no traceback
    │   ├── SpaceError        a gene, value or constraint that does not exist or does not fit
    │   ├── KernelError       a kernel folder that is unsound
    │   ├── StudyError        a study file that is unsound or unknown
    │   ├── DeviceError       a device that is not there, or not the one a study began on
    │   ├── SourceError       a CUDA or PTX file that cannot be read or executed
    │   └── StoreError        a database that cannot be used
    └── InternalError         evokern itself broke: exit code 3

A rejected candidate is never an exception: it is an outcome (`evokern.study.trial.Outcome`).
Messages echo the offending value and say what to do about it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from evokern.escaping import visible_lines


class EvokernError(Exception):
    """Base of every exception that evokern raises on purpose."""

    exit_code = 3

    def __str__(self) -> str:
        """Return the message; what a terminal would obey of names and compilers' words in it is shown instead."""
        return visible_lines(super().__str__())


class UsageError(EvokernError):
    """Something the user asked for cannot be done as asked; the message says what to change."""

    exit_code = 2


class SpaceError(UsageError):
    """A gene, a value or a constraint does not exist or does not fit."""


class KernelError(UsageError):
    """A kernel folder is unsound: missing file, unknown entry point, a reference that raises."""


class StudyError(UsageError):
    """A study file is unknown, malformed, or asks for something its kernel does not have."""


class DeviceError(UsageError):
    """The device asked for is not there or is not the one the study began on."""


class SourceError(UsageError):
    """A CUDA or PTX source cannot be read or executed as it is."""


class StoreError(UsageError):
    """The database cannot be used: locked, corrupt, read-only, of a newer schema, or misplaced."""


class InternalError(EvokernError):
    """An invariant of evokern did not hold; a report with the message is welcome."""


RAISED = (Exception, SystemExit)
"""What the code of a kernel may raise: a `sys.exit` in it is a mistake like any other, and ends nothing in silence."""


MOST_NUMBER = 2**63 - 1
"""Largest whole number that a database holds: seeds, limits and counts keep to it, and to its negative."""


def nearest(word: object, known: Iterable[str]) -> str:
    """Return a clause naming the nearest known word, or of whole numbers the nearest one, and the list of them.

    Args:
        word: what was given.
        known: what would have been accepted.

    Returns:
        For example ``did you mean 'BLOCK_M'? known: BLOCK_M, BLOCK_N``; empty when nothing is known.
    """
    options, word = list(known), str(word)
    if not options:
        return ""
    lowered = {option.lower(): option for option in options}
    if all(_WHOLE.fullmatch(text) for text in (word, *options)):
        close = [min(options, key=lambda option: abs(int(option) - int(word)))]
    else:
        close = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.5)
    guess = f"did you mean {lowered[close[0].lower()]!r}? " if close else ""
    return f"{guess}known: {', '.join(options)}"


_WHOLE = re.compile(r"-?\d+")
