"""Trust in a path: whether other users may change its file.

If only trusted users can rename or replace the folders on the way to a file, then a file that was
checked by its path can be opened by its path: no other user can have changed it in between.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from pathlib import Path

from fastdata.errors import UsageError


def distrust(folder: Path, users: Collection[int]) -> str | None:
    """Return why other users may have made or changed a folder; None if they cannot.

    Every folder on the way must belong to one of ``users`` or to root, and its mode must let no
    other user write, except a group of only these users. Folders above ``folder`` may be sticky
    instead, as ``/tmp`` is: there, no user can replace another's entries. The mode covers a POSIX
    ACL, whose mask it shows as the group's permissions.

    Args:
        folder: Its absolute path, with no link in it (``os.path.realpath``).
        users: Ids of the users who are trusted.
    """
    trusted = frozenset((*users, 0))
    unmapped = _unmapped_root()
    # From above: once a folder is found safe, only trusted users can exchange what lies in it.
    for part in (*reversed(folder.parents), folder):
        try:
            state = part.lstat()
            if not stat.S_ISDIR(state.st_mode):
                return f"{part} is not a folder"
            if state.st_uid not in trusted and (part == folder or state.st_uid != unmapped):
                return f"{part} belongs to another user (id {state.st_uid})"
            if state.st_mode & stat.S_ISVTX and part != folder:
                continue
            if _lets_others_write(part, state, trusted):
                return f"{part} can be written by others than its owner"
            if part == folder and _DEFAULT_ACL in _attributes(part):
                return f"{part} has a default ACL, by which others can write new files"
        except OSError as error:
            return f"{part}: {error.strerror}"
    return None


_ACCESS_ACL, _DEFAULT_ACL = "system.posix_acl_access", "system.posix_acl_default"


def _lets_others_write(folder: Path, state: os.stat_result, trusted: frozenset[int]) -> bool:
    if not state.st_mode & 0o022:
        return False
    # With an ACL, the group's permissions may be anybody's.
    has_acl = _ACCESS_ACL in _attributes(folder)
    return bool(state.st_mode & 0o002) or has_acl or not _is_private(state.st_gid, trusted)


def _attributes(path: Path) -> list[str]:
    """Return the names of a path's extended attributes, if its file system has any."""
    try:
        return os.listxattr(path) if hasattr(os, "listxattr") else []
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return []
        raise


@cache
def _is_private(group: int, trusted: frozenset[int]) -> bool:
    """Return whether a group has the name of a trusted user, and only trusted members.

    Many systems make such a group for each user. There the umask is 002, and the group can write
    the user's files. Another user may have it as a primary group, which the group's list of
    members does not show. So this lists all users; if the system does not list even the owner, as
    directory services often do, the group counts as shared.
    """
    try:
        named = grp.getgrgid(group)
        owner = pwd.getpwnam(named.gr_name)
        groups = [one for one in (named, *grp.getgrall()) if one.gr_gid == group]
        users = {one.pw_uid for one in pwd.getpwall() if one.pw_gid == group}
    except (KeyError, OSError):
        return False
    members = {name for one in groups for name in one.gr_mem}
    # In containers, all users may be in root's group.
    return group != 0 and owner.pw_uid in users and users <= trusted and members <= {owner.pw_name}


def _unmapped_root() -> int | None:
    """Return the id of root in a user namespace without root (Apptainer's); None elsewhere."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            if any(int(line.split()[0]) == 0 for line in file):
                return None
        with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError, IndexError):  # not Linux
        return None


def make_own_folder(folder: Path) -> None:
    """Make a folder, and its parents, that this user alone can write, whatever umask or ACL say."""
    if not folder.parent.exists():
        make_own_folder(folder.parent)
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        return
    # By descriptor: another user who made the folder above may have put a link here.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name in (_ACCESS_ACL, _DEFAULT_ACL) if hasattr(os, "removexattr") else ():
            with suppress(OSError):  # it has none
                os.removexattr(descriptor, name)
        os.fchmod(descriptor, 0o755)
    finally:
        os.close(descriptor)


def make_cache_folder(
    folder: Path, option: str = "cache= (packing: --local) or FASTDATA_CACHE_DIR"
) -> None:
    """Make a folder for downloads or copies, unless it exists; UsageError if others can change it.

    ``option``: the option that names it.
    """
    make_own_folder(folder)
    problem = distrust(folder, (os.geteuid(),))
    if problem is not None:
        raise UsageError(
            f"{folder}: {problem}, who could change the files here",
            f"Give {option} a folder of your own; have its permissions changed if need be "
            "(chmod go-w, setfacl -b).",
        )


def is_own_file(state: os.stat_result, users: Collection[int] = ()) -> bool:
    """Return whether this user, root or ``users`` own a regular file, and no other may write it.

    The folder may have been open to others when the file was put there. The mode covers an ACL:
    its mask takes the place of the group's permissions.
    """
    return (
        stat.S_ISREG(state.st_mode)
        and state.st_uid in (0, os.geteuid(), *users)
        and not state.st_mode & 0o022
    )


def open_own_file(path: Path, mode: int) -> int:
    """Open a file of a trusted folder to read and write; create it if it is missing.

    Remove it first if another user made it while the folder was open to others.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with suppress(FileNotFoundError):
        if not is_own_file(path.lstat()):
            path.unlink()
    return os.open(path, flags, mode)
