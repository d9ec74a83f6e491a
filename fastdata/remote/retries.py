"""Retries: which errors of a driver are temporary, how long to wait, when to give up."""

from __future__ import annotations

import errno
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from fastdata.errors import FastdataError, OutageError, RemoteError
from fastdata.remote.urls import redact_text
from fastdata.storage.files import is_no_space

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: How often something is tried in all, by default.
TRIES = 6
_FIRST_WAIT = 0.2  # seconds
_LONGEST_WAIT = 20.0
#: Seconds after which it is logged that something is tried again.
_SILENT = 5.0
#: Seconds after which `_ENOUGH` tries suffice: some drivers retry for half a minute on their own
#: before they report an error.
_LONG = 90.0
_ENOUGH = 3
#: Seconds of `Patience`, by default.
PATIENCE = 300.0

PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504, 507, 509}
_PASSING_CODES = {"IncompleteBody", "BadDigest", "RequestTimeout", "SlowDown", "InternalError"}
_PASSING_ERRNO = {
    None,  # drivers raise a bare OSError for what the server said
    errno.EAGAIN,
    errno.EBUSY,
    errno.EIO,
    errno.EPIPE,
    getattr(errno, "EREMOTEIO", errno.EIO),
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.ENETUNREACH,
    errno.ETIMEDOUT,
}
#: Packages whose connection errors are no OSError; answers with a status are judged by that.
_NETWORK_PACKAGES = {
    "aiohttp",
    "http",
    "asyncio",
    "requests",
    "urllib3",
    "botocore",
    "aiobotocore",
    "httpcore",
    "gcsfs",
    "socket",
    "ssl",
}
#: Errors about an answer that was cut or garbled on its way. aiohttp's have a status of their own,
#: 400, which no server has sent.
_BROKEN = {
    "TruncatedError",
    "ClientPayloadError",
    "HttpProcessingError",
    "IncompleteRead",
    "IncompleteReadError",
    "ResponseStreamingError",
    "ChunkedEncodingError",
    "ChecksumError",
    "EOFError",
    "JSONDecodeError",
}
_MISSING_STATUS = {404, 410}
_REFUSED_STATUS = {401, 403}
#: Most seconds that a server may ask for (Retry-After) before the next try.
_MOST_ASKED = 60.0
#: Characters of a driver's message: it may hold a whole answer.
_MOST_TEXT = 500


class TruncatedError(OSError):
    """A server sent fewer bytes than it has, or than were asked for."""


class StatusError(OSError):
    """A server's answer is an error that may be temporary.

    Args:
        status: Its status.
        headers: Its headers.
        text: What it says.
    """

    def __init__(self, status: int, headers: Mapping[str, str], text: str) -> None:
        super().__init__(f"status {status}: {text}")
        self.status, self.headers = status, headers


class Patience:
    """Seconds that the requests of a pass, or of a file, may fail with no answer in between.

    What several wait for side by side counts once, and each answer gives a second back. So a
    server that fails now and then never uses them up, and one that stalls soon does, however many
    requests there are.

    Args:
        seconds: How many.
    """

    def __init__(self, seconds: float = PATIENCE) -> None:
        self.seconds = seconds
        self.begin()

    def begin(self) -> None:
        """Forgets what was lost."""
        self._lost = 0.0
        self._failures = 0
        self._last = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.seconds - self._lost

    def answered(self) -> None:
        """Notes an answer."""
        self._last = time.monotonic()
        self._lost = max(self._lost - 1.0, 0.0)

    def failed(self, begun: float, what: str, error: Exception) -> None:
        """Notes a failure.

        Args:
            begun: When its request was first made, by `time.monotonic`.
            what: See `Retries`.
            error: What it raised.

        Raises:
            OutageError: There are no seconds left.
        """
        now = time.monotonic()
        self._lost += max(now - max(begun, self._last), 0.0)
        self._last = now
        self._failures += 1
        if self._lost > self.seconds:
            raise OutageError(
                f"{what}: the server fails: {self._lost:.0f} s were lost in {self._failures} "
                f"failures; the last: {describe_error(error)}",
                "Check the network and the service's status, then run the same command again; "
                "training goes on from its last checkpoint; RemoteOptions(patience=…) waits "
                "longer.",
            ) from None


