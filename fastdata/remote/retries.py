"""Retry policy: which errors are temporary, how long to wait, and when to stop."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from fastdata.errors import FastdataError, OutageError, RemoteError, is_no_space
from fastdata.remote.failures import PASSING_STATUS
from fastdata.remote.urls import redact_text

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Most tries of a request, by default.
TRIES = 6
_FIRST_WAIT = 0.2  # seconds
_LONGEST_WAIT = 20.0
#: Seconds after which a retry is logged.
_SILENT = 5.0
#: Seconds after which `_ENOUGH` tries suffice without patience. Some drivers retry on their own for
#: half a minute before they report an error.
_LONG = 90.0
_ENOUGH = 3
#: Seconds of `Patience`, by default.
PATIENCE = 300.0

_PASSING_CODES = {"IncompleteBody", "BadDigest", "RequestTimeout", "SlowDown", "InternalError"}
_PASSING_ERRNO = {
    None,  # drivers raise a bare OSError for a server's message
    errno.EBUSY,
    errno.EIO,
    getattr(errno, "EREMOTEIO", errno.EIO),
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.ENETUNREACH,
}
#: Packages whose connection errors are no OSError. A status, if there is one, decides first.
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
#: Errors about a truncated or garbled response. aiohttp's carry the status 400, which no server
#: has sent.
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
#: Other temporary errors: of ftplib, and of paramiko, which has an error for several addresses.
_PASSING_NAMES = {"error_temp", "NoValidConnectionsError"}
_MISSING_STATUS = {404, 410}
_REFUSED_STATUS = {401, 403}
#: Most seconds of a server's Retry-After that are respected.
_MOST_ASKED = 60.0
#: Most characters of a driver's message, which may contain a whole response.
_MOST_TEXT = 500


class Patience:
    """Seconds for which the requests of a pass, or of a file, may fail without a response.

    Concurrent waits count once, and each response restores one second. A server that fails now and
    then never exhausts them. A server that stalls soon does, for any number of requests.
    """

    def __init__(self, seconds: float = PATIENCE) -> None:
        self.seconds = seconds
        self.begin()

    def begin(self) -> None:
        """Restore all seconds."""
        self._lost = 0.0
        self._failures = 0
        self._last = time.monotonic()

    @property
    def left(self) -> float:
        """Remaining seconds."""
        return self.seconds - self._lost

    def answered(self) -> None:
        """Record a response."""
        self._last = time.monotonic()
        self._lost = max(self._lost - 1.0, 0.0)

    def failed(self, begun: float, what: str, error: Exception) -> None:
        """Record a failure; raise OutageError if no seconds are left.

        ``begun`` is the `time.monotonic` of the request's first try.
        """
        now = time.monotonic()
        self._lost += max(now - max(begun, self._last), 0.0)
        self._last = now
        self._failures += 1
        if self._lost > self.seconds:
            raise OutageError(
                f"{what}: the server fails: {self._failures} failures cost {self._lost:.0f} s; "
                f"the last: {describe_error(error)}",
                "Check the network and the service's status, then run the same command again; "
                "training resumes from its last checkpoint. RemoteOptions(patience=…) waits "
                "longer.",
            ) from None


class Retries:
    """Retry policy of one request: which errors to retry, after how long, and how often.

    The wait before try ``n + 1`` is 0.2 s times ``2**(n - 1)``, at most 20 s. It is scaled by a
    random 50% to 100%, so that many readers do not retry at the same moment. A server's Retry-After
    extends it, up to 60 s and to the remaining patience. Two truncated responses count as one try,
    because the server works. Without ``patience``, 3 tries suffice after 90 s. The first retry
    after 5 s is logged as a warning. ``what`` is the operation and its URL without credentials, for
    messages.

    Attributes:
        failed: Number of failures so far.
    """

    def __init__(self, what: str, tries: int = TRIES, patience: Patience | None = None) -> None:
        self._what = what
        self._tries = tries
        self._patience = patience
        self.failed = self._cut = 0
        self._logged = False
        self._begun = time.monotonic()

    async def run(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the first attempt that succeeds; raises as `wait_after`."""
        while True:
            try:
                result = await attempt()
                if self._patience is not None:
                    self._patience.answered()
                return result
            except Exception as error:
                seconds = self.wait_after(error)
            await asyncio.sleep(seconds)

    def call(self, attempt: Callable[[], T], sleep: Callable[[float], None]) -> T:
        """Return the result of a blocking attempt, as `run` does."""
        while True:
            try:
                result = attempt()
                if self._patience is not None:
                    self._patience.answered()
                return result
            except Exception as error:
                seconds = self.wait_after(error)
            sleep(seconds)

    def wait_after(self, error: Exception) -> float:
        """Return the seconds to wait before the next try; raise if there is none.

        Raises:
            FileNotFoundError: The server reports that the file is missing; its text is ``what``.
            RemoteError: The request failed for good, or too often.
            OutageError: No patience is left.
            FastdataError: ``error`` itself.
        """
        self.failed += 1
        self._cut += _is_cut(error)
        counted = self.failed - self._cut // 2
        seconds = time.monotonic() - self._begun
        # `from None`: a driver's traceback may contain credentials.
        if not may_pass(error):
            raise _final(error, self._what) from None
        if self._patience is not None:
            self._patience.failed(self._begun, self._what, error)
        enough = self._tries if self._patience is not None or seconds <= _LONG else _ENOUGH
        if counted >= min(self._tries, enough):
            raise RemoteError(
                f"{self._what}: failed {self.failed} times in {seconds:.0f} s; the last time: "
                f"{describe_error(error)}",
                "Check the network and the service's status, then run the same command again; "
                "training resumes from its last checkpoint.",
            ) from None
        if not self._logged and seconds > _SILENT:
            self._logged = True
            _log.warning("%s: %s; retrying", self._what, describe_error(error))
        asked = min(_asked_wait(error), _MOST_ASKED)
        if self._patience is not None:
            asked = min(asked, self._patience.left)
        return max(wait_before(max(counted, 1)), asked)


