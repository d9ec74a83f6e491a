"""Datasets and sources that lie in a bucket or behind a server, named by fsspec URLs."""
