"""Threads: how they run tasks, wait for each other, and cancel each other's requests."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar, cast

Item = TypeVar("Item")
Result = TypeVar("Result")
#: Seconds between two looks at a latch, without a time limit: Ctrl-C may have cost a wake-up.
_LOOK = 1.0
#: Seconds after which a thread without work ends.
_IDLE = 10.0


class Latch:
    """Event that stays set. Ctrl-C, wherever it comes, leaves it usable for other threads.

    `threading.Event` and `concurrent.futures.Future` stay locked if it comes just after they took
    their lock; the thread that would set them then hangs.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._wake: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Wake the threads that wait."""
        self._is_set = True
        self._wake.put(None)

    def done(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds; return whether it is set."""
        while not self._is_set:
            try:
                self._wake.get(timeout=_LOOK if timeout is None else timeout)
                self._wake.put(None)  # for others that wait
            except Empty:
                if timeout is not None:
                    break
        return self._is_set


class Task(Latch, Generic[Result]):
    """Call of a function that another thread makes, once; it is set when that has ended.

    It is what `concurrent.futures.Future` is, without that one's locks.

    Attributes:
        error: What the function raised.
    """

    def __init__(self, function: Callable[[], Result] | None = None) -> None:
        super().__init__()
        self._function = function
        self._begun = threading.Lock()
        self._result: Result | None = None
        self.error: BaseException | None = None

    def run(self, kept: type[BaseException] = BaseException) -> None:
        """Call the function, unless that has begun or was cancelled; keep errors of a class."""
        if self._begun.acquire(False):
            assert self._function is not None
            try:
                self._result = self._function()
            except kept as error:  # `result` raises it
                self.error = error
            self._function = None  # it refers to a batch's memory
            self.set()
            del self  # the error refers to this frame

    def cancel(self) -> None:
        """End it with CancelledError, unless it has begun."""
        if self._begun.acquire(False):
            self.error, self._function = CancelledError(), None
            self.set()

    def result(self, timeout: float | None = None) -> Result:
        """Return the result or raise the error; TimeoutError after ``timeout`` seconds."""
        if not self.wait(timeout):
            raise TimeoutError
        try:
            if self.error is not None:
                raise self.error
            return cast(Result, self._result)
        finally:
            del self  # the error refers to this frame


class Cancellable(Protocol):
    """Request that another thread can cancel."""

    def cancel(self) -> Any:
        """Have the waiting thread raise an error."""


#: Requests to servers that threads wait for, with the group of the thread.
AWAITED: dict[Cancellable, Group | None] = {}
# A child must not cancel its parent's: they share connections.
os.register_at_fork(after_in_child=AWAITED.clear)


