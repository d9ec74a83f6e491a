"""Retry policy: which errors are temporary, how long to wait, and when to stop."""

from __future__ import annotations

import errno
import logging
import random
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from fastdata.errors import FastdataError, OutageError, RemoteError, is_no_space
from fastdata.remote.failures import PASSING_STATUS
from fastdata.remote.urls import redact_text
from fastdata.threads import pause

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Most tries of a request, by default.
TRIES = 6
_FIRST_WAIT = 0.2  # seconds
_LONGEST_WAIT = 20.0
#: Seconds after which a retry is logged.
_SILENT = 5.0
#: Seconds of `Patience`, by default: of a pass or file, and of a single request. Some drivers retry
#: on their own for half a minute before they report an error.
PATIENCE = 300.0
_PATIENCE_OF_REQUEST = 150.0

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
    "concurrent",
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
    "ResponseStreamingError",
    "ChunkedEncodingError",
    "ChecksumError",
    "EOFError",
    "JSONDecodeError",
}
#: Other temporary errors: of ftplib, and of paramiko, which has an error for several addresses.
_PASSING_NAMES = {"error_temp", "NoValidConnectionsError"}
#: Errors of botocore that found no credentials, so it sent no request.
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError"}
_MISSING_STATUS = {404, 410}
_REFUSED_STATUS = {401, 403}
#: Most seconds of a server's Retry-After that are respected.
_MOST_ASKED = 60.0
#: Most characters of a driver's message, which may contain a whole response.
_MOST_TEXT = 500
_MOST_CAUSES = 8

_HINT = (
    "Check the network and the service's status, then run the same command again; training resumes "
    "from its last checkpoint."
)


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
                f"{_HINT} RemoteOptions(patience=…) waits longer.",
            ) from None


class Retries:
    """Retry policy of one request: which errors to retry, after how long, and how often.

    The wait before try ``n + 1`` is 0.2 s times ``2**(n - 1)``, at most 20 s. It is scaled by a
    random 50% to 100%, so that many readers do not retry at the same moment. A server's Retry-After
    extends it, up to 60 s and to the remaining patience. Two truncated responses count as one try,
    because the server works. ``patience`` is 150 s of its own by default. The first retry after 5 s
    is logged as a warning. ``what`` is the operation and its URL without credentials, for messages.

    Attributes:
        failed: Number of failures so far.
    """

    def __init__(self, what: str, tries: int = TRIES, patience: Patience | None = None) -> None:
        self._what = what
        self._tries = tries
        self._patience = patience or Patience(_PATIENCE_OF_REQUEST)
        self.failed = self._cut = 0
        self._logged = False
        self._begun = time.monotonic()

    def call(self, attempt: Callable[[], T]) -> T:
        """Return the result of the first attempt that succeeds; raises as `wait_after`."""
        while True:
            try:
                result = attempt()
                self._patience.answered()
                return result
            except Exception as error:
                seconds = self.wait_after(error)
            pause(seconds)

    def wait_after(self, error: Exception) -> float:
        """Return the seconds to wait before the next try; raise if there is none.

        Raises:
            FileNotFoundError: The server reports that the file is missing; its text is ``what``.
            RemoteError: The request failed for good, or too often.
            OutageError: No patience is left.
            FastdataError: ``error`` itself.
        """
        failure = Failure(error)
        self.failed += 1
        self._cut += failure.is_cut
        counted = self.failed - self._cut // 2
        # `from None`: a driver's traceback may contain credentials.
        if not failure.may_pass:
            raise failure.final(self._what) from None
        self._patience.failed(self._begun, self._what, error)
        seconds = time.monotonic() - self._begun
        if counted >= self._tries:
            raise RemoteError(
                f"{self._what}: failed {self.failed} times in {seconds:.0f} s; the last time: "
                f"{describe_error(error)}",
                _HINT,
            ) from None
        if not self._logged and seconds > _SILENT:
            self._logged = True
            _log.warning("%s: %s; retrying", self._what, describe_error(error))
        asked = min(failure.asked_wait, _MOST_ASKED, self._patience.left)
        return max(wait_before(max(counted, 1)), asked)


