"""Paths: those that data names stay inside their folder, those of users survive ``os.chdir``."""

from __future__ import annotations

import os


def working_folder() -> str:
    """Return the current folder; "" if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def folder_variable(name: str) -> str | None:
    """Return the folder that an environment variable names; None if it is unset.

    A relative one becomes absolute in the environment, too: it names the same folder after
    ``os.chdir``, and in child processes.
    """
    folder = os.environ.get(name)
    if folder and not os.path.isabs(folder):
        folder = os.environ[name] = os.path.join(working_folder(), folder)
    return folder or None


# Before the program changes its folder.
for _name in ("FASTDATA_CACHE_DIR", "FASTDATA_STAGE_ROOT"):
    folder_variable(_name)


def is_inside(path: str) -> bool:
    """Return whether a relative path stays inside the folder that it is joined to.

    Only the text is judged: links on the disk are followed, since their owner made them. The
    native core has the same check for the rows of an index (``record_table.cpp``). A NUL is
    refused, too: the operating system takes it for the path's end.
    """
    return not (not path or path[0] == "/" or "\0" in path or ".." in path.split("/"))
