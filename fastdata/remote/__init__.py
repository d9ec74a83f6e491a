"""Datasets and sources that lie in a bucket or behind a server, named by fsspec URLs."""

from fastdata.remote.options import RemoteOptions, RemoteStats

__all__ = ["RemoteOptions", "RemoteStats"]
