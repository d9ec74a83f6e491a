"""Client that reads byte ranges by obstore, where that honours what fsspec's driver was told.

fsspec's drivers resolve names, options and credentials. This module hands on what they found.
"""

from __future__ import annotations

import math
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from fastdata.remote.clients import RangeClient
from fastdata.remote.drivers import CONNECT, STALLED
from fastdata.remote.requests import run_on
from fastdata.remote.urls import scheme_of, split_query

if TYPE_CHECKING:
    import fsspec

#: Names that every client and server writes alike. Others have to be encoded.
_PLAIN = re.compile(r"[\w.:-]+(?:/(?!\.{1,2}(?:/|$))[\w.=-]+)+", re.ASCII)
#: Options that obstore needs not know, or that are handed on, by module of the driver. Some only
#: with certain values.
_COMMON = {"use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache"}
_HANDED_ON: dict[str, set[str]] = {
    "s3fs": {
        *("key", "secret", "token", "username", "password", "anon", "profile", "endpoint_url"),
        *("use_ssl", "client_kwargs", "config_kwargs", "requester_pays", "version_aware"),
        *("default_block_size", "default_fill_cache", "default_cache_type", "max_concurrency"),
    },
    "gcsfs": {
        *("token", "project", "access", "endpoint_url", "requests_timeout", "timeout"),
        *("block_size", "consistency", "cache_timeout", "default_location", "check_connection"),
        *("requester_pays", "version_aware"),
    },
    "adlfs": {"account_name", "account_key", "sas_token", "anon", "block_size", "max_concurrency"},
    "fsspec": {
        *("client_kwargs", "headers", "block_size", "simple_links", "same_scheme", "cache_type"),
    },
}
#: Settings of botocore that obstore needs not know, or that are handed on.
_AMAZON_CONFIG = {"read_timeout", "connect_timeout", "max_pool_connections", "retries", "s3"}
#: Variables that obstore reads, but botocore does not.
_AMAZON_ONLY_OBSTORE = re.compile(r"AWS_(REQUEST_PAYER|S3_EXPRESS|SERVER_SIDE_ENCRYPTION|SSE_\w+)")
#: Names of buckets that can be part of a host's, covered by its certificate.
_HOST_PART = re.compile(r"[a-z0-9][a-z0-9-]*[a-z0-9]")
#: Options that are known only if they are false.
_OFF = ("requester_pays", "version_aware")
#: Seconds for which credentials that a driver renews are used before it is asked again.
_RENEWED = 600.0
#: Time limits are rounded up by this factor at most: each needs connections of its own.
_STEP = 1.25

#: Whether this process was forked from one that had obstore: its runtime has no threads here, and
#: using it would also disturb the parent's.
_is_forked = False


def _note_fork() -> None:
    global _is_forked
    _is_forked = _is_forked or "obstore" in sys.modules


os.register_at_fork(after_in_child=_note_fork)


class ObjectStoreClient(RangeClient):
    """Client that reads by obstore.

    Args:
        base: The scheme of its URLs, and ``://``. The name of a bucket, or a host, follows.
        open_store: Makes the store of a bucket, from its name and the options of its HTTP client.
        idle: Seconds after which a connection without a byte counts as stalled.
        headers: Returns the headers of all requests; they change when credentials are renewed.
    """

    name = "obstore"

    def __init__(
        self,
        base: str,
        open_store: Callable[[str, dict[str, Any]], Any],
        idle: float = STALLED,
        headers: Callable[[], dict[str, str]] = dict,
    ) -> None:
        self._base, self._open, self._idle, self._headers = base, open_store, idle, headers
        self._stores: dict[tuple[str, int], Any] = {}
        self._sent: dict[str, str] = {}
        self._lock = threading.Lock()

    def reads(self, url: str) -> bool:
        return url.startswith(self._base) and bool(_PLAIN.fullmatch(url, len(self._base)))

    def get(self, url: str, start: int, stop: int, seconds: float) -> Any:
        import obstore

        bucket, _, key = url[len(self._base) :].partition("/")
        step = math.ceil(math.log(max(seconds, 1.0), _STEP))
        headers = self._headers()
        with self._lock:
            if headers != self._sent:
                self._stores.clear()
                self._sent = headers
            store = self._stores.get((bucket, step))
            if store is None:
                options = {
                    "timeout": timedelta(seconds=_STEP**step),
                    "connect_timeout": timedelta(seconds=CONNECT),
                    "read_timeout": timedelta(seconds=self._idle),
                    "allow_http": True,
                    "default_headers": headers,
                }
                store = self._stores[bucket, step] = self._open(bucket, options)
        return obstore.get_range(store, key, start=start, end=stop)


