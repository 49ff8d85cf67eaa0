"""What is wrong around a command, and no defect: streams that take no words, memory, disk, the working directory."""

from __future__ import annotations

import errno
import os
import sys
from typing import IO

MOST_WORD = 240
"""Characters of a word that a message shows whole; of a longer one, such as a path of thousands, both ends."""

_NO_ROOM = ("cannot allocate memory", "failed to map segment", "can't start new thread", "std::bad_alloc")
"""What libraries say, in whatever exception, where the system gives no more memory or threads."""

_REMEDIES = {
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ENOSPC: "free space there, or name another place",
    errno.EDQUOT: "free space there, or name another place",
    errno.EROFS: "name a place that can be written",
    errno.EACCES: "change its permissions, or name another place",
    errno.EPERM: "change its permissions, or name another place",
    errno.EISDIR: "name a file",
    errno.ENOTDIR: "a part of that name is a file; name another place",
    errno.ELOOP: "links lead in a circle there; name another place",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENFILE: "close other programs",
    errno.EFBIG: "allow larger files (ulimit -f), or name a smaller one",
    errno.EIO: "the disk or terminal fails",
    errno.ENXIO: "name a file",
    errno.EINVAL: "name another file",
    errno.ESTALE: "its file system went away; name another place",
}
"""Errors that a file or its place has, and what to do; any other is a defect until it is understood."""


NO_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""Errors of a write, which does not name its file."""


def tolerate_words() -> None:
    """Let stdout and stderr write what their encoding lacks as escapes: an ASCII terminal has no µ and no ×."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def hold_back(stream: IO[str], descriptor: int) -> None:
    """Send what a stream still holds, and all that comes, to nowhere: Python would complain of it as it leaves."""
    try:
        if stream.fileno() == descriptor:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    except (OSError, ValueError, AttributeError):  # no real stream, as in tests
        return


def no_working_directory() -> str | None:
    """Return what to say where the working directory was removed."""
    try:
        os.getcwd()  # noqa: PTH109 (it is only asked for)
    except OSError as error:
        return f'the working directory is gone ({error.strerror}); go to a folder that is there: cd "$HOME"'
    return None


def no_home(error: BaseException) -> str | None:
    """Return what to say where a file of the user's own home was wanted and there is none, None of any other error.

    `Path.home` raises a plain RuntimeError, as in a container whose user has no entry in /etc/passwd.
    """
    if isinstance(error, RuntimeError) and "home directory" in str(error):
        return "your home folder is not known; set HOME, or EVOKERN_CACHE and XDG_STATE_HOME, to folders of yours"
    return None


def out_of_memory(error: BaseException) -> str | None:
    """Return what to say where an error comes from memory that ran out, None where it does not."""
    text = str(error)
    short_of = isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EAGAIN)
    if not (isinstance(error, MemoryError) or short_of or any(part in text.lower() for part in _NO_ROOM)):
        return None
    first = f" ({text.splitlines()[0]})" if text.strip() else ""
    return f"memory or threads ran out{first}; allow more (ulimit -v, ulimit -u), or close other programs"


def misplaced(error: OSError) -> str | None:
    """Return what to say of an error that a file or its place has, None where it may be a defect."""
    remedy = _REMEDIES.get(error.errno or 0)
    if remedy is None or error.filename is None:
        return None
    return f"{os.fsdecode(error.filename)}: {error.strerror}; {remedy}"


def shortened(text: str) -> str:
    """Return a message whose longest words are cut to their ends."""
    if len(text) <= MOST_WORD:
        return text
    return " ".join(_cut(word) for word in text.split(" "))


def _cut(word: str) -> str:
    if len(word) <= MOST_WORD:
        return word
    return f"{word[: MOST_WORD // 2]}…{word[-MOST_WORD // 4 :]} ({len(word):,} characters)"
