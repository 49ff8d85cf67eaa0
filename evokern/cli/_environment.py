"""Errors caused by a command's environment: streams, memory, disk and working directory."""

from __future__ import annotations

import errno
import os
import re
import sys
from typing import IO

MAX_WORD_LENGTH = 240
"""Maximum length of a word in a message. For a longer word, such as a long path, only both ends are shown."""

_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_OUT_OF_MEMORY_TEXTS = ("cannot allocate memory", "failed to map segment", "can't start new thread", "std::bad_alloc")
"""Parts of library messages that appear in exceptions when the system runs out of memory or threads."""

_REMEDIES = {
    errno.ENAMETOOLONG: "use a shorter name",
    errno.ENOSPC: "free disk space, or choose another location",
    errno.EDQUOT: "free disk space, or choose another location",
    errno.EROFS: "choose a location that is not read-only",
    errno.EACCES: "change its permissions, or choose another location",
    errno.EPERM: "change its permissions, or choose another location",
    errno.EISDIR: "use a file instead",
    errno.ENOTDIR: "a part of the path is a file; choose another location",
    errno.ELOOP: "the path contains a loop of links; choose another location",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs",
    errno.EFBIG: "raise the file size limit (ulimit -f), or use a smaller file",
    errno.EIO: "the disk or terminal has failed; choose another location",
    errno.ENXIO: "use a regular file instead",
    errno.EINVAL: "use another file",
    errno.ESTALE: "the file system is no longer available; choose another location",
}
"""Remedy for each error number of a file operation. Any other number is treated as a bug."""


WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""Error numbers of failed writes; the exception of a failed write has no file name."""


def escape_unencodable_text() -> None:
    """Make stdout and stderr escape characters that their encoding lacks, such as µ and × in ASCII."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def redirect_to_null(stream: IO[str], descriptor: int) -> None:
    """Redirect a stream to the null device, so that Python does not fail when it flushes the stream at exit."""
    try:
        if stream.fileno() == descriptor:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    except (OSError, ValueError, AttributeError):  # not a real stream, as in tests
        return


def missing_working_directory_message() -> str | None:
    """Return a message if the working directory no longer exists, else None."""
    try:
        os.getcwd()  # noqa: PTH109 (only tested for an error)
    except OSError as error:
        return f'the working directory is gone ({error.strerror}); change to an existing folder, such as cd "$HOME"'
    return None


def missing_home_message(error: BaseException) -> str | None:
    """Return a message if the error reports that the user has no home folder, else None.

    `Path.home` raises a plain RuntimeError, for example in a container whose user has no entry in /etc/passwd.
    """
    if isinstance(error, RuntimeError) and "home directory" in str(error):
        return "your home folder is unknown; set HOME, or set EVOKERN_CACHE and XDG_STATE_HOME to your own folders"
    return None


def not_utf8_message(error: BaseException) -> str | None:
    """Return a message if the error was caused by a path or an argument that is not UTF-8, else None.

    Python decodes such bytes of paths and arguments to lone surrogates (PEP 383), which no text encoding accepts.
    """
    if not isinstance(error, UnicodeEncodeError):
        return None
    word = next((word for word in error.object.split() if _NOT_UTF8.search(word)), None)
    return word and f"{word!r} is not UTF-8; rename that file or folder, or pass another argument"


def out_of_memory_message(error: BaseException) -> str | None:
    """Return a message if the error was caused by a lack of memory or threads, else None."""
    text = str(error)
    short_of = isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EAGAIN)
    if not (isinstance(error, MemoryError) or short_of or any(part in text.lower() for part in _OUT_OF_MEMORY_TEXTS)):
        return None
    first = f" ({text.splitlines()[0]})" if text.strip() else ""
    return f"memory or threads ran out{first}; raise the limits (ulimit -v, ulimit -u), or close other programs"


def file_error_message(error: OSError) -> str | None:
    """Return a message with a remedy for an error of a file operation, or None if it may be a bug."""
    remedy = _REMEDIES.get(error.errno or 0)
    if error.errno in (errno.EMFILE, errno.ENFILE):  # also of a pipe or a socket, which has no name
        return f"{os.fsdecode(error.filename) + ': ' if error.filename else ''}{error.strerror}; {remedy}"
    if remedy is None or error.filename is None:
        return None
    return f"{os.fsdecode(error.filename)}: {error.strerror}; {remedy}"


def shortened(text: str) -> str:
    """Return a message in which the middle of each very long word is removed."""
    if len(text) <= MAX_WORD_LENGTH:
        return text
    return " ".join(_cut(word) for word in text.split(" "))


def _cut(word: str) -> str:
    if len(word) <= MAX_WORD_LENGTH:
        return word
    return f"{word[: MAX_WORD_LENGTH // 2]}…{word[-MAX_WORD_LENGTH // 4 :]} ({len(word):,} characters)"