class Retries:
    """The one policy for failing requests: which are made again, after how long, how often.

    The wait before try ``n + 1`` is drawn from 50% to 100% of 0.2 s times ``2**(n - 1)``, and
    at most 20 s, so that many readers do not come back at the same moment; longer, up to 60 s and
    to the patience that is left, where the server asks for it (Retry-After). Of answers that were
    cut, two count as one try, for the server is there. When 90 s have gone by, ``enough`` tries are
    enough. What is still tried after 5 s is logged as a warning, once.

    Args:
        what: What is being done and where, for messages; no credentials in it
            (`fastdata.remote.urls.redact`).
        tries: How often it is tried in all.
        enough: How often it is tried when that takes longer than 90 s.
        patience: Notes failures; None for none.
    """

    def __init__(
        self,
        what: str,
        tries: int = TRIES,
        enough: int = _ENOUGH,
        patience: Patience | None = None,
    ) -> None:
        self._what = what
        self._tries = tries
        self._enough = enough
        self._patience = patience
        self._failed = self._cut = 0
        self._told = False
        self._begun = time.monotonic()

    def wait_after(self, error: Exception) -> float:
        """Seconds to wait before the next try; raises where there is none.

        Args:
            error: What the last try raised.

        Raises:
            FileNotFoundError: The server says that there is no such thing; its text is ``what``.
            RemoteError: It failed for good, or too often.
            OutageError: No patience is left.
            FastdataError: ``error`` itself.
        """
        self._failed += 1
        self._cut += _is_cut(error)
        counted = self._failed - self._cut // 2
        seconds = time.monotonic() - self._begun
        # `from None`: a driver's own traceback may print credentials.
        if not may_pass(error):
            raise _final(error, self._what) from None
        if self._patience is not None:
            self._patience.failed(self._begun, self._what, error)
        if counted >= self._tries or (counted >= self._enough and seconds > _LONG):
            raise RemoteError(
                f"{self._what}: failed {self._failed} times in {seconds:.0f} s; the last time: "
                f"{describe_error(error)}",
                "Check the network and the service's status, then run the same command again; "
                "training goes on from its last checkpoint.",
            ) from None
        if not self._told and seconds > _SILENT:
            self._told = True
            _log.warning("%s: %s; trying again", self._what, describe_error(error))
        asked = min(_asked_wait(error), _MOST_ASKED)
        if self._patience is not None:
            asked = min(asked, self._patience.left)
        return max(wait_before(max(counted, 1)), asked)


def retrying(
    call: Callable[[], T],
    *,
    what: str,
    tries: int = TRIES,
    pause: Callable[[float], object] = time.sleep,
    patience: Patience | None = None,
) -> T:
    """Calls a function until it succeeds, as `Retries` has it.

    Args:
        call: The function.
        what: See `Retries`.
        tries: See `Retries`.
        pause: Waits for so many seconds; what it raises ends the trying.
        patience: See `Retries`.

    Raises:
        FileNotFoundError: See `Retries.wait_after`; `RemoteError` and `FastdataError` likewise.
    """
    retries = Retries(what, tries, patience=patience)
    while True:
        try:
            found = call()
            if patience is not None:
                patience.answered()
            return found
        except Exception as error:
            seconds = retries.wait_after(error)
        pause(seconds)


def wait_before(retry: int) -> float:
    """Seconds to wait before retry ``retry``, counted from 1."""
    # The system's generator: the user's seeded ones stay as they are.
    longest: float = min(_FIRST_WAIT * 2.0 ** (retry - 1), _LONGEST_WAIT)
    return longest * _jitter.uniform(0.5, 1.0)


_jitter = random.SystemRandom()


