"""The one check of paths that data names: in manifests, indexes, archives and keys."""

from __future__ import annotations


def is_inside(path: str) -> bool:
    """Return whether a relative path stays inside the folder that it is joined to.

    Only the text is judged: links on the disk are followed, since their owner made them. The
    native core has the same check for the rows of an index (``extent_table.cpp``).

    Args:
        path: A path with ``/`` between its components, from data that may be damaged or made with
            ill intent.

    Returns:
        False where it is empty, absolute, has a ``..`` component, or a NUL, which the operating
        system takes for its end.
    """
    return not (not path or path[0] == "/" or "\0" in path or ".." in path.split("/"))
