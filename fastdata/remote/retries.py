"""Trying again: which errors of a driver pass, how long to wait, and when to give up."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from typing import TypeVar

from fastdata.errors import FastdataError, RemoteError
from fastdata.remote.urls import redact_text
from fastdata.storage.files import is_no_space

T = TypeVar("T")

#: How often something is tried in all, by default.
TRIES = 6
_FIRST_WAIT = 0.2  # seconds
_LONGEST_WAIT = 20.0
#: Seconds after which it is tried no more, if it was often enough: some drivers try for half a
#: minute on their own before they report an error.
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
#: Packages whose connection errors are no OSError; their answers with a status are told apart.
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


def retrying(
    call: Callable[[], T],
    *,
    what: str,
    tries: int = TRIES,
    retry: Callable[[BaseException], bool] | None = None,
    on_retry: Callable[[BaseException, int], None] | None = None,
    pause: Callable[[float], object] = time.sleep,
) -> T:
    """Calls something until it succeeds, waiting longer each time.

    The wait before try ``n + 1`` is drawn from 50% to 100% of 0.2 s times ``2**(n - 1)``, and
    at most 20 s, so that many readers do not come back at the same moment. When 90 s have gone
    by, three tries are enough.

    Args:
        call: What to do. It is called again only after an error that may pass.
        what: What is being done and where, for messages; no credentials in it
            (`fastdata.remote.urls.redact`).
        tries: How often it is tried in all.
        retry: Further errors to try again after; None for `may_pass` alone.
        on_retry: Called before each wait with the error and the number of tries so far.
        pause: Waits for so many seconds; what it raises ends the trying.

    Raises:
        FileNotFoundError: The server says that there is no such thing; its text is ``what``.
        RemoteError: It failed for good, or too often.
        FastdataError: ``call`` raised it.
    """
    begun = time.monotonic()
    for number in range(1, tries + 1):
        try:
            return call()
        except Exception as error:
            passing = may_pass(error) or (retry is not None and retry(error))
            # `from None`: a driver's own traceback may print credentials.
            if not passing:
                raise _final(error, what) from None
            long = number >= _ENOUGH and time.monotonic() - begun > _LONG
            if number == tries or long:
                raise RemoteError(
                    f"{what}: failed {number} times; the last time: {describe_error(error)}",
                    "Check the network and the service's status, and run the same command again.",
                ) from None
            if on_retry is not None:
                on_retry(error, number)
        pause(wait_before(number))
    raise ValueError(f"tries={tries}: nothing would be tried")


def wait_before(retry: int) -> float:
    """Seconds to wait before retry ``retry``, counted from 1."""
    # Not a source of secrets, and no seed of the user's is spent.
    longest: float = min(_FIRST_WAIT * 2.0 ** (retry - 1), _LONGEST_WAIT)
    return longest * _jitter.uniform(0.5, 1.0)


_jitter = random.SystemRandom()


def may_pass(error: BaseException) -> bool:
    """Whether an error of a driver is one that may be gone when tried again.

    They are: time-outs, refused and reset connections, truncated answers, and the statuses
    408, 425, 429 and 5xx.
    """
    if isinstance(error, FastdataError) or is_no_space(error):
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
    if isinstance(error, PermissionError) or "Forbidden" in str(error) or _status(error) == 401:
        hint = (
            "Check the credentials (gcloud auth application-default login; aws configure) and "
            "what they may do, or give others by --storage-option."
        )
    return RemoteError(f"{what}: {describe_error(error)}", hint)


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error tells, of the drivers that have one."""
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
