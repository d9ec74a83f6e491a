"""`once`: a property that is computed when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class once(Generic[T]):  # noqa: N801, used like property
    """Property that a function computes on first use, and that is then an attribute.

    Without a lock: Python's ``cached_property`` has one before 3.12, which all instances share, and
    a child process that is forked meanwhile waits for it forever. Two threads may both compute.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        if instance is None:
            return self  # type: ignore[return-value]
        value = vars(instance)[self._name] = self._function(instance)
        return value
