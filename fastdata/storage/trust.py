"""Whether users who are not trusted may change what lies at a path.

If nobody but trusted users can rename or replace any folder on the way to a file, then what was
checked by its path can be opened by its path: between the two, nobody else can have changed it.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Collection
from pathlib import Path

from fastdata.errors import UsageError


def distrust(folder: Path, users: Collection[int]) -> str | None:
    """Why a folder may be the doing of users who are not trusted; None if it cannot be.

    Every folder on the way must belong to one of ``users`` or to root, and be writable by its
    owner alone, or by a group that is one user's own; those above ``folder`` may be sticky instead,
    as ``/tmp`` is, where nobody can replace another user's entries.

    Args:
        folder: Its absolute path, with no link in it (``os.path.realpath``).
        users: Ids of the users who are trusted.
    """
    unmapped = _unmapped_root()
    for part in (*reversed(folder.parents), folder):
        try:
            found = part.lstat()
        except OSError as error:
            return f"{part}: {error.strerror}"
        if not stat.S_ISDIR(found.st_mode):
            return f"{part} is not a folder"
        roots = (0,) if part == folder else (0, unmapped)
        if found.st_uid not in users and found.st_uid not in roots:
            return f"{part} belongs to another user (id {found.st_uid})"
        others_write = found.st_mode & stat.S_IWOTH or (
            found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid, users)
        )
        if others_write and (part == folder or not found.st_mode & stat.S_ISVTX):
            return f"{part} can be written by others than its owner"
    return None


def _is_private(group: int, users: Collection[int]) -> bool:
    """Whether a group is one that many systems make for each user, called as the user is.

    There the umask is 002, and whatever the user makes can be written by that group.
    """
    try:
        found = grp.getgrgid(group)
        owner = pwd.getpwnam(found.gr_name)
    except (KeyError, OSError):
        return False
    # In containers, everybody may be of root's group.
    is_own = owner.pw_uid in users and owner.pw_gid == group and group != 0
    return is_own and not set(found.gr_mem) - {found.gr_name}


def _unmapped_root() -> int | None:
    """The id that root has in a container where it has none of its own; None elsewhere.

    So it is in user namespaces of one user, such as Apptainer's.
    """
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            if any(int(line.split()[0]) == 0 for line in file):
                return None
        with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError, IndexError):  # not Linux
        return None


def make_own_folder(folder: Path) -> None:
    """Makes a folder that this user alone can write, whatever the umask, unless it is there.

    Folders on the way that are missing are made likewise.
    """
    if not folder.parent.exists():
        make_own_folder(folder.parent)
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        return
    # By descriptor: where somebody else has made the folder above, he may have put a link here.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o755)
    finally:
        os.close(descriptor)


def make_cache_folder(folder: Path) -> None:
    """Makes a folder for what is fetched, unless it is there, and checks that it can be trusted.

    Raises:
        UsageError: Users who are not trusted could change what lies there.
        OSError: It cannot be made.
    """
    make_own_folder(folder)
    problem = distrust(folder, (os.geteuid(),))
    if problem is not None:
        raise UsageError(
            f"{folder}: {problem}, who could change what is cached here",
            "Give cache= (or set FASTDATA_CACHE_DIR to) a folder of your own, and have its "
            "permissions changed if need be (chmod go-w).",
        )


def is_own_file(found: os.stat_result) -> bool:
    """Whether a file is this user's or root's, and nobody else may write it.

    The folder may have been open to others when the file was put there.
    """
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022
