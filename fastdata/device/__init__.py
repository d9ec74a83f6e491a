"""Batches on their way to a GPU: pinned copies on a stream of their own, normalised there."""
