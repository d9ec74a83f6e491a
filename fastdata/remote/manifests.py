"""Manifests of datasets behind a URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from fastdata.errors import CorruptionError, DatasetError
from fastdata.remote.filesystem import read_bytes
from fastdata.remote.retries import wait_before
from fastdata.remote.urls import is_url, join_url, redact, resolve_url
from fastdata.storage.files import read_file
from fastdata.storage.manifest import MANIFEST_NAME, MOST_BYTES, Manifest, PartsError
from fastdata.threads import pause

_MANIFEST_READS = 3


def read_manifest(url: str, storage_options: Mapping[str, Any] | None) -> bytes:
    """Return the text of a remote manifest; raise DatasetError without a finished dataset."""
    if not is_url(url):
        with suppress(PartsError):
            Manifest.load(url)  # raises if the dataset is not finished
        return read_file(os.path.join(url, MANIFEST_NAME), MOST_BYTES)
    try:
        return fetch_manifest(join_url(url, MANIFEST_NAME), storage_options)
    except FileNotFoundError:
        raise no_dataset(url) from None


def no_dataset(url: str) -> DatasetError:
    """Return the error for a URL without a manifest."""
    return DatasetError(
        f"{redact(url)}: no dataset here ({MANIFEST_NAME} is missing)",
        "Check the URL; fastdata convert … --out uploads the manifest last.",
    )


def images_url(url: str, root: str) -> str:
    """Return the folder or URL that a manifest names as its root.

    Raise DatasetError if the manifest is behind a URL, but the images are on some machine.
    """
    if is_url(root):
        return root
    if not is_url(url):
        return os.path.join(url, root)
    if root.startswith("/"):
        raise DatasetError(
            f"{redact(url)}: its images are files in {root} on the machine that indexed them",
            "Pack them there: fastdata convert … --to shards.",
        )
    return resolve_url(url, root)


def fetch_manifest(url: str, storage_options: Mapping[str, Any] | None) -> bytes:
    """Return the text of a manifest; read it again if it is not valid.

    Raise FileNotFoundError if there is none, RemoteError if it exceeds 64 MiB.
    """
    for number in range(1, _MANIFEST_READS + 1):
        text = read_bytes(url, storage_options, most=MOST_BYTES)
        try:
            Manifest.parse(text, redact(url))
        except CorruptionError:  # a server may send fewer bytes without an error
            if number < _MANIFEST_READS:
                pause(wait_before(number))
            continue
        except DatasetError:
            pass
        break
    return text
