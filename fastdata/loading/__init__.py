"""What `fastdata.DataLoader` is made of on its native path.

A batch goes through these files in this order: ``schedule`` (which samples), ``source`` (where
they lie), ``geometry`` in `fastdata.recipe` (which crops), ``buffers`` (where their pixels go),
``pipeline`` (decoding, ahead of the consumer), ``iterator`` (what the consumer sees).
"""