def object_store_client(
    fs: fsspec.AbstractFileSystem, url: str, storage_options: Mapping[str, Any]
) -> RangeClient | None:
    """Return the client for the files of a driver; None where obstore would not do as it does.

    ``storage_options`` are the user's. That is so for drivers that obstore has no store for, for
    options that it does not know, for a URL with a query, and in a process that was forked from one
    with obstore.
    """
    from fsspec.config import apply_config

    driver: Any = type(fs)
    module = driver.__module__.partition(".")[0]
    options: dict[str, Any] = apply_config(driver, dict(storage_options))
    if _is_forked or module not in _HANDED_ON or split_query(url)[1]:
        return None
    if module == "fsspec" and driver.__module__ != "fsspec.implementations.http":
        return None
    if not options.keys() <= _HANDED_ON[module] | _COMMON:
        return None
    # The clients do not use the same proxies, and do not read NO_PROXY alike.
    if any(options.get(name) for name in _OFF) or getproxies().keys() & {"http", "https", "all"}:
        return None
    try:
        import obstore.store  # noqa: F401 - the first one loads it
    except ImportError:
        return None
    return _OPEN[module](fs, url, options)


def _of_amazon(fs: Any, url: str, options: dict[str, Any]) -> RangeClient | None:
    from obstore.store import S3Store

    own, config = options.get("client_kwargs") or {}, options.get("config_kwargs") or {}
    if not own.keys() <= {"region_name", "endpoint_url"} or not config.keys() <= _AMAZON_CONFIG:
        return None
    meta = run_on(fs.loop, fs.set_session()).meta
    endpoint, region = meta.endpoint_url, meta.region_name or "us-east-1"
    # Of options, the environment and the profile together.
    ways = {name: value for name, value in (meta.config.s3 or {}).items() if value}
    style = ways.pop("addressing_style", None)
    if ways or not (fs.anon or meta.config.signature_version in ("s3v4", None)):
        return None
    if meta.config.use_fips_endpoint or any(map(_AMAZON_ONLY_OBSTORE.fullmatch, os.environ)):
        return None
    is_amazons = (urlsplit(endpoint).hostname or "").endswith(".amazonaws.com")
    wants_virtual = style == "virtual" or (is_amazons and style != "path")
    # obstore prefers this variable to the endpoint that it is given.
    preferred = os.environ.get("AWS_ENDPOINT_URL_S3")
    if preferred is not None and (wants_virtual or preferred != endpoint):
        return None
    bundle = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE")

    def credentials() -> Any:
        if fs.key:
            return {
                "access_key_id": fs.key,
                "secret_access_key": fs.secret,
                "token": fs.token,
                "expires_at": None,
            }
        return dict(run_on(fs.loop, _amazon_credentials(fs.session)))

    def open_store(bucket: str, limits: Any) -> Any:
        if bundle and endpoint.startswith("https"):
            with open(bundle, "rb") as file:
                limits["root_certificate"] = file.read()
        # A bucket's own host, where its name is part of a host's.
        at = endpoint
        virtual = wants_virtual and bool(_HOST_PART.fullmatch(bucket))
        if virtual:
            scheme, _, host = endpoint.partition("://")
            at = f"{scheme}://{bucket}.{host}"
        return S3Store(
            bucket,
            endpoint=at,
            region=region,
            virtual_hosted_style_request=virtual,
            skip_signature=bool(fs.anon),
            client_options=limits,
            retry_config=_NO_RETRIES,
            credential_provider=None if fs.anon else credentials,
        )

    idle = config.get("read_timeout", STALLED)
    return ObjectStoreClient(f"{url.partition('://')[0]}://", open_store, idle)


