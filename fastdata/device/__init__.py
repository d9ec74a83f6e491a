"""Delivery of batches to a GPU: pinned copies on a separate stream, normalised on the GPU."""
