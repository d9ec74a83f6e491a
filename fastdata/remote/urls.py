"""URLs: recognition, parsing, and redaction of credentials in messages."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]*(::|://)")
_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^\s'\"<>]+")
#: Schemes in which ``?`` begins a query and ``%`` quotes; buckets take both literally.
_WITH_QUERY = ("http", "https")

_SECRET_NAME = re.compile(
    r"token|key|secret|pass|credential|auth|sas|sign|account|connection|cookie|header|user", re.I
)
#: Values of such options that name a method of authentication, not a credential.
_NO_SECRETS = {"anon", "cloud", "browser", "cache", "google_default", "default", "true", "false"}
_SHORTEST_SECRET = 4  # shorter values occur in ordinary words

# No lock, which a fork could copy locked: adding to a dictionary is atomic.
_secrets: dict[str, None] = {}


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a URL for fsspec, ``scheme://…``."""
    return bool(_URL.match(os.fspath(path)))


def scheme_of(url: str) -> str:
    """Return the scheme of a URL in lower case: ``gs`` of ``gs://bucket/dataset``."""
    return url.partition(":")[0].lower()


def split_query(url: str) -> tuple[str, str]:
    """Return a URL up to its query, and the query or fragment with its mark.

    Only http URLs have one.
    """
    if scheme_of(url) not in _WITH_QUERY:
        return url, ""
    at = min((at for at in (url.find("?"), url.find("#")) if at >= 0), default=len(url))
    return url[:at], url[at:]


def join_url(url: str, name: str) -> str:
    """Return the URL of a file in a folder."""
    base, query = split_query(url)
    return f"{base.rstrip('/')}/{name}{query}"


def resolve_url(url: str, path: str) -> str:
    """Return the URL of a folder from its path relative to another one, with ``..`` resolved."""
    base, query = split_query(url)
    scheme, separator, rest = base.partition("://")
    return scheme + separator + posixpath.normpath(posixpath.join(rest, path)) + query


def name_of(url: str) -> str:
    """Return the last part of a path or a URL's path: ``dataset`` of ``gs://bucket/dataset/``."""
    path = split_query(url)[0].rpartition("://")[2].rstrip("/")
    return path.rpartition("/")[2]


def listed_name(url: str, name: str) -> str:
    """Return a path of a listing as it is on disk: web servers quote paths."""
    return unquote(name) if scheme_of(url) in _WITH_QUERY else name


def redact(url: str) -> str:
    """Return a URL fit for messages: without user, password, query and fragment."""
    base, query = split_query(str(url))
    scheme, separator, rest = base.partition("://")
    if not separator:
        return base
    host, slash, path = rest.partition("/")
    if "@" in host:
        host = "***@" + host.rpartition("@")[2]
    elif "@" in path and scheme.lower() not in ("gs", "gcs", "s3", "s3a", "hf"):
        # A password may hold a slash.
        host, slash, path = "***@" + path.rpartition("@")[2], "", ""
    return f"{scheme}://{host}{slash}{path}" + ("?***" if query else "")


def redact_text(text: str) -> str:
    """Return a driver's message without credentials: URLs redacted, known secrets removed."""

    def redacted(match: re.Match[str]) -> str:
        base, mark, _ = match[0].partition("?")  # which begins a query in any scheme
        return redact(base) + ("?***" if mark else "")

    text = _IN_TEXT.sub(redacted, text)
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def remember_secrets(options: Mapping[str, Any]) -> None:
    """Have `redact_text` leave out the values of a driver's options that may be credentials."""
    _secrets.update(dict.fromkeys(_secret_values(options, False)))


def remember_query(url: str) -> None:
    """Have `redact_text` leave out a URL's query, which drivers may print without the URL."""
    query = split_query(url)[1].partition("#")[0][1:]
    remember_secrets({**dict(parse_qsl(query)), "secret query": query})


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


def common_folder(locations: Sequence[str]) -> str:
    """Return the innermost folder, or its URL, of some files."""
    folders = [location.rpartition("/")[0] for location in locations]
    if not is_url(folders[0]):
        return os.path.commonpath(folders)
    protocol, _, first = folders[0].partition("://")
    paths = [first, *(folder.partition("://")[2] for folder in folders[1:])]
    return f"{protocol}://{os.path.commonpath(paths)}"