def wait_before(retry: int) -> float:
    """Return the seconds to wait before retry ``retry``, counted from 1."""
    # The system's generator: drawing from it leaves the user's seeded ones unchanged.
    longest: float = min(_FIRST_WAIT * 2.0 ** (retry - 1), _LONGEST_WAIT)
    return longest * _jitter.uniform(0.5, 1.0)


_jitter = random.SystemRandom()


def may_pass(error: BaseException) -> bool:
    """Return whether an error of a driver may be temporary.

    Temporary are time-outs, refused and reset connections, truncated responses, and the
    statuses 408, 425, 429 and 5xx.
    """
    error = _real_error(error)
    if isinstance(error, FastdataError) or is_no_space(error) or _lacks_credentials(error):
        return False
    if isinstance(error, (TimeoutError, ConnectionError)) or _is_cut(error):
        return True
    if type(error).__name__ in _PASSING_NAMES:
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
    """Return one short line about an error, without credentials."""
    # Redact before truncating, or a part of a credential would remain.
    text = " ".join(redact_text(str(error)[: 20 * _MOST_TEXT]).split())
    if not text and "TimeoutError" in type(error).__name__:  # asyncio's has no text
        text = "no complete response in time"
    if len(text) > _MOST_TEXT:
        text = text[:_MOST_TEXT] + " …"
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def _final(error: Exception, what: str) -> Exception:
    real = _real_error(error)
    if isinstance(error, (FastdataError, AttributeError, TypeError, NameError)):
        return error
    if isinstance(real, FileNotFoundError) or _status(real) in _MISSING_STATUS:
        return FileNotFoundError(errno.ENOENT, "it does not exist", what)
    if is_no_space(error):
        return error
    hint = "Check the URL, and --storage-option or the driver's environment variables."
    refused = isinstance(real, PermissionError) or "Forbidden" in str(real)
    if refused or _status(real) in _REFUSED_STATUS or _lacks_credentials(real):
        hint = (
            "Check the credentials (gcloud auth application-default login; aws configure) and "
            "their permissions, or give others by --storage-option."
        )
    return RemoteError(f"{what}: {describe_error(real)}", hint)


def _lacks_credentials(error: BaseException) -> bool:
    """Return whether botocore found no credentials, so it sent no request."""
    return type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    cause: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__


_MOST_CAUSES = 8


def _real_error(error: BaseException) -> BaseException:
    """Return an error's cause if it is a FileNotFoundError, else the error.

    fsspec's HTTP driver turns every error into a FileNotFoundError.
    """
    causes = (cause for cause in _chain(error) if not isinstance(cause, FileNotFoundError))
    return next(causes, error) if isinstance(error, FileNotFoundError) else error


def _is_cut(error: BaseException) -> bool:
    """Return whether a response came, but truncated or not valid HTTP."""
    names = {base.__name__ for cause in _chain(error) for base in type(cause).__mro__}
    return not names.isdisjoint(_BROKEN)


def _status(error: BaseException) -> int | None:
    """Return the status of a server's response; None if there is none."""
    for cause in _chain(error):
        status = _response(cause).get("ResponseMetadata", {}).get("HTTPStatusCode")
        if isinstance(status, int):
            return status
        for name in ("status", "code"):  # aiohttp, gcsfs
            try:
                return int(getattr(cause, name))
            except (AttributeError, TypeError, ValueError):
                continue
    return None


def _code(error: BaseException) -> str | None:
    codes = (_response(cause).get("Error", {}).get("Code") for cause in _chain(error))
    return next((code for code in codes if isinstance(code, str)), None)


def _asked_wait(error: BaseException) -> float:
    """Return the seconds of a server's Retry-After; 0 without one."""
    for cause in _chain(error):
        headers = getattr(cause, "headers", None)  # aiohttp's ignore case
        if headers is None:
            headers = _response(cause).get("ResponseMetadata", {}).get("HTTPHeaders", {})
        with suppress(AttributeError):
            text = str(headers.get("Retry-After") or headers.get("retry-after") or "")
            if text.isdecimal():
                return float(text)
            with suppress(ValueError, TypeError, OverflowError):  # not a date
                return max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    return 0.0


def _response(error: BaseException) -> dict[str, Any]:
    """Return the response that botocore stores in an error; empty if there is none."""
    response = getattr(error, "response", None)
    return response if isinstance(response, dict) else {}