class Group:
    """Threads whose requests are cancelled together."""

    def __init__(self) -> None:
        self.cancelled = False

    def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call a function, in a thread that belongs to this group from now on."""
        _group.set(self)
        return function(*args)

    def cancel(self) -> None:
        """Cancel the requests under way, and later ones."""
        self.cancelled = True
        for request, group in AWAITED.copy().items():  # in one step, as threads add others
            if group is self:
                request.cancel()


_group: ContextVar[Group | None] = ContextVar("group", default=None)


def awaited(request: Task[Any] | Future[Any], seconds: float | None = None) -> Any:
    """Wait for a request to a server; cancel it on TimeoutError and Ctrl-C.

    Raise CancelledError if the interpreter ends, or the thread's group is cancelled.
    """
    try:
        with cancellable(request):
            return request.result(seconds)
    finally:
        request.cancel()


@contextmanager
def cancellable(request: Cancellable) -> Iterator[None]:
    """Cancel a request, which the block makes, when the thread's group is cancelled.

    Raise CancelledError then. `Cancellable.cancel` may also be called just after the block.
    """
    AWAITED[request] = group = _group.get()
    try:
        if group is not None and group.cancelled:
            raise CancelledError
        yield
    except Exception:
        if group is not None and group.cancelled:
            raise CancelledError from None
        raise
    finally:
        AWAITED.pop(request, None)


def pause(seconds: float) -> None:
    """Wait for some seconds; raise CancelledError as `awaited` does."""
    with suppress(TimeoutError):
        awaited(Task(), seconds)


class Threads:
    """Executor of daemon threads; a context manager, which waits for its tasks.

    Threads start when there is work, and end when there is none for a while.
    `concurrent.futures.ThreadPoolExecutor` finishes all its tasks before the interpreter exits,
    and refuses new ones from then on, though other threads may still iterate. Ctrl-C may leave it
    locked, see `Latch`.

    Args:
        most: How many threads there may be.
        name: What they are called.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._tasks: deque[Task[Any]] = deque()
        #: What idle threads wait for. The last one goes first: the processor knows its memory.
        self._idle: list[Latch] = []
        self._threads: list[threading.Thread] = []
        self._process = os.getpid()
        self._ended = False
        # Reentrant, because garbage collection or a signal handler may end it.
        self._lock = threading.RLock()

    @property
    def idle(self) -> bool:
        """Whether a thread waits for work, or may be started."""
        return len(self._idle) > 0 or len(self._threads) < self._most

    @property
    def waiting(self) -> int:
        """How many tasks wait for a thread."""
        return len(self._tasks)

    def submit(self, function: Callable[..., Result], *args: Any) -> Task[Result]:
        """Have a thread call a function; its task is cancelled if the executor was ended."""
        task = Task(partial(function, *args))
        with self._lock:
            if self._ended:
                task.cancel()  # another thread ended it meanwhile
                return task
            self._tasks.append(task)
            if self._idle:
                self._idle[-1].set()
                self._idle.pop()  # in this order, as Ctrl-C may come between
            elif len(self._threads) < self._most:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                try:
                    thread.start()
                    self._threads.append(thread)
                except RuntimeError as error:  # the machine allows no more: the others do it
                    # Ctrl-C in `start` may end as this error, too.
                    if not self._threads or isinstance(error.__context__, KeyboardInterrupt):
                        task.cancel()
                        raise
        return task

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return a function's results for all items; an error or Ctrl-C cancels all requests."""
        group = Group()
        try:
            tasks = deque([self.submit(group.run, function, item) for item in items])
            # An error refers to this frame, which must not refer to its task.
            return [tasks.popleft().result() for _ in range(len(tasks))]
        finally:
            group.cancel()

    def end(self, *, wait: bool = False, cancel: bool = True) -> None:
        """End the threads, with their current tasks or, unless ``cancel``, with all of them."""
        if os.getpid() != self._process:
            return  # the threads are the parent's
        with self._lock:
            self._ended = True
            while cancel and self._tasks:
                self._tasks.popleft().cancel()
            for latch in self._idle:
                latch.set()
        if wait:
            self.join()

    def join(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds for a thread to end; return whether none is left."""
        for thread in tuple(self._threads):
            thread.join(timeout)
            if thread.is_alive():
                return False
        return True

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.end(wait=True, cancel=exception[0] is not None)

    def _run(self) -> None:
        """Run tasks, in a thread."""
        while (task := self._next()) is not None:
            task.run()
            del task  # it refers to a batch's memory

    def _next(self) -> Task[Any] | None:
        """Return what to run next; None to end."""
        latch: Latch | None = None
        is_late = False
        while True:
            with self._lock:
                if latch is not None and latch in self._idle:
                    self._idle.remove(latch)
                with suppress(IndexError):  # garbage collection may have ended it
                    return self._tasks.popleft()
                if is_late or self._ended:
                    with suppress(ValueError):  # Ctrl-C came just after its start
                        self._threads.remove(threading.current_thread())
                    return None
                latch = Latch()
                self._idle.append(latch)
            is_late = not latch.wait(0 if self._ended else _IDLE)
