"""Retries: which errors of a driver are temporary, how long to wait, when to give up."""

from __future__ import annotations

import errno
import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from fastdata.errors import FastdataError, RemoteError
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

_PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504, 507, 509}
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
}


class TruncatedError(OSError):
    """A server sent fewer bytes than it has, or than were asked for."""


class Retries:
    """The one policy for failing requests: which are made again, after how long, how often.

    The wait before try ``n + 1`` is drawn from 50% to 100% of 0.2 s times ``2**(n - 1)``, and
    at most 20 s, so that many readers do not come back at the same moment. When 90 s have gone
    by, ``enough`` tries are enough. What is still tried after 5 s is logged as a warning, once.

    Args:
        what: What is being done and where, for messages; no credentials in it
            (`fastdata.remote.urls.redact`).
        tries: How often it is tried in all.
        enough: How often it is tried when that takes longer than 90 s.
    """

    def __init__(self, what: str, tries: int = TRIES, enough: int = _ENOUGH) -> None:
        self._what = what
        self._tries = tries
        self._enough = enough
        self._failed = 0
        self._told = False
        self._begun = time.monotonic()

    def wait_after(self, error: Exception) -> float:
        """Seconds to wait before the next try; raises where there is none.

        Args:
            error: What the last try raised.

        Raises:
            FileNotFoundError: The server says that there is no such thing; its text is ``what``.
            RemoteError: It failed for good, or too often.
            FastdataError: ``error`` itself.
        """
        self._failed += 1
        # `from None`: a driver's own traceback may print credentials.
        if not may_pass(error):
            raise _final(error, self._what) from None
        long = self._failed >= self._enough and time.monotonic() - self._begun > _LONG
        if self._failed >= self._tries or long:
            raise RemoteError(
                f"{self._what}: failed {self._failed} times; the last time: "
                f"{describe_error(error)}",
                "Check the network and the service's status, then run the same command again; "
                "training goes on from its last checkpoint.",
            ) from None
        if not self._told and time.monotonic() - self._begun > _SILENT:
            self._told = True
            _log.warning("%s: %s; trying again", self._what, describe_error(error))
        return wait_before(self._failed)


def retrying(
    call: Callable[[], T],
    *,
    what: str,
    tries: int = TRIES,
    pause: Callable[[float], object] = time.sleep,
) -> T:
    """Calls a function until it succeeds, as `Retries` has it.

    Args:
        call: The function.
        what: See `Retries`.
        tries: See `Retries`.
        pause: Waits for so many seconds; what it raises ends the trying.

    Raises:
        FileNotFoundError: See `Retries.wait_after`; `RemoteError` and `FastdataError` likewise.
    """
    retries = Retries(what, tries)
    while True:
        try:
            return call()
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

    Such are time-outs, refused and reset connections, truncated answers, and the statuses
    408, 425, 429 and 5xx.
    """
    if isinstance(error, FastdataError) or is_no_space(error) or _lacks_credentials(error):
        return False
    if isinstance(error, (TruncatedError, TimeoutError, ConnectionError)):
        return True
    status = _status(error)
    if status is not None:
        return status in _PASSING_STATUS or _code(error) in _PASSING_CODES
    if isinstance(error, OSError) and type(error).__module__.partition(".")[0] == "builtins":
        if type(error) is not OSError or str(error).startswith("Forbidden"):
            return False  # FileNotFoundError, PermissionError and their like
        return error.errno in _PASSING_ERRNO
    return any(
        base.__module__.partition(".")[0] in _NETWORK_PACKAGES for base in type(error).__mro__
    ) and not isinstance(error, ValueError)


def describe_error(error: BaseException) -> str:
    """One line about an error, fit for messages: credentials are redacted."""
    text = " ".join(redact_text(str(error)).split())
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def _final(error: Exception, what: str) -> Exception:
    if isinstance(error, (FastdataError, AttributeError, TypeError, NameError)):
        return error
    if isinstance(error, FileNotFoundError) or _status(error) == 404:
        return FileNotFoundError(errno.ENOENT, "it is not there", what)
    if is_no_space(error):
        return error
    hint = "Check the URL, and --storage-option or the driver's environment variables."
    refused = isinstance(error, PermissionError) or "Forbidden" in str(error)
    if refused or _status(error) == 401 or _lacks_credentials(error):
        hint = (
            "Check the credentials (gcloud auth application-default login; aws configure) and "
            "what they may do, or give others by --storage-option."
        )
    return RemoteError(f"{what}: {describe_error(error)}", hint)


def _lacks_credentials(error: BaseException) -> bool:
    """Whether botocore found none: it has not asked anybody."""
    return type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError")


def _status(error: BaseException) -> int | None:
    """The HTTP status of an error; None where its driver gives none."""
    for found in (error, error.__cause__):
        response = getattr(found, "response", None)
        if isinstance(response, dict):  # botocore
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if isinstance(status, int):
                return status
        for name in ("status", "code"):  # aiohttp, gcsfs
            try:
                return int(getattr(found, name))
            except (AttributeError, TypeError, ValueError):
                continue
    return None


def _code(error: BaseException) -> str | None:
    for found in (error, error.__cause__):
        response = getattr(found, "response", None)
        if isinstance(response, dict):
            code = response.get("Error", {}).get("Code")
            return code if isinstance(code, str) else None
    return None
