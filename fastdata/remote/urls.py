"""URLs: telling them from paths, taking them apart, and keeping credentials out of messages."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]*(::|://)")
_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^\s'\"<>]+")
#: Where ``?`` begins a query, and ``%`` quotes; in a bucket's names they are characters.
_WITH_QUERY = ("http", "https")

_SECRET_NAME = re.compile(
    r"token|key|secret|pass|credential|auth|sas|sign|account|connection|cookie|header|user", re.I
)
#: Values of such options that are a way to find credentials, and no credential.
_NO_SECRETS = {"anon", "cloud", "browser", "cache", "google_default", "default", "true", "false"}
_SHORTEST_SECRET = 4  # less would be found in innocent words

# No lock, which a fork might copy locked: adding to a dictionary is atomic.
_secrets: dict[str, None] = {}


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether a path names something that fsspec reaches, ``scheme://…``."""
    return bool(_URL.match(os.fspath(path)))


def scheme_of(url: str) -> str:
    """The scheme of a URL in lower case: ``gs`` of ``gs://bucket/dataset``."""
    return url.partition(":")[0].lower()


def split_query(url: str) -> tuple[str, str]:
    """A URL's part before its query, and the query or fragment with its mark; of http only."""
    if scheme_of(url) not in _WITH_QUERY:
        return url, ""
    at = min((at for at in (url.find("?"), url.find("#")) if at >= 0), default=len(url))
    return url[:at], url[at:]


def join_url(url: str, name: str) -> str:
    """The URL of a file in a folder."""
    base, query = split_query(url)
    return f"{base.rstrip('/')}/{name}{query}"


def folder_of(url: str) -> str:
    """The URL of the folder that a file lies in."""
    base, query = split_query(url)
    return base.rstrip("/").rpartition("/")[0] + query


def resolve_url(url: str, path: str) -> str:
    """The URL of a folder that is named relative to another one, with ``..`` resolved."""
    base, query = split_query(url)
    scheme, separator, rest = base.partition("://")
    return scheme + separator + posixpath.normpath(posixpath.join(rest, path)) + query


def name_of(url: str) -> str:
    """The last part of a URL's path: ``dataset`` of ``gs://bucket/dataset/``."""
    path = split_query(url)[0].partition("://")[2].rstrip("/")
    return path.rpartition("/")[2]


def listed_name(url: str, name: str) -> str:
    """A path in the listing of a URL as a disk has it: those of web servers are quoted."""
    return unquote(name) if scheme_of(url) in _WITH_QUERY else name


def redact(url: str) -> str:
    """A URL as messages may hold it: without user, password, query and fragment."""
    base, query = split_query(str(url))
    scheme, separator, rest = base.partition("://")
    if not separator:
        return base
    host, slash, path = rest.partition("/")
    if "@" in host:
        host = "***@" + host.rpartition("@")[2]
    elif "@" in path and scheme.lower() not in ("gs", "gcs", "s3", "s3a"):
        # A password may hold a slash.
        host, slash, path = "***@" + path.rpartition("@")[2], "", ""
    return f"{scheme}://{host}{slash}{path}" + ("?***" if query else "")


def redact_text(text: str) -> str:
    """A driver's message as ours may hold it: URLs redacted, known credentials left out."""
    text = _IN_TEXT.sub(lambda found: _redact_any(found[0]), text)
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def remember_secrets(options: Mapping[str, Any]) -> None:
    """Has `redact_text` leave out the values of a driver's options that may be credentials."""
    _secrets.update(dict.fromkeys(_secret_values(options, False)))


def remember_query(url: str) -> None:
    """Has `redact_text` leave out a URL's query, which drivers may print without the URL."""
    query = split_query(url)[1].partition("#")[0][1:]
    named = dict(parse_qsl(query))
    found = (query, *_secret_values(named, False))
    _secrets.update(dict.fromkeys(one for one in found if len(one) >= _SHORTEST_SECRET))


def _secret_values(value: Any, secret: bool) -> Iterable[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _secret_values(inner, secret or bool(_SECRET_NAME.search(str(name))))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _secret_values(inner, secret)
    elif (
        secret
        and isinstance(value, str)
        and len(value) >= _SHORTEST_SECRET
        and value.lower() not in _NO_SECRETS
    ):
        yield value


def _redact_any(url: str) -> str:
    """Redacts a URL of a driver's own, whose ``?`` begins a query whatever its scheme is."""
    base, mark, _ = url.partition("?")
    return redact(base) + ("?***" if mark else "")