def may_pass(error: BaseException) -> bool:
    """Whether an error of a driver may be temporary.

    Such are time-outs, refused and reset connections, answers that were cut, and the statuses
    408, 425, 429 and 5xx.
    """
    error = _told(error)
    if isinstance(error, FastdataError) or is_no_space(error) or _lacks_credentials(error):
        return False
    if isinstance(error, (TimeoutError, ConnectionError)) or _is_cut(error):
        return True
    status = _status(error)
    if status is not None:
        return status in PASSING_STATUS or _code(error) in _PASSING_CODES
    if isinstance(error, OSError) and type(error).__module__.partition(".")[0] == "builtins":
        if type(error) is not OSError or str(error).startswith("Forbidden"):
            return False  # FileNotFoundError, PermissionError and their like
        return error.errno in _PASSING_ERRNO
    if getattr(error, "retryable", False) is True:  # google.auth
        return True
    return any(
        base.__module__.partition(".")[0] in _NETWORK_PACKAGES for base in type(error).__mro__
    ) and not isinstance(error, ValueError)


def describe_error(error: BaseException) -> str:
    """One line about an error, fit for messages: short, and credentials are redacted."""
    # Redacted before it is cut to its length, or a part of a credential would stay.
    text = " ".join(redact_text(str(error)[: 20 * _MOST_TEXT]).split())
    if not text and "TimeoutError" in type(error).__name__:  # asyncio's has no text
        text = "no whole answer came in time"
    if len(text) > _MOST_TEXT:
        text = text[:_MOST_TEXT] + " …"
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def _final(error: Exception, what: str) -> Exception:
    told = _told(error)
    if isinstance(error, (FastdataError, AttributeError, TypeError, NameError)):
        return error
    if isinstance(told, FileNotFoundError) or _status(told) in _MISSING_STATUS:
        return FileNotFoundError(errno.ENOENT, "it is not there", what)
    if is_no_space(error):
        return error
    hint = "Check the URL, and --storage-option or the driver's environment variables."
    refused = isinstance(told, PermissionError) or "Forbidden" in str(told)
    if refused or _status(told) in _REFUSED_STATUS or _lacks_credentials(told):
        hint = (
            "Check the credentials (gcloud auth application-default login; aws configure) and "
            "what they may do, or give others by --storage-option."
        )
    return RemoteError(f"{what}: {describe_error(told)}", hint)


def _lacks_credentials(error: BaseException) -> bool:
    """Whether botocore found none: it has not asked anybody."""
    return type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes."""
    found: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if found is None:
            return
        yield found
        found = found.__cause__


_MOST_CAUSES = 8


def _told(error: BaseException) -> BaseException:
    """An error, or its cause: fsspec's HTTP driver says of every error that the file is missing."""
    causes = (found for found in _chain(error) if not isinstance(found, FileNotFoundError))
    return next(causes, error) if isinstance(error, FileNotFoundError) else error


def _is_cut(error: BaseException) -> bool:
    """Whether an answer came, but not whole or not in HTTP's form."""
    names = {base.__name__ for found in _chain(error) for base in type(found).__mro__}
    return not names.isdisjoint(_BROKEN)


def _status(error: BaseException) -> int | None:
    """The status that a server has sent; None where there is none."""
    for found in _chain(error):
        status = _response(found).get("ResponseMetadata", {}).get("HTTPStatusCode")
        if isinstance(status, int):
            return status
        for name in ("status", "code"):  # aiohttp, gcsfs
            try:
                return int(getattr(found, name))
            except (AttributeError, TypeError, ValueError):
                continue
    return None


def _code(error: BaseException) -> str | None:
    codes = (_response(found).get("Error", {}).get("Code") for found in _chain(error))
    return next((code for code in codes if isinstance(code, str)), None)


def _asked_wait(error: BaseException) -> float:
    """Seconds that a server has asked to wait for; 0 where it has not."""
    for found in _chain(error):
        headers = getattr(found, "headers", None)  # aiohttp's find a name in any case
        if headers is None:
            headers = _response(found).get("ResponseMetadata", {}).get("HTTPHeaders", {})
        with suppress(AttributeError):
            given = str(headers.get("Retry-After") or headers.get("retry-after") or "")
            if given.isdecimal():
                return float(given)
            with suppress(ValueError, TypeError, OverflowError):  # no date either
                return max(parsedate_to_datetime(given).timestamp() - time.time(), 0.0)
    return 0.0


def _response(error: BaseException) -> dict[str, Any]:
    """The answer that botocore keeps with an error; empty where there is none."""
    response = getattr(error, "response", None)
    return response if isinstance(response, dict) else {}
