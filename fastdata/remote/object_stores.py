"""Stand-in."""

from __future__ import annotations
from typing import Any
from urllib.parse import urlsplit
from fastdata.remote.clients import RangeClient


class C(RangeClient):
    name = "obstore"

    def __init__(self, url):
        from obstore.store import HTTPStore

        p = urlsplit(url)
        self.base = f"{p.scheme}://{p.netloc}/"
        self.store = HTTPStore.from_url(
            self.base,
            client_options={"allow_http": True, "timeout": "60s"},
            retry_config={"max_retries": 0},
        )

    def get(self, url, start, stop, seconds):
        import obstore

        return obstore.get_range(self.store, url[len(self.base) :], start=start, end=stop)


def object_store_client(fs, url, storage_options):
    return C(url) if url.startswith("http") else None
