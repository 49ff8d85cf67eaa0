"""Whose a file or folder is: who else than the user and root may change it.

What runs, is loaded or is believed from a file must come from nobody else. Only owner and mode bits are looked at; of
access control lists Linux shows the mask as the group's bits, so that a list that lets others write counts.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path


def why_foreign(path: Path, *, within: bool = False) -> str:
    """Return who else may change a file or folder, in a clause; empty where only the user and root may.

    A group counts as the user where it is the user's own and has no other member, as most systems set accounts up.

    Args:
        path: the file or folder itself, not what a link leads to.
        within: whether it is a folder of which only an entry counts that belongs to the user: where it is sticky
            (`/tmp`), others may write beside that entry and not replace it.
    """
    try:
        state = path.lstat()
    except OSError as error:
        return f"and {path} cannot be looked at ({error.strerror})"
    return why_foreign_state(state, path, within=within)


def why_foreign_state(state: os.stat_result, path: Path, *, within: bool = False) -> str:
    """Return the same of what was opened or looked at already.

    Args:
        state: of the file or folder.
        path: its name, for the clause.
        within: as for `why_foreign`.
    """
    if state.st_uid not in _own_users():
        return f"and {path} belongs to {_user_name(state.st_uid)}"
    if stat.S_ISLNK(state.st_mode) or (within and state.st_mode & stat.S_ISVTX):
        return ""
    if state.st_mode & stat.S_IWOTH:
        return f"and anybody may write {path}"
    if state.st_mode & stat.S_IWGRP and not _only_ours(state.st_gid):
        return f"and its group may write {path}"
    return ""


def _own_users() -> set[int]:
    """The user and root; for root also the user who called `sudo`, as git has it."""
    own = {0, os.geteuid()}
    called_by = os.environ.get("SUDO_UID", "")
    return own | {int(called_by)} if os.geteuid() == 0 and called_by.isdecimal() else own


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _only_ours(group: int) -> bool:
    """Whether a group is root's, or the user's own with nobody else in it."""
    if group == 0:
        return True
    try:
        account, known = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return known.gr_name == account.pw_name and set(known.gr_mem) <= {account.pw_name}
