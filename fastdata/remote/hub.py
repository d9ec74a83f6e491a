"""URLs of datasets on the Hugging Face Hub: ``hf://datasets/owner/name[@revision][/path]``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

from fastdata.errors import RemoteError, SourceError, UsageError
from fastdata.remote.drivers import open_filesystem
from fastdata.remote.filesystem import file_info
from fastdata.remote.requests import call_in_thread
from fastdata.remote.retries import Retries
from fastdata.remote.urls import join_url
from fastdata.storage.manifest import MANIFEST_NAME

_HUB = "hf://datasets/"
_PLACE = re.compile(
    r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<path>.*))?"
)
#: Seconds that a request for a revision may take.
_TIMEOUT = 30.0


class HubPlace(NamedTuple):
    """Path ("" for all) in a dataset on the Hub, ``owner/name``, at a commit."""

    repo: str
    commit: str
    path: str

    @property
    def url(self) -> str:
        """URL of the repository at the commit."""
        return f"{_HUB}{self.repo}@{self.commit}"

    @property
    def shown(self) -> str:
        """Its URL for messages, without the commit."""
        return join_url(f"{_HUB}{self.repo}", self.path).rstrip("/")


def is_hub_url(place: str) -> bool:
    """Return whether a URL names a dataset on the Hub."""
    return place.startswith(_HUB)


def is_packed_there(url: str, storage_options: Mapping[str, Any] | None) -> bool:
    """Return whether a URL has a dataset of fastdata's own; raises as `pinned`."""
    place = pinned(url, storage_options)
    with suppress(FileNotFoundError):
        file_info(join_url(f"{place.url}/{place.path}", MANIFEST_NAME), storage_options)
        return True
    return False


def pinned(url: str, storage_options: Mapping[str, Any] | None = None) -> HubPlace:
    """Return a place with the commit that its revision is now: its files do not change.

    Raises:
        RemoteError: The Hub cannot be reached.
        SourceError: There is no such dataset or revision, or it may not be read.
        UsageError: It is no such URL, or huggingface_hub is missing.
    """
    place = _PLACE.fullmatch(url.rstrip("/"))
    if place is None:
        raise UsageError(f"{url}: no dataset on the Hub", f"Write {_HUB}owner/name.")
    fs: Any = open_filesystem(url, storage_options)[0]
    from huggingface_hub import HfApi, errors

    api = HfApi(endpoint=fs.endpoint, token=fs.token)
    revision = place["revision"] and unquote(place["revision"])

    def ask() -> Any:
        try:
            return api.dataset_info(place["repo"], revision=revision, timeout=_TIMEOUT)
        except errors.OfflineModeIsEnabled:
            hint = "Unset HF_HUB_OFFLINE; or give ImageDataset the folder of an index."
            raise RemoteError(f"{url}: the Hub is offline by HF_HUB_OFFLINE", hint) from None
        except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
            raise SourceError(
                f"{url}: no such dataset or revision on the Hub, or it may not be read",
                "Check the name. For a private or gated one: hf auth login, or the storage option "
                "token.",
            ) from None

    info = Retries(f"{url}: finding its revision").call(partial(call_in_thread, ask))
    return HubPlace(place["repo"], info.sha, place["path"] or "")
