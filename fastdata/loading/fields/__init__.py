"""Fields of batches: their crops, their pixels, their memory; below the dataset.

``field`` has the protocol, ``pipeline`` the loop over a batch's fields, ``draw`` the geometry that
they share.
"""