def wait_before(retry: int) -> float:
    """Return the seconds to wait before retry ``retry``, counted from 1."""
    # The system's generator: drawing from it leaves the user's seeded ones unchanged.
    longest: float = min(_FIRST_WAIT * 2.0 ** (retry - 1), _LONGEST_WAIT)
    return longest * _jitter.uniform(0.5, 1.0)


_jitter = random.SystemRandom()


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


class Failure:
    """Failure of a request, as an error of a driver and its causes describe it.

    Attributes:
        is_cut: A response came, but truncated or not valid HTTP.
        status: The status of the server's response; None without one.
        asked_wait: The seconds of a server's Retry-After; 0 without one.
    """

    def __init__(self, error: BaseException) -> None:
        causes = [error]
        while causes[-1].__cause__ is not None and len(causes) < _MOST_CAUSES:
            causes.append(causes[-1].__cause__)
        # fsspec's HTTP driver turns every error into a FileNotFoundError.
        others = (cause for cause in causes if not isinstance(cause, FileNotFoundError))
        self._raised, self._error = error, next(others, error)
        self._names = {base.__name__ for base in type(self._error).__mro__}
        self.is_cut = False
        self.status: int | None = None
        self.asked_wait = 0.0
        for cause in causes:
            self.is_cut |= any(base.__name__ in _BROKEN for base in type(cause).__mro__)
            response = getattr(cause, "response", None)  # botocore's
            response = response if isinstance(response, dict) else {}
            answer = response.get("ResponseMetadata", {})
            own: Any = getattr(cause, "status" if hasattr(cause, "status") else "code", None)
            passing = response.get("Error", {}).get("Code") in _PASSING_CODES
            with suppress(TypeError, ValueError):
                status = int(503 if passing else answer.get("HTTPStatusCode", own))
                self.status = self.status or status
            headers = getattr(cause, "headers", None) or answer.get("HTTPHeaders")
            self.asked_wait = self.asked_wait or _asked_wait(headers)

    @property
    def may_pass(self) -> bool:
        """Whether it may be temporary.

        Temporary are time-outs, refused and reset connections, truncated responses, and the
        statuses 408, 425, 429 and 5xx.
        """
        error, kind = self._error, type(self._error)
        if isinstance(error, (FastdataError, CancelledError)) or is_no_space(error):
            return False
        if self._names & _NO_CREDENTIALS:
            return False
        if isinstance(error, (TimeoutError, ConnectionError)) or self.is_cut:
            return True
        if self.status is not None:
            return self.status in PASSING_STATUS
        if isinstance(error, OSError) and kind.__module__ == "builtins":
            if kind is not OSError or str(error).startswith("Forbidden"):
                return False  # FileNotFoundError, PermissionError and their like
            return error.errno in _PASSING_ERRNO
        if getattr(error, "retryable", False) is True or self._names & _PASSING_NAMES:
            return True
        packages = {base.__module__.partition(".")[0] for base in kind.__mro__}
        return bool(packages & _NETWORK_PACKAGES) and not isinstance(error, ValueError)

    def final(self, what: str) -> BaseException:
        """Return the error to raise for a failure that does not pass; ``what`` failed."""
        error = self._error
        mistakes = AttributeError, TypeError, NameError
        if isinstance(self._raised, (FastdataError, CancelledError, *mistakes)):
            return self._raised
        if isinstance(error, FileNotFoundError) or self.status in _MISSING_STATUS:
            return FileNotFoundError(errno.ENOENT, "it does not exist", what)
        if is_no_space(self._raised):
            return self._raised
        hint = "Check the URL, and --storage-option or the driver's environment variables."
        refused = isinstance(error, PermissionError) or "Forbidden" in str(error)
        if refused or self.status in _REFUSED_STATUS or self._names & _NO_CREDENTIALS:
            hint = (
                "Check the credentials (gcloud auth application-default login; aws configure) and "
                "their permissions, or give others by --storage-option."
            )
        return RemoteError(f"{what}: {describe_error(error)}", hint)


def _asked_wait(headers: Any) -> float:
    """Return the seconds of a response's Retry-After; 0 without one."""
    with suppress(AttributeError, ValueError, TypeError, OverflowError):  # no headers, or no date
        text = str(headers.get("Retry-After") or headers.get("retry-after"))  # aiohttp ignores case
        if text.isdecimal():
            return float(text)
        return max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    return 0.0