async def _amazon_credentials(session: Any) -> dict[str, Any]:
    """Return what botocore has found: in the environment, a profile, a role; it renews them."""
    found = await session.get_credentials()
    if found is None:
        raise PermissionError("botocore finds no credentials")
    frozen = await found.get_frozen_credentials()
    expires = datetime.now(timezone.utc) + timedelta(seconds=_RENEWED)
    if until := getattr(found, "_expiry_time", None):
        expires = min(expires, until.astimezone(timezone.utc))  # obstore refuses other time zones
    return {
        "access_key_id": frozen.access_key,
        "secret_access_key": frozen.secret_key,
        "token": frozen.token,
        "expires_at": expires,
    }


def _of_google(fs: Any, url: str, options: dict[str, Any]) -> RangeClient | None:
    from obstore.store import HTTPStore

    idle = options.get("requests_timeout") or STALLED
    server = urlsplit(fs.base)
    if not isinstance(idle, (int, float)) or getattr(fs, "_use_client_cert", False):
        return None
    if server.path.strip("/") != "storage/v1":  # the endpoint is a folder of a server
        return None

    def headers() -> dict[str, str]:
        sent: dict[str, str] = {}
        fs.credentials.apply(sent)  # renews them
        return sent

    # Google's XML protocol: objects are files of a web server. obstore's own store demands
    # headers that emulators lack.
    def open_store(bucket: str, limits: Any) -> Any:
        place = f"{server.scheme}://{server.netloc}/{bucket}"
        return HTTPStore(place, client_options=limits, retry_config=_NO_RETRIES)

    return ObjectStoreClient(f"{url.partition('://')[0]}://", open_store, idle, headers)


def _of_azure(fs: Any, url: str, options: dict[str, Any]) -> RangeClient | None:
    from obstore.store import AzureStore

    names = {"account_key": "account_key", "sas_token": "sas_key", "anon": "skip_signature"}
    known = {names[name]: options[name] for name in names if options.get(name)}
    # adlfs and obstore look for credentials and endpoints in many variables, not the same ones.
    if any(name.startswith("AZURE_") for name in os.environ) or len(known) != 1:
        return None
    if not options.get("account_name") or "@" in urlsplit(url).netloc:
        return None

    def open_store(container: str, limits: Any) -> Any:
        account: Any = {"account_name": options["account_name"], **known}
        return AzureStore(container, client_options=limits, retry_config=_NO_RETRIES, **account)

    return ObjectStoreClient(f"{url.partition('://')[0]}://", open_store)


def _of_web(fs: Any, url: str, options: dict[str, Any]) -> RangeClient | None:
    from obstore.store import HTTPStore

    own = dict(options.get("client_kwargs") or {})
    headers = {**(own.pop("headers", None) or {}), **(options.get("headers") or {})}
    times = own.pop("timeout", None)
    if own or not all(isinstance(one, str) for one in [*headers, *headers.values()]):
        return None
    base = f"{scheme_of(url)}://"

    def open_store(host: str, limits: Any) -> Any:
        return HTTPStore(base + host, client_options=limits, retry_config=_NO_RETRIES)

    idle = getattr(times, "sock_read", None) or STALLED
    return ObjectStoreClient(base, open_store, idle, lambda: dict(headers))


_OPEN: dict[str, Callable[[Any, str, dict[str, Any]], RangeClient | None]] = {
    "s3fs": _of_amazon,
    "gcsfs": _of_google,
    "adlfs": _of_azure,
    "fsspec": _of_web,
}
#: The reader retries, and knows how often.
_NO_RETRIES: Any = {"max_retries": 0}
