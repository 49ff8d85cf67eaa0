"""Checks of whether users other than the current user and root can change a file or folder.

Code and data that evokern trusts must not come from such files. Only the owner and mode bits are checked. Linux shows
the mask of an access control list as the group bits, so a list that lets others write is also detected.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path


def who_else_can_modify(path: Path, *, within: bool = False) -> str:
    """Return a clause about other users who can change a file or folder; empty if only the user and root can.

    A group is equivalent to the user if it is the user's own group and has no other members, as on most systems.

    Args:
        path: the file or folder; links are not followed.
        within: whether the path is a folder that contains an entry of the user. In a sticky folder (`/tmp`), others
            can add entries but cannot replace the user's entry.
    """
    try:
        state = path.lstat()
    except OSError as error:
        return f"and {path} cannot be inspected ({error.strerror})"
    return why_foreign_state(state, path, within=within)


def why_foreign_state(state: os.stat_result, path: Path, *, within: bool = False) -> str:
    """Return the result of `who_else_can_modify` for a known file status.

    Args:
        state: status of the file or folder.
        path: its path, for the clause.
        within: as for `who_else_can_modify`.
    """
    if state.st_uid not in _own_users():
        return f"and {path} belongs to {_user_name(state.st_uid)}"
    if stat.S_ISLNK(state.st_mode) or (within and state.st_mode & stat.S_ISVTX):
        return ""
    if state.st_mode & stat.S_IWOTH:
        return f"and anybody can write to {path}"
    if state.st_mode & stat.S_IWGRP and not _only_ours(state.st_gid):
        return f"and its group can write to {path}"
    return ""


def _own_users() -> set[int]:
    """Return the user and root; if the user is root, also the user who called `sudo`, as in git."""
    own = {0, os.geteuid()}
    called_by = os.environ.get("SUDO_UID", "")
    return own | {int(called_by)} if os.geteuid() == 0 and called_by.isdecimal() else own


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _only_ours(group: int) -> bool:
    """Return whether a group is root's, or the user's own without other members."""
    if group == 0:
        return True
    try:
        account, known = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return known.gr_name == account.pw_name and set(known.gr_mem) <= {account.pw_name}
