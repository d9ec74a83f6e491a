"""Modules of `fastdata.DataLoader`.

A batch on the native path passes these in order: `fastdata.plan.schedule` (which samples),
`fastdata.storage.source` (where they lie), `fastdata.transforms.compile` (which crops),
``buffers`` (where their pixels go), ``pipeline`` (decoding, ahead of the consumer), ``iterator``
(what the consumer sees).
"""
