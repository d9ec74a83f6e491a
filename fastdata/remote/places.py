"""Places of the files of buckets and web servers, as fsspec's drivers know them."""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies

from fastdata.remote.drivers import STALLED
from fastdata.remote.http import HttpClient, Place
from fastdata.remote.requests import call_driver, run_on
from fastdata.remote.urls import split_query

if TYPE_CHECKING:
    import fsspec

#: URLs that every client and server writes alike. Others have to be encoded.
_PLAIN = re.compile(r"https?://[\w.:-]+(?:/(?!\.{1,2}(?:/|$))[\w.=-]+)+", re.ASCII | re.IGNORECASE)
#: Options that leave requests as they are, or that the driver applies to the places it returns.
_HEEDED: dict[str, set[str]] = {
    "s3fs": {
        *("key", "secret", "token", "username", "password", "anon", "profile", "endpoint_url"),
        *("use_ssl", "client_kwargs", "config_kwargs"),
        *("default_block_size", "default_fill_cache", "default_cache_type", "max_concurrency"),
    },
    "gcsfs": {
        *("token", "project", "access", "endpoint_url", "requests_timeout", "timeout"),
        *("block_size", "consistency", "cache_timeout", "default_location", "check_connection"),
    },
    "http": {
        *("client_kwargs", "headers", "block_size", "simple_links", "same_scheme", "cache_type"),
    },
}
_COMMON = {"use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache"}
#: Settings that botocore applies when it signs, or that limit requests of its own.
_AMAZON_CONFIG = {"read_timeout", "connect_timeout", "max_pool_connections", "retries", "s3"}
#: Headers of every request: some servers refuse requests that do not name their client.
_OURS = {"User-Agent": "fastdata"}
#: Options that are known only if they are false.
_OFF = {"requester_pays", "version_aware"}
#: Seconds for which a signature of Amazon's is used, and for which it is valid. Temporary
#: credentials are renewed ten minutes before their end or earlier.
_SIGNED = 300.0
_VALID = 3600
#: Most signed URLs to keep.
_MOST_SIGNED = 1 << 14


def http_client(
    fs: fsspec.AbstractFileSystem, url: str, storage_options: Mapping[str, Any]
) -> HttpClient | None:
    """Return the client for the files of a driver; None where it would not do as the driver does.

    ``storage_options`` are the user's. That is so for drivers of other protocols, for options that
    are not known here, for a URL with a query, and behind a proxy.
    """
    from fsspec.config import apply_config

    driver: Any = type(fs)
    name = driver.__module__.removeprefix("fsspec.implementations.").partition(".")[0]
    options: dict[str, Any] = apply_config(driver, dict(storage_options))
    if name not in _HEEDED or not options.keys() <= _HEEDED[name] | _COMMON | _OFF:
        return None
    if any(map(options.get, _OFF)) or split_query(url)[1]:
        return None
    if getproxies().keys() & {"http", "https", "all"}:
        return None
    return _OPEN[name](fs, options)


def _of_amazon(fs: Any, options: dict[str, Any]) -> HttpClient | None:
    from botocore.httpsession import get_cert_path

    own, config = options.get("client_kwargs") or {}, options.get("config_kwargs") or {}
    if not own.keys() <= {"region_name", "endpoint_url"} or not config.keys() <= _AMAZON_CONFIG:
        return None
    client = run_on(fs.loop, fs.set_session())
    register = client.meta.events.register_first
    if not fs.anon and client.meta.config.signature_version == "s3v4":
        register("choose-signer.s3", _sign_by_v4, "fastdata-signer")
    register("before-endpoint-resolution.s3", _stay_in_region, "fastdata-region")
    # In botocore's order.
    bundle = fs.session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")

    @lru_cache(_MOST_SIGNED)
    def signed(url: str, period: float) -> Place:
        path = fs._strip_protocol(url)
        return Place(call_driver(fs, "url", STALLED, path, expires=_VALID), _OURS)

    def certificates() -> ssl.SSLContext:
        return ssl.create_default_context(cafile=bundle or get_cert_path(True))

    idle = config.get("read_timeout", STALLED)
    return HttpClient(lambda url: signed(url, time.time() // _SIGNED), bool, certificates, idle)


def _sign_by_v4(signature_version: str, **about: Any) -> str | None:
    """Have botocore sign URLs as it signs requests; its default is a signature of 2006."""
    return "s3v4-query" if signature_version in ("v4-query", "s3v4-query") else None


def _stay_in_region(context: dict[str, Any], **about: Any) -> None:
    """Have botocore sign URLs of the region's host; its default knows few regions."""
    context["use_global_endpoint"] = False


def _of_google(fs: Any, options: dict[str, Any]) -> HttpClient | None:
    idle = options.get("requests_timeout") or STALLED
    if not isinstance(idle, (int, float)) or getattr(fs, "_use_client_cert", False):
        return None

    def place_of(url: str) -> Place:
        headers = dict(_OURS)
        fs.credentials.apply(headers)  # renews them
        return Place(fs.url(fs._strip_protocol(url)), headers)

    return HttpClient(place_of, idle=idle)


def _of_web(fs: Any, options: dict[str, Any]) -> HttpClient | None:
    own = dict(options.get("client_kwargs") or {})
    given = _OURS, own.pop("headers", None) or {}, options.get("headers") or {}
    headers = {str(name).title(): value for some in given for name, value in some.items()}
    texts = [*headers, *headers.values()]
    times = own.pop("timeout", None)
    if own or not all(isinstance(one, str) and one.isprintable() for one in texts):
        return None
    if getattr(times, "total", None) is not None:  # of the whole request
        return None
    if headers.keys() & {"Host", "Range", "Accept-Encoding", "Connection"}:
        return None
    idle = getattr(times, "sock_read", None) or STALLED
    return HttpClient(lambda url: Place(url, headers), _PLAIN.fullmatch, idle=idle)


_OPEN: dict[str, Callable[[Any, dict[str, Any]], HttpClient | None]] = {
    "s3fs": _of_amazon,
    "gcsfs": _of_google,
    "http": _of_web,
}
