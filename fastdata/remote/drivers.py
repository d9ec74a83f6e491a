"""Drivers of fsspec: opened once a process, with limits, and with errors for missing ones."""

from __future__ import annotations

import json
import logging
import os
import socket
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from fastdata.errors import FastdataError, RemoteError, UsageError
from fastdata.remote.answers import bounded_options
from fastdata.remote.requests import call_in_thread
from fastdata.remote.retries import Failure, Retries, describe_error
from fastdata.remote.urls import redact, remember_query, remember_secrets, scheme_of

if TYPE_CHECKING:
    import fsspec

StorageOptions = Mapping[str, Any]

#: Modules of the drivers of buckets, by scheme. Without ``fs``, each is an extra of this package.
BUCKETS = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs", "s3a": "s3fs"}

#: Seconds without a byte after which a request counts as stalled and is retried.
STALLED = 60.0
CONNECT = 15.0

# Keyed by process: a forked child does not use its parent's drivers. It keeps them, because
# closing a driver without its thread may hang.
_opened: dict[tuple[int, str, str], fsspec.AbstractFileSystem] = {}


def open_filesystem(
    url: str, storage_options: StorageOptions | None = None
) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return the fsspec filesystem for a URL, and the URL's path in it.

    A process opens one filesystem per scheme, host and options. It caches no listings.
    Call this again after a fork; do not pass the filesystem to another process.

    Raises:
        UsageError: The URL is malformed, its driver is missing, or rejects the options.
        RemoteError: The driver's host is unknown, or cannot be reached.
    """
    scheme = scheme_of(url)
    options = dict(storage_options or {})
    remember_secrets(options)
    remember_query(url)
    if "::" in url.partition("://")[0] or "://" not in url:
        raise UsageError(f"{redact(url)}: nested URLs are not supported", "Use scheme://host/path.")
    if odd := [name for name in options if ":" in name]:
        raise UsageError(f"the storage option {odd[0]!r} has a colon", "Name the driver's option.")
    driver = _driver(url)
    with _opening(url):
        path = str(driver._strip_protocol(url)).rstrip("/") or "/"
        options = {**driver._get_kwargs_from_urls(url), **options}
        remember_secrets(options)
        key = os.getpid(), scheme, json.dumps(options, sort_keys=True, default=repr)
    if scheme in BUCKETS and "//" in path:
        raise empty_part(url)
    if key in _opened:
        return _opened[key], path

    make = _opening(url)(partial(_make, url, driver, options))
    # Some drivers connect at once, so this may fail as any request.
    made = Retries(f"{redact(url)}: connecting").call(partial(call_in_thread, make))
    return _opened.setdefault(key, made), path  # another thread may have been faster


@contextmanager
def _opening(url: str) -> Iterator[None]:
    """Name the URL in errors of its driver, except temporary ones."""
    try:
        yield
    except Exception as error:
        if isinstance(error, FastdataError) or Failure(error).may_pass:
            raise
        raise UsageError(
            f"{redact(url)}: cannot open it: {describe_error(error)}",
            "Check the URL and --storage-option.",
        ) from None


def empty_part(url: str) -> UsageError:
    """Return the error for keys with an empty part, which drivers take for others' listings."""
    return UsageError(
        f"{redact(url)}: has keys with an empty part between two slashes",
        "Write one slash; if the objects' keys have two, rename them (aws s3 mv, gcloud storage "
        "mv), or download them.",
    )


def _require_host(url: str, fs: fsspec.AbstractFileSystem) -> None:
    """Raise RemoteError if a driver's host does not exist: the driver would retry for minutes."""
    service = getattr(fs, "base", None) or getattr(fs, "endpoint_url", None)  # gcsfs, s3fs
    host = urlsplit(service).hostname if isinstance(service, str) else None
    if host is None or getproxies():  # a proxy knows names that this machine does not
        return
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        if error.errno == socket.EAI_NONAME:
            raise RemoteError(
                f"{redact(url)}: the host {host} is unknown: {error.strerror}",
                "Check the network, the URL, and the endpoint in --storage-option or the "
                "environment.",
            ) from None


def _driver(url: str) -> type[fsspec.AbstractFileSystem]:
    scheme = scheme_of(url)
    from fsspec.registry import get_filesystem_class

    try:
        driver: type[fsspec.AbstractFileSystem] = get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:
        extra = BUCKETS.get(scheme, "").removesuffix("fs")
        package = f"pip install 'fastdata-torch[{extra}]'" if extra else str(error)
        hint = f"Check the scheme, or install the fsspec driver for it: {package}"
        raise UsageError(f"{redact(url)}: no driver handles {scheme}://", hint) from None
    return driver


def _make(
    url: str, driver: type[fsspec.AbstractFileSystem], options: dict[str, Any]
) -> fsspec.AbstractFileSystem:
    from fsspec.config import apply_config

    scheme = scheme_of(url)
    configured = apply_config(driver, options)
    remember_secrets(configured)
    options = {**options, **bounded_options(driver, configured, CONNECT, STALLED)}
    if scheme in BUCKETS:
        # These drivers log each failure with a traceback; final ones are raised anyway.
        log = logging.getLogger(BUCKETS[scheme])
        if not log.handlers:
            log.addHandler(logging.NullHandler())
        if "use_listings_cache" not in configured:
            options["use_listings_cache"] = False  # see what other processes write
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="GCS project not set")
        made = driver(**options, skip_instance_cache=True)
    if scheme == "hf":
        # Its files read 5 MiB ahead, of which a range needs little.
        made.cat_file = partial(made.cat_file, cache_type="none")
    _require_host(url, made)
    return made


def parse_storage_options(texts: tuple[str, ...] | list[str]) -> dict[str, Any]:
    """Parse ``key=value`` options; values are JSON, else text.

    Raise UsageError for one without ``=``, or a repeated key.
    """
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            # Do not show the text: it may be a credential whose key was forgotten.
            raise UsageError(
                "--storage-option takes key=value", "For example: --storage-option token=anon"
            )
        if name in options:
            raise UsageError(f"--storage-option {name} is given twice", "Give it once.")
        options[name] = value
        with suppress(ValueError):
            options[name] = json.loads(value)
    remember_secrets(options)
    return options
