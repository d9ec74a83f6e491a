"""Batches of a source's samples: their crops, their pixels, their memory."""
