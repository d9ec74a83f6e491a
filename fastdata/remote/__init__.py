"""Datasets and sources in buckets or on servers, named by fsspec URLs."""

from fastdata.remote.options import RemoteOptions, RemoteStats

__all__ = ["RemoteOptions", "RemoteStats"]
